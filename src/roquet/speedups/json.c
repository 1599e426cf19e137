#include "json.h"

/* Behind the backslash: a quote, a slash or a character of ASCII by its number. Others are rare. */
static int escaped(Json *json, byte *found) {
    const byte *at = json->at;
    if (at < json->end && (*at == '"' || *at == '\\' || *at == '/')) { *found = *json->at++; return PLAIN; }
    if (json->end - at < 5 || memcmp(at, "u00", 3) || at[3] < '0' || at[3] > '7') return LEAVE;
    int letter = at[4] | 0x20, low = at[4] >= '0' && at[4] <= '9' ? at[4] - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
    if (low < 0) return LEAVE;
    *found = (byte)((at[3] - '0') << 4 | low);
    json->at += 5;
    return PLAIN;
}

/* Behind its quote: written out into the scratch buffer, whose room is that of the whole header. A text never grows by that. */
int json_odd_string(Json *json, Text *text) {
    byte *begin = json->scratch->at + json->scratch->size, *to = begin;
    uint32_t found;
    for (;;) {
        const byte *from = json->at, *at = behind_ordinary(from, json->end);
        for (int size; at < json->end && *at >= 0x80; at += size)
            if (!(size = character(at, json->end, &found))) return LEAVE;
        to = add(to, from, at - from);
        json->at = at;
        if (at == json->end || *at == '"') break;
        if (is_ordinary(*at)) continue;
        json->at++;
        if (*at != '\\' || !escaped(json, to++)) return LEAVE; /* others are control characters */
    }
    *text = (Text){begin, to - begin};
    json->scratch->size += to - begin;
    return json_mark(json, '"');
}

static int json_word(Json *json, Text word) {
    if (json->end - json->at < word.size || memcmp(json->at, word.at, word.size)) return LEAVE;
    json->at += word.size;
    return PLAIN;
}

int json_bare(Json *json, Text *text) {
    const byte *at = json->at, *end = json->end, *digits = at + (at < end && *at == '-'), *stop = digits;
    while (stop < end && *stop >= '0' && *stop <= '9') stop++;
    if (stop > digits) {
        if (stop - digits > 18 || (*digits == '0' && stop - at > 1)) return LEAVE;
        if (stop < end && (*stop == '.' || *stop == 'e' || *stop == 'E')) return LEAVE;
        json->at = stop;
    } else if (!json_word(json, LITERAL("true")) && !json_word(json, LITERAL("false")) && !json_word(json, LITERAL("null"))) return LEAVE;
    *text = *at == 'n' ? (Text){NULL, 0} : (Text){at, json->at - at};
    return PLAIN;
}

int json_integer(Json *json, int64_t *number) {
    Text text;
    return json_bare(json, &text) && integer_of(text, number);
}
