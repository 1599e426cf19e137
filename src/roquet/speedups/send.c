/* Plain sends, as broker/plain_send.py takes them: frames of one read -> records, queue entries, index keys and answers.
   Nothing is decided here that Python does not decide too. A request that is not exactly what clients send all day is left where it is,
   and Python takes it: an unknown property, an odd number, the end of a log file. So the rule for every check is: when in doubt,
   `return LEAVE`. No state is kept between calls, and no Python object is changed: the caller applies what it gets. */

#include <stddef.h>

#include "derived.h"
#include "json.h"

enum { CODE_LONG = 10 /* fields have long names */, CODE_SEND = 310, CODE_BATCH = 320 /* it is field m that makes a batch */, ONEWAY = 2 };
enum { KEPT_FLAGS = 0x703, PREPARED = 4 /* says what TRAN_MSG says, too */ };
enum { MESSAGES_MAX = 65536 /* of one batch */, QUEUES_MAX = 64 /* of one run */, FIXED = 7 /* texts that are the same for all */ };
enum { ITEMS_MAX = 32 /* properties */, ASKED_MAX = 32 /* bytes of one that asks to go elsewhere first */, DIVERSION_ROOM = 2048 };
enum { FRONT = 72 /* bytes of a record before its body, without its hosts */, INNER = 22 /* of a message in a batch, without its texts */ };

/* ---- a send as it came ---------------------------------------------------------------------------------------------- */

typedef struct { /* what a record holds besides its place and its properties */
    Text body, born_host, store_host;
    int64_t sys_flag, born_ms, user_flag, consumed, prepared;
} Message;

typedef struct {
    int binary, oneway, batch;
    int64_t opaque;
    Text topic, queue, properties;
    Message message;
} Send;

enum { FIELDS = 13 /* a to m; others do not matter to a send */ };
typedef struct { Text field[FIELDS]; uint32_t bare; } Fields; /* bare: which were no text in JSON, the first is bit 0 */

#define FIELD(fields, letter) ((fields)->field[(letter) - 'a'])

/* LEAVE: it is null or there twice, or a letter stands among long names. */
static int set_field(Fields *fields, int64_t code, Text name, Text value, int bare) {
    static const Text LONG[FIELDS] = {
        LITERAL("producerGroup"), LITERAL("topic"), LITERAL("defaultTopic"), LITERAL("defaultTopicQueueNums"), LITERAL("queueId"),
        LITERAL("sysFlag"), LITERAL("bornTimestamp"), LITERAL("flag"), LITERAL("properties"), LITERAL("reconsumeTimes"),
        LITERAL("unitMode"), LITERAL("maxReconsumeTimes"), LITERAL("batch"),
    };
    int at = name.size == 1 && name.at[0] >= 'a' && name.at[0] <= 'm' ? name.at[0] - 'a' : -1;
    if (code == CODE_LONG) at = at < 0 ? place_among(LONG, FIELDS, name) : FIELDS;
    if (at == FIELDS) return LEAVE;
    if (at < 0) return PLAIN;
    if (!value.at || fields->field[at].at) return LEAVE;
    fields->field[at] = value;
    fields->bare |= (uint32_t)bare << at;
    return PLAIN;
}

static int is_code(int64_t code) { return code == CODE_SEND || code == CODE_BATCH || code == CODE_LONG; }

/* PlainSends._stage's checks of the fields, in one place for both forms. */
static int read_fields(const Fields *fields, Send *send) {
    int64_t unused;
    Message *message = &send->message;
    for (int letter = 'a'; letter <= 'h'; letter++)
        if (!FIELD(fields, letter).at) return LEAVE;
    if (fields->bare && !(fields->bare >> ('e' - 'a') & 1)) return LEAVE; /* Python makes all of them texts when the queue is none */
    send->topic = FIELD(fields, 'b'), send->queue = FIELD(fields, 'e'), send->properties = FIELD(fields, 'i');
    if (send->properties.size && send->properties.at[send->properties.size - 1] == 2) send->properties.size--; /* so 5.x ends them */
    if (!number_of(FIELD(fields, 'd'), &unused) || !number_of(FIELD(fields, 'f'), &message->sys_flag)) return LEAVE;
    if (!number_of(FIELD(fields, 'g'), &message->born_ms) || !integer_of(FIELD(fields, 'h'), &message->user_flag)) return LEAVE;
    if (FIELD(fields, 'j').at && !number_of(FIELD(fields, 'j'), &message->consumed)) return LEAVE;
    if (FIELD(fields, 'l').at && !number_of(FIELD(fields, 'l'), &unused)) return LEAVE;
    if (message->sys_flag & ~(int64_t)(KEPT_FLAGS | PREPARED)) return LEAVE;
    if (message->user_flag != (int32_t)message->user_flag || message->consumed > INT32_MAX) return LEAVE;
    message->sys_flag &= KEPT_FLAGS;
    send->batch = FIELD(fields, 'm').at && !IS(FIELD(fields, 'm'), "false");
    return !send->batch || (IS(FIELD(fields, 'm'), "true") && !message->consumed);
}

