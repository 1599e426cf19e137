#include "text.h"

byte *add_number(byte *to, int64_t number) {
    char digits[24];
    int at = 24;
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do { digits[--at] = (char)('0' + left % 10); left /= 10; } while (left);
    if (number < 0) digits[--at] = '-';
    return add(to, digits + at, 24 - at);
}

byte *add_hex16(byte *to, uint64_t number) {
    static const char HEX[] = "0123456789ABCDEF";
    for (int shift = 60; shift >= 0; shift -= 4) *to++ = (byte)HEX[number >> shift & 15];
    return to;
}

int number_of(Text text, int64_t *number) {
    if (text.size < 1 || text.size > 18) return LEAVE;
    int64_t sum = 0;
    for (Py_ssize_t i = 0; i < text.size; i++) {
        unsigned digit = (unsigned)text.at[i] - '0';
        if (digit > 9) return LEAVE;
        sum = sum * 10 + digit;
    }
    *number = sum;
    return PLAIN;
}

int integer_of(Text text, int64_t *number) {
    int negative = text.size && text.at[0] == '-';
    if (!number_of((Text){text.at + negative, text.size - negative}, number)) return LEAVE;
    if (negative) *number = -*number;
    return PLAIN;
}

int character(const byte *at, const byte *end, uint32_t *found) {
    uint32_t first = *found = at[0];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    int size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (end - at < size) return 0;
    *found = first & (0xFFu >> (size + 1));
    for (int i = 1; i < size; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        *found = *found << 6 | (at[i] & 0x3F);
    }
    if (size == 3 && (*found < 0x800 || (*found >= 0xD800 && *found < 0xE000))) return 0;
    return size == 4 && (*found < 0x10000 || *found > 0x10FFFF) ? 0 : size;
}

int is_utf8(Text text) {
    const byte *at = text.at, *end = at + text.size;
    uint64_t eight;
    uint32_t found;
    for (int size; at < end; at += size) {
        for (; end - at >= 8 && (memcpy(&eight, at, 8), !(eight & 0x8080808080808080u)); at += 8) {}
        if (at == end) break;
        if (!(size = *at < 0x80 ? 1 : character(at, end, &found))) return 0;
    }
    return 1;
}

/* String.hashCode over UTF-16 units, going on from `hash`. The text is UTF-8 that was checked. */
uint32_t java_hash(uint32_t hash, Text text) {
    const byte *at = text.at, *end = at + text.size;
    for (uint32_t four, found; at < end;) { /* four of ASCII at a time: each step waits for the one before */
        for (; end - at >= 4 && (memcpy(&four, at, 4), !(four & 0x80808080u)); at += 4)
            hash = hash * 923521 + at[0] * 29791 + at[1] * 961 + at[2] * 31 + at[3];
        if (at == end) break;
        int size = character(at, end, &found);
        if (found >= 0x10000) {
            hash = hash * 31 + (0xD800 + ((found - 0x10000) >> 10));
            found = 0xDC00 + (found & 0x3FF);
        }
        hash = hash * 31 + found, at += size ? size : 1;
    }
    return hash;
}

/* As zlib's, eight bytes a step. Ours, so that no headers of zlib are needed to build this. */
uint32_t crc32_of(Text text) {
    static uint32_t table[8][256];
    for (int n = 0; n < 8 && !table[7][255]; n++) /* once */
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t sum = n ? table[n - 1][i] : i;
            for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320u : 0);
            table[n][i] = sum;
        }
    uint32_t sum = 0xFFFFFFFFu;
    const byte *at = text.at;
    Py_ssize_t left = text.size;
    for (uint32_t low, high; left >= 8; left -= 8, at += 8) {
        memcpy(&low, at, 4), memcpy(&high, at + 4, 4);
        low ^= sum;
        sum = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24]
            ^ table[3][high & 0xFF] ^ table[2][high >> 8 & 0xFF] ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    while (left--) sum = sum >> 8 ^ table[0][(sum ^ *at++) & 0xFF];
    return ~sum;
}

int next_item(Text *left, Item *item) {
    if (left->size < 0) return 0;
    const byte *stop = left->size ? memchr(left->at, 2, left->size) : NULL;
    Py_ssize_t size = stop ? stop - left->at : left->size;
    const byte *mark = size ? memchr(left->at, 1, size) : NULL;
    item->all = (Text){left->at, size};
    item->name = (Text){left->at, mark ? mark - left->at : size};
    item->value = mark ? (Text){mark + 1, left->at + size - mark - 1} : (Text){NULL, 0};
    *left = stop ? (Text){stop + 1, left->size - size - 1} : (Text){NULL, -1};
    return 1;
}
