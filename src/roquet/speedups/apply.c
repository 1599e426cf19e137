/* Records of another node -> their queue entries and keys, as store/apply_many.py's derive_run does it.

   All that stands in the piece is looked at before anything is returned, and where one record is unusual, None is: Python looks then. */

#include "derived.h"

enum { HEAD = 48 /* before every record of a DLedger log */, PLACES_MAX = 64, QUEUE_ID_MAX = 65535, LONGER_V6 = 12 };
enum { TRANSACTION = 0xC, PREPARED = 0x4, ROLLBACK = 0xC };

typedef struct { Text topic; int queue_id; uint32_t head; int64_t first, next; Buffer entries; } Place;

typedef struct {
    Text data;
    int64_t base, last_ms;
    int indexed, count, last;
    Buffer keys;
    Place places[PLACES_MAX];
} Walk;

typedef struct { Text topic, properties; int queue_id; uint32_t flags; int64_t number, store_ms; } Found;

/* The size of what looks like a record here; 0: none begins, or it is not whole. */
static Py_ssize_t record_size(Text data, Py_ssize_t at) {
    if (data.size - at < RECORD_MIN) return 0;
    int64_t size = (int32_t)get32(data.at + at);
    uint32_t magic = get32(data.at + at + 4);
    return (magic == MAGIC_V1 || magic == MAGIC_V2) && size >= RECORD_MIN && size <= data.size - at ? size : 0;
}

static int is_topic(Text topic) { /* scan.TOPIC; the broker's own two carry times in place of tags */
    if (topic.size < 1 || topic.size > 255 || IS(topic, ".") || IS(topic, "..")) return 0;
    for (Py_ssize_t i = 0; i < topic.size; i++)
        if (topic.at[i] < '!' || topic.at[i] > '~' || topic.at[i] == '/') return 0;
    return !IS(topic, "SCHEDULE_TOPIC_XXXX") && !IS(topic, "rmq_sys_wheel_timer");
}

/* derive.read of one. LEAVE: something is wrong with it. */
static int read_record(const byte *at, Py_ssize_t size, int64_t offset, Found *found) {
    found->flags = get32(at + SYS_FLAG_AT);
    const byte *end = at + size, *stored = at + 56 + (found->flags & 0x10 ? LONGER_V6 : 0);
    const byte *body = stored + BODY_AT - 56 + (found->flags & 0x20 ? LONGER_V6 : 0);
    if (end - body < 3) return LEAVE;
    int64_t body_size = (int32_t)get32(body - 4), number = (int64_t)get64(at + QUEUE_OFFSET_AT), queue_id = (int32_t)get32(at + 12);
    if (body_size < 0 || body_size > end - body - 3) return LEAVE;
    const byte *topic = body + body_size;
    Py_ssize_t topic_size = *topic++;
    if (get32(at + 4) == MAGIC_V2) topic_size = topic_size << 8 | *topic++;
    if (end - topic < topic_size + 2) return LEAVE;
    found->topic = (Text){topic, topic_size};
    found->properties = (Text){topic + topic_size + 2, end - topic - topic_size - 2};
    if (get16(topic + topic_size) != found->properties.size || !is_topic(found->topic)) return LEAVE;
    if ((int64_t)get64(at + 28) != offset || number < 0 || number == INT64_MAX || queue_id < 0 || queue_id > QUEUE_ID_MAX) return LEAVE;
    if (body_size && (crc32_of((Text){body, body_size}) & 0x7FFFFFFF) != get32(at + 8)) return LEAVE; /* upstream stores 0 for an empty body */
    found->number = number, found->queue_id = (int)queue_id, found->store_ms = (int64_t)get64(stored);
    return PLAIN;
}

/* Where it belongs, among those that were seen. NULL: they are too many. */
static Place *place_of(Walk *walk, const Found *found) {
    for (int i = 0; i < walk->count; i++) {
        int at = walk->last + i < walk->count ? walk->last + i : walk->last + i - walk->count;
        Place *one = &walk->places[at];
        if (one->queue_id == found->queue_id && same(one->topic, found->topic)) { walk->last = at; return one; }
    }
    if (walk->count == PLACES_MAX) return NULL;
    Place *fresh = &walk->places[walk->count];
    *fresh = (Place){found->topic, found->queue_id, key_head(found->topic), -1, -1, {NULL, 0, 0}};
    walk->last = walk->count++;
    return fresh;
}

static int take_record(Walk *walk, Py_ssize_t at, Py_ssize_t size) {
    Found found;
    Derived derived;
    int64_t offset = walk->base + at;
    if (!read_record(walk->data.at + at, size, offset, &found) || !derive(found.properties, &derived) || found.store_ms < walk->last_ms) return LEAVE;
    walk->last_ms = found.store_ms;
    uint32_t kind = found.flags & TRANSACTION;
    Place *place = place_of(walk, &found);
    if (!place) return LEAVE;
    if (kind != PREPARED && kind != ROLLBACK) {
        if (place->first < 0) place->first = place->next = found.number;
        if (found.number != place->next) return LEAVE;
        if (reserve(&place->entries, ENTRY)) return FAILED;
        add_entry(&place->entries, offset, size, tag_hash(&derived));
        place->next++;
    }
    return walk->indexed && kind != ROLLBACK && add_keys(&walk->keys, place->head, &derived, offset, found.store_ms) ? FAILED : PLAIN;
}

static PyObject *derived_groups(const Walk *walk) {
    PyObject *groups = PyList_New(0);
    for (int i = 0; groups && i < walk->count; i++) {
        const Place *one = &walk->places[i];
        if (one->first < 0) continue; /* only messages that no queue has */
        PyObject *row = Py_BuildValue("(s#iLN)", one->topic.at, one->topic.size, one->queue_id, (long long)one->first, buffer_bytes(&one->entries));
        if (!row || PyList_Append(groups, row)) Py_CLEAR(groups);
        Py_XDECREF(row);
    }
    return groups;
}

/* derive_run(data, where it stands in the log, whether heads stand before records, the last store time before it, whether keys are wanted)
   -> (bytes, records, last store time, [(topic, queue id, first number, entries)], index keys) or None */
PyObject *derive_run(PyObject *Py_UNUSED(module), PyObject *args) {
    Walk walk;
    int with_heads, state = PLAIN;
    walk.count = walk.last = 0;
    walk.keys = (Buffer){NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "y#LpLp:derive_run", TEXT(walk.data), &walk.base, &with_heads, &walk.last_ms, &walk.indexed)) return NULL;
    Py_ssize_t at = 0, lead = with_heads ? HEAD : 0, size, records = 0;
    for (; walk.data.size - at > lead && (size = record_size(walk.data, at + lead)); at += lead + size, records++) {
        if (lead && (get32(walk.data.at + at) != 1 || (int64_t)get32(walk.data.at + at + 4) != lead + size)) break;
        if ((state = take_record(&walk, at + lead, size)) != PLAIN) break;
    }
    PyObject *result = NULL;
    if (state == LEAVE || !records) result = Py_NewRef(Py_None);
    else if (state == PLAIN) {
        PyObject *groups = derived_groups(&walk);
        if (groups) result = Py_BuildValue("(nnLNN)", at, records, (long long)walk.last_ms, groups, buffer_bytes(&walk.keys));
    }
    for (int i = 0; i < walk.count; i++) PyMem_Free(walk.places[i].entries.at);
    PyMem_Free(walk.keys.at);
    if (state == FAILED) Py_CLEAR(result);
    return result;
}