static int json_fields(Json *json, int64_t code, Fields *fields) {
    if (!json_mark(json, '{')) return LEAVE;
    *fields = (Fields){.bare = 0};
    do {
        Text name, value;
        if (!json_string(json, &name) || !json_mark(json, ':')) return LEAVE;
        int bare = json->at < json->end && *json->at != '"';
        if (!json_value(json, &value) || !set_field(fields, code, name, value, bare)) return LEAVE;
    } while (json_mark(json, ','));
    return json_mark(json, '}');
}

/* The code stands before the fields, as all clients write it. Of two opaques, flags or extFields the later counts, as in Python. */
static int read_json(Text header, Buffer *scratch, Send *send) {
    Json json = {header.at, header.at + header.size, scratch};
    Fields fields;
    int64_t code = 0, flag = 0;
    scratch->size = 0, send->opaque = INT64_MAX, FIELD(&fields, 'a').at = NULL; /* none yet */
    if (reserve(scratch, header.size)) return FAILED;
    if (!json_mark(&json, '{')) return LEAVE;
    do {
        Text name;
        if (!json_string(&json, &name) || !json_mark(&json, ':')) return LEAVE;
        if (IS(name, "code")) {
            if (code || !json_integer(&json, &code) || !is_code(code)) return LEAVE;
        } else if (IS(name, "opaque")) {
            if (!json_integer(&json, &send->opaque)) return LEAVE;
        } else if (IS(name, "flag")) {
            if (!json_integer(&json, &flag)) return LEAVE;
        } else if (IS(name, "extFields")) {
            if (!code || !json_fields(&json, code, &fields)) return LEAVE;
        } else if (!json_skip(&json)) return LEAVE;
    } while (json_mark(&json, ','));
    if (!json_mark(&json, '}') || json.at != json.end) return LEAVE;
    if ((flag && flag != ONEWAY) || send->opaque != (int32_t)send->opaque) return LEAVE;
    send->oneway = flag == ONEWAY;
    return read_fields(&fields, send);
}

static int read_binary(Text header, Send *send) {
    const byte *at = header.at, *end = at + header.size;
    Fields fields = {.bare = 0};
    if (header.size < 21 || get32(at + 17) != (uint32_t)(header.size - 21)) return LEAVE;
    int code = get16(at);
    uint32_t flag = get32(at + 9);
    if (!is_code(code) || (flag && flag != ONEWAY) || get32(at + 13) /* a remark */) return LEAVE;
    send->opaque = (int32_t)get32(at + 5);
    at += 21;
    while (at < end) {
        if (end - at < 6) return LEAVE;
        Text name = {at + 2, get16(at)};
        if (name.size > 32767 || name.size > end - at - 6) return LEAVE;
        Text value = {name.at + name.size + 4, get32(name.at + name.size)};
        if (value.size > end - value.at) return LEAVE;
        at = value.at + value.size;
        if (!value.size) continue; /* as upstream: empty is absent */
        if (!(name.size == 1 ? *name.at < 0x80 : is_utf8(name)) || !is_utf8(value) || !set_field(&fields, code, name, value, 0)) return LEAVE;
    }
    send->binary = 1, send->oneway = flag == ONEWAY;
    return read_fields(&fields, send);
}

/* ---- what becomes of it -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *queue; /* the ConsumeQueue */
    PyObject *field; /* its topic_field: size and topic, as a record has them */
    Text topic, name; /* as sends spell them: the topic inside `field`, the queue's id in `digits` */
    byte digits[24];
    uint32_t head; /* hash of "topic#" */
    int32_t queue_id, may_be_named; /* may_be_named: a send may name it; else messages only go there for now */
    int64_t first, next; /* the number of the first message that the run puts there, and of the next one */
    Buffer entries;
} Queue;

typedef struct { /* what Python says of sends to a topic that ask for this */
    Text topic, asked, stored;
    byte kept[ASKED_MAX]; /* of `asked` */
    PyObject *answer;
    Queue *place;
    Due due;
} Diverted;

typedef struct {
    PyObject *doors, *diversions, *door; /* the last one, of the topic that `behind` is a queue of */
    Queue *behind;
    Diverted diverted; /* the last one: most are alike */
    union { Text fixed[FIXED]; struct { Text added, store_host, host_id, json_back, binary_front, binary_back, lead; }; };
    Text born_host;
    Py_ssize_t body_max;
    int64_t end, room, now_ms;
    Buffer records, answers, keys, scratch;
    int count, last, full;
    Py_ssize_t sends;
    Queue queues[QUEUES_MAX]; /* the last one: it is not cleared as a whole */
} Run;

