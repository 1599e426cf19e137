/* A JSON header, as far as a request needs it. Stricter than the library that Python uses (no blanks, no fractions): whatever passes here
   passes there, with the same value. What does not pass is Python's. */

#ifndef ROQUET_JSON_H
#define ROQUET_JSON_H

#include "text.h"

typedef struct { const byte *at, *end; Buffer *scratch; } Json;

int json_string(Json *json, Text *text);
int json_integer(Json *json, int64_t *number);
int json_bare(Json *json, Text *text); /* a whole number, true or false, as it is spelled */
int json_skip(Json *json);
static inline int json_mark(Json *json, byte mark) {
    if (json->at >= json->end || *json->at != mark) return LEAVE;
    json->at++;
    return PLAIN;
}

#endif
