#include "json.h"

static int hex4(const byte *at, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t letter = at[i] | 0x20u, digit = at[i] - (uint32_t)'0';
        if (digit > 9) digit = letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : 16;
        if (digit == 16) return 0;
        *unit = *unit << 4 | digit;
    }
    return 1;
}

static byte *add_character(byte *to, uint32_t c) {
    if (c < 0x80) { *to++ = (byte)c; return to; }
    if (c < 0x800) *to++ = (byte)(0xC0 | c >> 6);
    else {
        *to++ = (byte)(0xE0 | c >> 12);
        *to++ = (byte)(0x80 | (c >> 6 & 0x3F));
    }
    *to++ = (byte)(0x80 | (c & 0x3F));
    return to;
}

/* Behind the backslash. */
static int escaped(Json *json, byte **to) {
    static const char PAIRS[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    const byte *at = json->at, *end = json->end;
    if (at >= end) return LEAVE;
    if (*at != 'u') {
        for (const char *pair = PAIRS; *pair; pair += 2)
            if ((byte)pair[0] == *at) { *(*to)++ = (byte)pair[1]; json->at = at + 1; return PLAIN; }
        return LEAVE;
    }
    uint32_t unit;
    if (end - at < 5 || !hex4(at + 1, &unit) || (unit >= 0xD800 && unit < 0xE000)) return LEAVE; /* a pair of them is rare */
    *to = add_character(*to, unit);
    json->at = at + 5;
    return PLAIN;
}

/* Behind its quote. Without escapes it stays where it is; with some it is written out into the scratch buffer, whose room is that of the
   whole header: a text never grows by unescaping. */
int json_odd_string(Json *json, Text *text) {
    const byte *end = json->end, *start = json->at;
    byte *begin = NULL, *to = NULL;
    for (;;) {
        const byte *from = json->at, *at = behind_ordinary(from, end);
        int size;
        while (at < end && *at >= 0x80) {
            character(at, end, &size);
            if (!size) return LEAVE;
            at += size;
        }
        if (begin) to = add(to, from, at - from);
        json->at = at;
        if (at >= end) return LEAVE;
        if (is_ordinary(*at)) continue;
        json->at++;
        if (*at == '"') {
            *text = begin ? (Text){begin, to - begin} : (Text){start, at - start};
            if (begin) json->scratch->size += to - begin;
            return PLAIN;
        }
        if (*at != '\\') return LEAVE; /* a control character */
        if (!begin) {
            begin = json->scratch->at + json->scratch->size;
            to = add(begin, start, at - start);
        }
        if (!escaped(json, &to)) return LEAVE;
    }
}

int json_bare(Json *json, Text *text) {
    static const struct { const char *name; int size; } WORDS[] = {{"true", 4}, {"false", 5}};
    const byte *at = json->at, *end = json->end;
    for (int i = 0; i < 2; i++)
        if (end - at >= WORDS[i].size && !memcmp(at, WORDS[i].name, WORDS[i].size)) {
            *text = (Text){at, WORDS[i].size};
            json->at = at + WORDS[i].size;
            return PLAIN;
        }
    int negative = at < end && *at == '-';
    const byte *digits = at + negative, *stop = digits;
    while (stop < end && *stop >= '0' && *stop <= '9') stop++;
    if (stop == digits || stop - digits > 18 || (*digits == '0' && (stop - digits > 1 || negative))) return LEAVE;
    if (stop < end && (*stop == '.' || *stop == 'e' || *stop == 'E')) return LEAVE;
    *text = (Text){at, stop - at};
    json->at = stop;
    return PLAIN;
}

int json_integer(Json *json, int64_t *number) {
    Text text;
    if (!json_bare(json, &text)) return LEAVE;
    int negative = text.at[0] == '-';
    if (!number_of((Text){text.at + negative, text.size - negative}, number)) return LEAVE;
    if (negative) *number = -*number;
    return PLAIN;
}

int json_skip(Json *json) { /* the value of a name that does not matter here */
    Text text;
    if (json->at >= json->end) return LEAVE;
    if (*json->at == '"') return json_string(json, &text);
    if (json->end - json->at >= 4 && !memcmp(json->at, "null", 4)) { json->at += 4; return PLAIN; }
    return json_bare(json, &text);
}