/* This queue among those that the run has seen, of which it is one from now on. `beside`: another one of its topic, or NULL. */
static int queue_of(Run *run, PyObject *queue, const Queue *beside, Queue **found) {
    static PyObject *names[3];
    for (int i = 0; i < run->count; i++)
        if (run->queues[i].queue == queue) { *found = &run->queues[i]; return PLAIN; }
    if (run->count == QUEUES_MAX) { run->full = 1; return LEAVE; }
    int64_t id = get_number(queue, &names[0], "queue_id"), next = id < 0 ? -1 : get_number(queue, &names[1], "next");
    PyObject *field = PyErr_Occurred() ? NULL : beside ? Py_NewRef(beside->field) : get(queue, &names[2], "topic_field");
    if (!field || bytes_text(field).size < 1) { Py_XDECREF(field); return PyErr_Occurred() ? FAILED : LEAVE; }
    Queue *fresh = *found = &run->queues[run->count];
    *fresh = (Queue){.field = field, .queue_id = (int32_t)id, .first = next, .next = next};
    fresh->queue = Py_NewRef(queue), fresh->name = (Text){fresh->digits, add_number(fresh->digits, fresh->queue_id) - fresh->digits};
    fresh->topic = (Text){(const byte *)PyBytes_AS_STRING(field) + 1, PyBytes_GET_SIZE(field) - 1};
    fresh->head = beside ? beside->head : key_head(fresh->topic);
    run->last = run->count++;
    return PLAIN;
}

/* The queue that a send names. Looked up in Python once a run, then found among the few that this run has seen. */
static int find_queue(Run *run, const Send *send, Queue **found) {
    for (int i = 0, at = run->last; i < run->count; i++, at = at + 1 < run->count ? at + 1 : 0) {
        *found = &run->queues[run->last = at];
        if ((*found)->may_be_named && same((*found)->name, send->queue) && same((*found)->topic, send->topic)) return PLAIN;
    }
    const Queue *beside = run->door && same(run->behind->topic, send->topic) ? run->behind : NULL;
    if (!beside) {
        PyObject *topic = PyUnicode_DecodeUTF8((const char *)send->topic.at, send->topic.size, NULL);
        Py_XSETREF(run->door, Py_XNewRef(topic ? PyDict_GetItemWithError(run->doors, topic) : NULL));
        Py_XDECREF(topic);
    }
    PyObject *name = run->door ? PyUnicode_DecodeUTF8((const char *)send->queue.at, send->queue.size, NULL) : NULL;
    PyObject *queue = name ? PyObject_GetItem(run->door, name) : NULL; /* fills itself at first use */
    int state = queue ? queue_of(run, queue, beside, found) : LEAVE;
    Py_XDECREF(name), Py_XDECREF(queue);
    if (state == PLAIN) { run->behind = *found, (*found)->may_be_named = 1; return PLAIN; }
    Py_CLEAR(run->door);
    if (PyErr_Occurred() && (PyErr_ExceptionMatches(PyExc_KeyError) || PyErr_ExceptionMatches(PyExc_ValueError))) PyErr_Clear();
    return PyErr_Occurred() ? FAILED : LEAVE;
}

static const Text UNUSUAL[] = { /* send_properties.UNUSUAL; the first four are not SPECIAL */
    LITERAL("WAIT"), LITERAL("CLUSTER"), LITERAL("MSG_REGION"), LITERAL("TRACE_ON"), LITERAL("DELAY"), LITERAL("TRAN_MSG"),
    LITERAL("TIMER_DELIVER_MS"), LITERAL("TIMER_DELAY_SEC"), LITERAL("TIMER_DELAY_MS"), LITERAL("__STARTDELIVERTIME"),
    LITERAL("TIMER_DEL_UNIQKEY"), LITERAL("INNER_MULTI_DISPATCH"),
};
enum { UNUSUAL_COUNT = 12, SPECIAL_FIRST = 4 };

/* send_properties.may_ask_for_more: the name of a SPECIAL one stands before some separator, whatever stands before the name. */
static int may_ask_for_more(Text text) {
    const byte *at = text.at, *end = at + text.size;
    for (const byte *mark; at < end && (mark = memchr(at, 1, end - at)); at = mark + 1)
        for (int i = SPECIAL_FIRST; i < UNUSUAL_COUNT; i++)
            if (mark - text.at >= UNUSUAL[i].size && mark[-1] == UNUSUAL[i].at[UNUSUAL[i].size - 1]
                && !memcmp(mark - UNUSUAL[i].size, UNUSUAL[i].at, UNUSUAL[i].size)) return 1;
    return 0;
}

/* One more property behind those from `begin` on. */
static byte *add_item(const byte *begin, byte *to, Text item) {
    if (to > begin && to[-1] != 2) *to++ = 2;
    return add_text(to, item);
}

