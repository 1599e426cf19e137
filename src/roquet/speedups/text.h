/* Numbers as text, UTF-8, Java's hash, checksums. */

#pragma once
#include "speedups.h"

enum { LEAVE = 0, PLAIN = 1, FAILED = -1 /* a Python exception is set */ };

byte *add_number(byte *to, int64_t number);
byte *add_hex16(byte *to, uint64_t number);
int number_of(Text text, int64_t *number); /* at most 18 digits and nothing else: PLAIN or LEAVE */
int integer_of(Text text, int64_t *number); /* the same, and perhaps a minus before them */
int character(const byte *at, const byte *end, uint32_t *found); /* its size; 0: it is no UTF-8 (overlong, surrogate, too large) */
int is_utf8(Text text);

/* Properties are name, 1, value, 2, name, ... */
typedef struct { Text all, name, value; } Item; /* without a separator in it: `name` is all of it, and value.at NULL */
int next_item(Text *left, Item *item);

enum { NUMBERS = 3 /* opaque, queue offset, offset to commit: they differ from pull to pull */ };
PyObject *read_shape(long form, Text header, int64_t *numbers); /* of a pull; NULL: perhaps the exception is set */
uint32_t java_hash(uint32_t hash, Text text);
uint32_t crc32_of(Text text);
