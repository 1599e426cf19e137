#include "json.h"

/* Behind the backslash: a quote, a slash or a character of ASCII by its number. Others are rare. */
static int escaped(Json *json, byte *found) {
    const byte *at = json->at;
    if (at < json->end && (*at == '"' || *at == '\\' || *at == '/')) {
        *found = *at;
        json->at++;
        return PLAIN;
    }
    if (json->end - at < 5 || memcmp(at, "u00", 3) || at[3] < '0' || at[3] > '7') return LEAVE;
    int letter = at[4] | 0x20, low = at[4] >= '0' && at[4] <= '9' ? at[4] - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
    if (low < 0) return LEAVE;
    *found = (byte)((at[3] - '0') << 4 | low);
    json->at += 5;
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
        if (!escaped(json, to++)) return LEAVE;
    }
}

static int json_word(Json *json, Text word) {
    if (json->end - json->at < word.size || memcmp(json->at, word.at, word.size)) return LEAVE;
    json->at += word.size;
    return PLAIN;
}

int json_bare(Json *json, Text *text) {
    const byte *at = json->at, *end = json->end;
    if (!json_word(json, LITERAL("true")) && !json_word(json, LITERAL("false"))) {
        int negative = at < end && *at == '-';
        const byte *digits = at + negative, *stop = digits;
        while (stop < end && *stop >= '0' && *stop <= '9') stop++;
        if (stop == digits || stop - digits > 18 || (*digits == '0' && (stop - digits > 1 || negative))) return LEAVE;
        if (stop < end && (*stop == '.' || *stop == 'e' || *stop == 'E')) return LEAVE;
        json->at = stop;
    }
    *text = (Text){at, json->at - at};
    return PLAIN;
}

int json_integer(Json *json, int64_t *number) {
    Text text;
    return json_bare(json, &text) && integer_of(text, number);
}

int json_value(Json *json, Text *text) {
    *text = (Text){NULL, 0};
    if (json->at < json->end && *json->at == '"') return json_string(json, text);
    return json_word(json, LITERAL("null")) || json_bare(json, text);
}