/* Copies the properties of a single send that are stored, what the broker adds last, to `to`. Returns their size, -1 for LEAVE. */
static Py_ssize_t keep_properties(const Run *run, Text text, byte *to, Derived *derived) {
    byte *begin = to;
    Item item;
    memset(derived, 0, sizeof *derived);
    if (has(text, 0)) return -1;
    if (!text.size) text.size = -1; /* none at all */
    while (next_item(&text, &item)) {
        if (!item.value.size) return -1;
        if (IS(item.all, "WAIT\1true")) continue;
        Text *part = part_of(derived, item.name);
        if (part) {
            if (part->size) return -1;
            *part = item.value;
        } else if (IS(item.name, "DELAY") || IS(item.name, "TRAN_MSG")) {
            if (derived->asked.name.size) return -1;
            derived->asked = item;
        } else if (place_among(UNUSUAL, UNUSUAL_COUNT, item.name) >= 0) return -1;
        to = add_item(begin, to, item.all);
    }
    to = add_item(begin, to, run->added);
    return to - begin <= PROPERTIES_MAX ? to - begin : -1;
}

static Due read_due(PyObject *due) { return due == Py_None ? (Due){0, 0} : (Due){PyLong_AsLongLong(due), 1}; }

/* What Python says of a send that asks for this (plain_send.PlainDiversion): where it goes first, and how that is stored. */
static int ask_where(Run *run, Text topic, Item asked) {
    Diverted *last = &run->diverted;
    if (last->place && same(last->topic, topic) && same(last->asked, asked.all)) return PLAIN;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)asked.name.at, asked.name.size, NULL), *queue, *due;
    PyObject *door = name ? PyDict_GetItemWithError(run->diversions, name) : NULL;
    PyObject *found = door && asked.all.size <= ASKED_MAX
        ? PyObject_CallFunction(door, "s#s#", topic.at, topic.size, asked.value.at, asked.value.size) : NULL;
    Py_XDECREF(name);
    Py_XSETREF(last->answer, found); /* it holds the queue and the text */
    last->place = NULL;
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear(); /* it says so to Python once more */
    if (!found || found == Py_None) return PyErr_Occurred() ? FAILED : LEAVE;
    if (!PyArg_ParseTuple(found, "Os#O", &queue, TEXT(last->stored), &due)) return FAILED;
    last->due = read_due(due);
    if (PyErr_Occurred()) return FAILED;
    last->topic = topic, last->asked = (Text){last->kept, asked.all.size};
    memcpy(last->kept, asked.all.at, asked.all.size);
    return queue_of(run, queue, NULL, &last->place);
}

/* Properties that read and write as the same text: how many. -1: one has no name, no value or another's name, or they are too many. */
static int read_items(Text text, Text *names, Item *items) {
    int count = 0;
    if (!text.size) return 0;
    for (Item item; next_item(&text, &item); count++) {
        if (count == ITEMS_MAX || !item.name.size || !item.value.size || place_among(names, count, item.name) >= 0) return -1;
        names[count] = item.name, items[count] = item;
    }
    return count;
}

/* PlainSends._divert: all properties, where it belongs behind them. Returns their size, -1 for LEAVE. */
static Py_ssize_t divert(const Run *run, const Queue *queue, Text text, byte *to, Derived *derived) {
    static const Text NOT_WITH_IT[] = {LITERAL("REAL_TOPIC"), LITERAL("REAL_QID"), LITERAL("TRAN_PREPARED_QUEUE_OFFSET")};
    Text names[ITEMS_MAX];
    Item items[ITEMS_MAX];
    byte *begin = to;
    int count = 4 * text.size + DIVERSION_ROOM > PROPERTIES_MAX ? -1 : read_items(text, names, items);
    for (int i = 0; i < 3; i++)
        if (count < 0 || place_among(names, count, NOT_WITH_IT[i]) >= 0) return -1;
    for (int i = 0; i < count; i++) {
        int asks = same(names[i], derived->asked.name);
        to = add_item(begin, to, asks ? (Text){names[i].at, names[i].size + 1} : items[i].all);
        if (asks) to = add_text(to, run->diverted.stored);
    }
    to = add_item(begin, to, run->added);
    to = add_text(add_item(begin, to, LITERAL("REAL_TOPIC\1")), queue->topic);
    to = add_text(add_item(begin, to, LITERAL("REAL_QID\1")), queue->name);
    derived->due = run->diverted.due;
    return to - begin <= PROPERTIES_MAX ? to - begin : -1;
}

/* What stands before the properties of a record, with its lead. */
static Py_ssize_t before_properties(const Run *run, const Queue *queue, const Message *message) {
    Py_ssize_t hosts = message->born_host.size + message->store_host.size;
    return run->lead.size + FRONT + hosts + message->body.size + PyBytes_GET_SIZE(queue->field) + 2;
}

