/* A JSON header, as far as a request needs it. Stricter than the library that Python uses (no blanks, no fractions): whatever passes here
   passes there, with the same value. What does not pass is Python's. */

#pragma once
#include "text.h"

typedef struct { const byte *at, *end; Buffer *scratch; } Json;

int json_odd_string(Json *json, Text *text);
int json_integer(Json *json, int64_t *number);
int json_bare(Json *json, Text *text); /* a whole number, true or false, as it is spelled; null: its `at` is NULL */

static inline int json_mark(Json *json, byte mark) {
    if (json->at >= json->end || *json->at != mark) return LEAVE;
    json->at++;
    return PLAIN;
}

static inline int is_ordinary(byte c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; } /* in a string it stands for itself */

/* Behind the ordinary bytes from here on, eight at a time: of those that are not, the lowest has its bit for sure. */
static inline const byte *behind_ordinary(const byte *at, const byte *end) {
    const uint64_t ones = 0x0101010101010101u;
    for (uint64_t eight; end - at >= 8; at += 8) {
        memcpy(&eight, at, 8);
        uint64_t quote = eight ^ ones * '"', slash = eight ^ ones * '\\';
        uint64_t odd = (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((eight - ones * 0x20) & ~eight) | eight) & ones * 0x80;
        if (odd) return at + (__builtin_ctzll(odd) >> 3);
    }
    while (at < end && is_ordinary(*at)) at++;
    return at;
}

static inline int json_string(Json *json, Text *text) {
    if (!json_mark(json, '"')) return LEAVE;
    const byte *start = json->at, *at = behind_ordinary(start, json->end);
    if (at >= json->end || *at != '"') return json_odd_string(json, text);
    *text = (Text){start, at - start};
    json->at = at + 1;
    return PLAIN;
}

static inline int json_value(Json *json, Text *text) {
    return json->at < json->end && *json->at == '"' ? json_string(json, text) : json_bare(json, text);
}
static inline int json_skip(Json *json) { return json_value(json, &(Text){NULL, 0}); } /* what does not matter here */
