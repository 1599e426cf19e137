/* What is derived from a stored message: its queue entry and its keys, as store/fanout.py says. */

#pragma once
#include "text.h"

enum { KEYS_MAX = 2048 /* words of one KEYS */ };
typedef struct { int64_t at; int is_timed; } Due; /* a time that stands in an entry in place of the tag */
typedef struct { Text tag, unique, keys; Item asked; Due due; } Derived; /* asked: what goes elsewhere first */

static inline Text *part_of(Derived *derived, Text name) { /* what a property of this name fills; NULL: nothing */
    if (IS(name, "UNIQ_KEY")) return &derived->unique;
    if (IS(name, "TAGS")) return &derived->tag;
    return IS(name, "KEYS") ? &derived->keys : NULL;
}

int derive(Text properties, Derived *derived); /* LEAVE: they are no text */
int add_keys(Buffer *keys, uint32_t head, const Derived *derived, int64_t offset, int64_t store_ms); /* 0 or FAILED; `head`: key_head */
static inline uint32_t key_head(Text topic) { return java_hash(java_hash(0, topic), (Text){(const byte *)"#", 1}); }
static inline int64_t tag_hash(const Derived *derived) { return (int32_t)java_hash(0, derived->tag); }

static inline void add_entry(Buffer *entries, int64_t offset, int64_t size, int64_t tag) { /* room is reserved */
    byte *to = entries->at + entries->size;
    put64(to, (uint64_t)offset), put32(to + 8, (uint32_t)size), put64(to + 12, (uint64_t)tag);
    entries->size += ENTRY;
}