/* Room for a record whose properties take at most this much; where they will stand. */
static byte *reserve_record(Run *run, const Queue *queue, const Message *message, Py_ssize_t properties) {
    Py_ssize_t before = before_properties(run, queue, message);
    return reserve(&run->records, before + properties) ? NULL : run->records.at + run->records.size + before;
}

/* Staging.put_derived, when body and properties are known to fit: everything of the record but its properties, which are there already;
   the entry and the keys. LEAVE: the file is full. */
static int finish_record(Run *run, Queue *queue, const Message *message, Py_ssize_t kept, const Derived *derived) {
    Text body = message->body;
    Py_ssize_t all = before_properties(run, queue, message) + kept, size = all - run->lead.size;
    int64_t offset = run->end + run->lead.size, flags = message->sys_flag;
    if (all > run->room) return LEAVE; /* Python begins the next file */
    if (reserve(&queue->entries, ENTRY) || add_keys(&run->keys, queue->head, derived, offset, run->now_ms)) return FAILED;
    flags |= (message->born_host.size == 20 ? 0x10 : 0) | (message->store_host.size == 20 ? 0x20 : 0);
    byte *record = add_text(run->records.at + run->records.size, run->lead);
    put32(record, (uint32_t)size), put32(record + 4, MAGIC_V1), put32(record + 8, crc32_of(body) & 0x7FFFFFFF);
    put32(record + 12, (uint32_t)queue->queue_id), put32(record + 16, (uint32_t)message->user_flag);
    put64(record + QUEUE_OFFSET_AT, (uint64_t)queue->next);
    put64(record + 28, (uint64_t)offset), put32(record + 36, (uint32_t)flags), put64(record + 40, (uint64_t)message->born_ms);
    byte *field = add_text(record + 48, message->born_host);
    put64(field, (uint64_t)run->now_ms);
    field = add_text(field + 8, message->store_host);
    put32(field, (uint32_t)message->consumed), put64(field + 4, (uint64_t)message->prepared), put32(field + 12, (uint32_t)body.size);
    field = add_text(add_text(field + 16, body), bytes_text(queue->field));
    put16(field, (uint16_t)kept);

    add_entry(&queue->entries, offset, size, derived->due.is_timed ? derived->due.at : tag_hash(derived));
    queue->next++;
    run->records.size += all, run->end += all, run->room -= all;
    return PLAIN;
}

/* Message ids of the last so many entries of this queue. */
static byte *add_ids(const Run *run, byte *to, const Queue *place, Py_ssize_t count) {
    const byte *end = place->entries.at + place->entries.size;
    for (const byte *entry = end - count * ENTRY; entry < end; entry += ENTRY) {
        to = add_hex16(add_text(to, run->host_id), get64(entry));
        *to++ = ',';
    }
    return to - 1;
}

/* To a send to `queue` whose messages are the last so many of `place`. */
static int answer(Run *run, const Send *send, const Queue *queue, const Queue *place, Py_ssize_t count) {
    run->sends++;
    if (send->oneway) return PLAIN;
    Py_ssize_t ids = count * (run->host_id.size + 17);
    if (reserve(&run->answers, 256 + ids + run->json_back.size + run->binary_back.size)) return FAILED;
    byte *start = run->answers.at + run->answers.size, *to = start + 8, digits[24];
    Text first = {digits, add_number(digits, place->next - count) - digits};
    if (!send->binary) {
        to = add_ids(run, add_text(to, LITERAL("{\"code\":0,\"extFields\":{\"msgId\":\"")), place, count);
        to = add_text(add_text(to, LITERAL("\",\"queueId\":\"")), queue->name);
        to = add_text(add_text(to, LITERAL("\",\"queueOffset\":\"")), first);
        to = add_number(add_text(to, run->json_back), send->opaque);
        *to++ = '}';
    } else { /* code, language, version; opaque; flag; remark; fields */
        to = add_text(to, run->binary_front);
        put32(to, (uint32_t)send->opaque);
        byte *fields = add_text(to + 4, LITERAL("\0\0\0\1\0\0\0\0"));
        to = add_text(fields + 4, LITERAL("\0\5msgId"));
        put32(to, (uint32_t)(ids - 1));
        to = add_ids(run, to + 4, place, count);
        to = add_text(to, LITERAL("\0\7queueId")), put32(to, (uint32_t)queue->name.size), to = add_text(to + 4, queue->name);
        to = add_text(to, LITERAL("\0\13queueOffset")), put32(to, (uint32_t)first.size), to = add_text(to + 4, first);
        to = add_text(to, run->binary_back);
        put32(fields, (uint32_t)(to - fields - 4));
    }
    put32(start, (uint32_t)(to - start - 4)), put32(start + 4, (uint32_t)send->binary << 24 | (uint32_t)(to - start - 8));
    run->answers.size += to - start;
    return PLAIN;
}

