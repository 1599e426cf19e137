#include "derived.h"

/* Of properties that are stored as they are: fanout.queue_tag and index_keys. */
int derive(Text text, Derived *derived) {
    Item item;
    memset(derived, 0, sizeof *derived);
    if (text.size > PROPERTIES_MAX || has(text, 0) || !is_utf8(text)) return LEAVE;
    while (next_item(&text, &item)) { /* of two with one name the later counts */
        Text *part = item.value.at ? part_of(derived, item.name) : NULL;
        if (part) *part = item.value;
    }
    return PLAIN;
}

/* One key for the index: index.key_hash, in the byte order of this machine, for numpy. */
static void add_key(Buffer *keys, uint32_t head, Text key, int64_t offset, int64_t store_ms) {
    uint32_t hash = java_hash(head, key);
    if (hash & 0x80000000u) hash = hash == 0x80000000u ? 0 : 0 - hash;
    *(Key *)(keys->at + keys->size) = (Key){hash, offset, store_ms};
    keys->size += sizeof(Key);
}

int add_keys(Buffer *keys, uint32_t head, const Derived *derived, int64_t offset, int64_t store_ms) {
    Py_ssize_t most = derived->keys.size / 2 + 1; /* words of one character */
    if (reserve(keys, (Py_ssize_t)sizeof(Key) * ((most < KEYS_MAX ? most : KEYS_MAX) + 1))) return FAILED;
    if (derived->unique.size) add_key(keys, head, derived->unique, offset, store_ms);
    const byte *word = derived->keys.at, *last = word + derived->keys.size;
    Py_ssize_t full = keys->size + KEYS_MAX * (Py_ssize_t)sizeof(Key);
    for (const byte *space; word < last && keys->size < full; word = space + 1) {
        space = memchr(word, ' ', last - word);
        if (!space) space = last;
        if (space > word) add_key(keys, head, (Text){word, space - word}, offset, store_ms);
    }
    return 0;
}