static int put_single(Run *run, const Send *send, Queue *queue) {
    Derived derived;
    Queue *place = queue;
    Text text = send->properties;
    byte *properties = reserve_record(run, queue, &send->message, text.size + 1 + run->added.size);
    if (!properties) return FAILED;
    Py_ssize_t kept = keep_properties(run, text, properties, &derived);
    if (kept >= 0 && derived.asked.name.size) {
        int state = ask_where(run, queue->topic, derived.asked);
        if (state != PLAIN) return state;
        place = run->diverted.place;
        Py_ssize_t more = sizeof "..REAL_TOPIC..REAL_QID." + queue->topic.size + queue->name.size + run->diverted.stored.size;
        properties = reserve_record(run, place, &send->message, text.size + run->added.size + more);
        if (!properties) return FAILED;
        kept = divert(run, queue, text, properties, &derived);
    }
    int state = kept < 0 ? LEAVE : finish_record(run, place, &send->message, kept, &derived);
    return state == PLAIN ? answer(run, send, queue, place, 1) : state;
}

/* What a batch's own properties add to those of each message. Only what clients send is known here: WAIT, and from 5.x a unique key. */
typedef struct { Text all, wait, unique; } Suffix;

static int read_suffix(Text text, Suffix *suffix) {
    Item item;
    *suffix = (Suffix){.all = text};
    while (text.size > 0 && next_item(&text, &item)) {
        if (IS(item.all, "WAIT\1true") && !suffix->wait.size) suffix->wait = item.all;
        else if (IS(item.name, "UNIQ_KEY") && item.value.size && !suffix->unique.size) suffix->unique = item.value;
        else return LEAVE;
    }
    return !has(suffix->unique, 0) && !has(suffix->unique, 1);
}

/* One message of a batch, batches.messages_of. */
static int put_inner(Run *run, const Message *message, Queue *queue, const Suffix *suffix, Text text) {
    Derived derived;
    if (!derive(text, &derived) || may_ask_for_more(text)) return LEAVE;
    byte *begin = reserve_record(run, queue, message, text.size + suffix->all.size + 2 + run->added.size);
    if (!begin) return FAILED;
    byte *to = add_item(begin, add_text(begin, text), derived.unique.size ? suffix->wait : suffix->all); /* its own key counts */
    to = add_item(begin, to, run->added);
    if (!derived.unique.size) derived.unique = suffix->unique;
    return to - begin > PROPERTIES_MAX ? LEAVE : finish_record(run, queue, message, to - begin, &derived);
}

/* How many; LEAVE or FAILED. */
static Py_ssize_t put_inners(Run *run, const Send *send, Queue *queue, const Suffix *suffix) {
    Message message = send->message;
    const byte *at = message.body.at, *end = at + message.body.size;
    Py_ssize_t count = 0;
    for (; at < end; count++) {
        if (end - at < INNER || count == MESSAGES_MAX) return LEAVE;
        int64_t size = (int32_t)get32(at), body_size = (int32_t)get32(at + 16);
        if (size < INNER || size > end - at || body_size < 0 || body_size > size - INNER) return LEAVE;
        Text text = {at + INNER + body_size, size - INNER - body_size};
        if (get16(at + 20 + body_size) != text.size || text.size > PROPERTIES_MAX) return LEAVE;
        message.body = (Text){at + 20, body_size};
        message.user_flag = (int32_t)get32(at + 12);
        int state = put_inner(run, &message, queue, suffix, text);
        if (state != PLAIN) return state;
        at += size;
    }
    return count;
}

/* All of it or nothing. */
static int put_batch(Run *run, const Send *send, Queue *queue) {
    Suffix suffix;
    int64_t next = queue->next, end = run->end, room = run->room;
    Py_ssize_t records = run->records.size, keys = run->keys.size, entries = queue->entries.size;
    if (!read_suffix(send->properties, &suffix)) return LEAVE;
    Py_ssize_t state = put_inners(run, send, queue, &suffix);
    if (state > 0) state = answer(run, send, queue, queue, state);
    if (state > 0) return PLAIN;
    queue->next = next, queue->entries.size = entries;
    run->end = end, run->room = room, run->records.size = records, run->keys.size = keys;
    return (int)state;
}

static int take_frame(Run *run, PyObject *frame) {
    Send send = {.message = {.born_host = run->born_host, .store_host = run->store_host}};
    long form;
    Text header;
    if (frame_parts(frame, &form, &header, &send.message.body)) return FAILED;
    int state = form ? read_binary(header, &send) : read_json(header, &run->scratch, &send);
    if (state != PLAIN || send.message.body.size > run->body_max) return state == FAILED ? FAILED : LEAVE;
    Queue *queue;
    state = find_queue(run, &send, &queue);
    if (state != PLAIN) return state;
    return send.batch ? put_batch(run, &send, queue) : put_single(run, &send, queue);
}

static PyObject *staged_row(const Queue *one, PyObject *end) {
    PyObject *first = PyLong_FromLongLong(one->first), *next = PyLong_FromLongLong(one->next);
    PyObject *row = first && next ? PyTuple_Pack(4, one->queue, first, next, end) : NULL;
    Py_XDECREF(first), Py_XDECREF(next);
    return row;
}

/* What the caller gets, and the end of the run. `told`: what was answered, which is taken over; NULL: the exception is set. */
static PyObject *results(Run *run, Py_ssize_t at, PyObject *told) {
    PyObject *end = told ? PyLong_FromLongLong(run->end) : NULL, *staged = end ? PyList_New(0) : NULL, *result = NULL;
    PyObject *tails = staged ? PyList_New(0) : NULL;
    for (int i = 0; i < run->count; i++) {
        Queue *one = &run->queues[i];
        if (tails && one->entries.size /* else it was seen, and then the send was left */
            && (append(staged, staged_row(one, end)) || append(tails, buffer_bytes(&one->entries)))) Py_CLEAR(tails);
        Py_DECREF(one->queue), Py_DECREF(one->field), PyMem_Free(one->entries.at);
    }
    if (tails)
        result = Py_BuildValue("(niNOOON)", at, run->full, buffer_bytes(&run->records), told, staged, tails, buffer_bytes(&run->keys));
    Py_XDECREF(end), Py_XDECREF(staged), Py_XDECREF(tails), Py_XDECREF(told), Py_XDECREF(run->diverted.answer), Py_XDECREF(run->door);
    PyMem_Free(run->records.at), PyMem_Free(run->answers.at), PyMem_Free(run->keys.at), PyMem_Free(run->scratch.at);
    return result;
}

/* The frames of one read from `*at` on; `told` gets (how many were taken, the answers to them). */
static int take_read(Run *run, PyObject *read, Py_ssize_t *at, PyObject *told) {
    static PyObject *name;
    int state = PLAIN;
    Py_ssize_t sends = run->sends, answers = run->answers.size;
    if (!PyTuple_Check(read) || PyTuple_GET_SIZE(read) != 2) return wrong_type("a read is (peer, frames)");
    PyObject *host = get(PyTuple_GET_ITEM(read, 0), &name, "host"), *frames = PyTuple_GET_ITEM(read, 1);
    if (!host) return FAILED;
    run->born_host = bytes_text(host);
    if (!run->born_host.at || !PyList_Check(frames)) state = wrong_type("frames are a list, a host is bytes");
    while (state == PLAIN && *at < PyList_GET_SIZE(frames)) {
        PyObject *frame = Py_NewRef(PyList_GET_ITEM(frames, *at));
        *at += (state = take_frame(run, frame)) == PLAIN;
        Py_DECREF(frame);
    }
    Py_DECREF(host);
    if (state == FAILED) return FAILED;
    PyObject *fresh = PyBytes_FromStringAndSize((const char *)run->answers.at + answers, run->answers.size - answers);
    return append(told, Py_BuildValue("(nN)", run->sends - sends, fresh)) ? FAILED : state;
}

PyObject *take_sends(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run;
    PyObject *reads, *fixed;
    Py_ssize_t at;
    memset(&run, 0, offsetof(Run, queues));
    if (!PyArg_ParseTuple(args, "O!nO!O!O!nLLL:take_sends", &PyList_Type, &reads, &at, &PyDict_Type, &run.doors, &PyDict_Type,
            &run.diversions, &PyTuple_Type, &fixed, &run.body_max, &run.end, &run.room, &run.now_ms)) return NULL;
    for (int i = 0; i < FIXED && i < PyTuple_GET_SIZE(fixed); i++) run.fixed[i] = bytes_text(PyTuple_GET_ITEM(fixed, i));
    if (PyErr_Occurred() || run.binary_front.size != 5 || !run.lead.at || at < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "of seven texts the fifth has five bytes, %zd is no frame", at);
    PyObject *told = PyList_New(0);
    int state = told ? PLAIN : FAILED;
    for (Py_ssize_t i = 0; state == PLAIN && i < PyList_GET_SIZE(reads); i++) {
        if (i) at = 0;
        state = take_read(&run, PyList_GET_ITEM(reads, i), &at, told);
    }
    if (state == FAILED) Py_CLEAR(told);
    return results(&run, at, told);
}

/* ---- messages that Python has decided on: Staging.put_derived of each -------------------------------------------------- */

static int put_row(Run *run, PyObject *row) {
    Message message;
    Derived derived;
    Text text, kept;
    Queue *queue;
    PyObject *object, *tag;
    if (!PyArg_ParseTuple(row, "Oy#OLLLy#", &object, TEXT(text), &tag, &message.sys_flag, &message.consumed, &message.prepared,
            TEXT(kept))) return FAILED;
    if (message.sys_flag != (int32_t)message.sys_flag || message.consumed != (int32_t)message.consumed) return LEAVE;
    if (message.sys_flag & PREPARED /* no queue has it */ || kept.size < BODY_AT || kept.at[SYS_FLAG_AT + 3] & HOSTS_V6) return LEAVE;
    if (!derive(text, &derived)) return LEAVE;
    message.user_flag = (int32_t)get32(kept.at + 16), message.born_ms = (int64_t)get64(kept.at + 40);
    message.born_host = (Text){kept.at + 48, 8}, message.store_host = (Text){kept.at + 64, 8};
    message.body = (Text){kept.at + BODY_AT, kept.size - BODY_AT};
    derived.due = read_due(tag);
    int state = PyErr_Occurred() ? FAILED : queue_of(run, object, NULL, &queue);
    byte *to = state == PLAIN ? reserve_record(run, queue, &message, text.size) : NULL;
    if (!to) return state == LEAVE ? LEAVE : FAILED;
    add(to, text.at, text.size);
    return finish_record(run, queue, &message, text.size, &derived);
}

PyObject *put_messages(PyObject *Py_UNUSED(module), PyObject *args) {
    Run run;
    PyObject *rows;
    Py_ssize_t at;
    int state = PLAIN;
    memset(&run, 0, offsetof(Run, queues));
    if (!PyArg_ParseTuple(args, "O!ny#LLL:put_messages", &PyList_Type, &rows, &at, TEXT(run.lead), &run.end, &run.room,
            &run.now_ms)) return NULL;
    for (; at >= 0 && at < PyList_GET_SIZE(rows); at++)
        if ((state = put_row(&run, PyList_GET_ITEM(rows, at))) != PLAIN) break;
    return results(&run, at, state == FAILED ? NULL : Py_NewRef(Py_None));
}

/* stored.take_apart of what begins here and at `offset` of the log. NULL: it is unusual, or the exception is set. */
static PyObject *take_apart(Text data, int64_t offset, Text names, Buffer *key) {
    Text own[ITEMS_MAX];
    Item items[ITEMS_MAX], item;
    const byte *at = data.at;
    if (data.size < RECORD_MIN || get32(at + 4) != MAGIC_V1 || at[SYS_FLAG_AT + 3] & HOSTS_V6 || (int64_t)get64(at + 28) != offset)
        return NULL;
    int64_t size = (int32_t)get32(at), body_size = (int32_t)get32(at + BODY_AT - 4);
    if (size < RECORD_MIN || size > data.size || body_size < 0 || body_size > size - RECORD_MIN) return NULL;
    Text body = {at + BODY_AT, body_size}, topic = {body.at + body_size + 1, body.at[body_size]};
    Text text = {topic.at + topic.size + 2, size - RECORD_MIN - body_size - topic.size}, value = topic;
    if (topic.size > 127 || text.size < 0 || text.size > PROPERTIES_MAX || get16(text.at - 2) != text.size || !is_utf8(topic)) return NULL;
    if ((crc32_of(body) & 0x7FFFFFFF) != get32(at + 8) || !is_utf8(text) || has(text, 0)) return NULL;
    int count = read_items(text, own, items);
    if (count < 0) return NULL;
    for (key->size = 0; !reserve(key, value.size + 1); key->at[key->size++] = 2) {
        key->size = add(key->at + key->size, value.at, value.size) - key->at;
        if (!next_item(&names, &item))
            return Py_BuildValue("(y#LLiiy#y#)", key->at, key->size, (long long)size, (long long)get64(at + QUEUE_OFFSET_AT),
                (int32_t)get32(at + SYS_FLAG_AT), (int32_t)get32(at + 72), text.at, text.size, at, (Py_ssize_t)(BODY_AT + body_size));
        int place = place_among(own, count, item.all);
        value = place < 0 ? (Text){NULL, 0} : items[place].value;
    }
    return NULL;
}

PyObject *take_many_apart(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    Text names;
    Buffer key = {NULL, 0, 0};
    PyObject *places;
    long long start;
    if (!PyArg_ParseTuple(args, "y*LO!y#:take_many_apart", &data, &start, &PyList_Type, &places, TEXT(names))) return NULL;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(places); i++) {
        long long place = PyLong_AsLongLong(PyList_GET_ITEM(places, i));
        if (PyErr_Occurred() || start < 0 || place < start || place - start > data.len) break;
        Text rest = {(const byte *)data.buf + (place - start), data.len - (place - start)};
        if (append(found, take_apart(rest, place, names, &key))) break;
    }
    PyMem_Free(key.at), PyBuffer_Release(&data);
    if (PyErr_Occurred()) Py_CLEAR(found);
    return found;
}
