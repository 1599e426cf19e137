/* Queue entries and the log -> what a pull gets: broker/gather.py's gather, broker/pull_runs.py's answer_pulls, and
   broker/sql_columns.py's matching.
   All see bytes that may be damaged. An entry or a record that is not exactly as it should be makes them return None, and then Python looks
   at one entry after another. Nothing is decided here that Python does not decide in the same way. */

#include "text.h"

enum { ENTRIES_MAX = 1024, NAMES_MAX = 8, FOREIGN_MAX = 1 << 17, GAP_MAX = 1 << 14, FRONT_MAX = 512, BODY_MAX = 1 << 30 };

typedef struct { int64_t place, number; Py_ssize_t size; } Entry;

static int is_one_of(const byte *code, Text codes) {
    for (Py_ssize_t i = 0; i + 4 <= codes.size; i += 4)
        if (!memcmp(codes.at + i, code, 4)) return 1;
    return 0;
}

typedef struct {
    Text raw, codes; /* entries; the tag hashes that are wanted, as they stand there: four bytes each. Its `at` is NULL: all */
    int64_t number, start, end, record_max, size_max;
    Py_ssize_t count_max;
} Wish;

/* Fills `chosen`, which has room for every entry. How many; -1: one of the entries is not as it should be. */
static Py_ssize_t choose(const Wish *wish, Entry *chosen, Py_ssize_t *judged) {
    Py_ssize_t all = wish->raw.size / ENTRY, count = 0;
    int64_t before = wish->start, total = 0;
    int full = 0;
    for (Py_ssize_t i = 0; i < all; i++) {
        const byte *entry = wish->raw.at + i * ENTRY;
        int64_t place = (int64_t)get64(entry), size = (int32_t)get32(entry + 8);
        if (size < RECORD_MIN || size > wish->record_max || place < before || place > INT64_MAX - size) return -1;
        before = place + size; /* they neither overlap nor go back */
        if (full || (wish->codes.at && !is_one_of(entry + 16, wish->codes))) continue;
        if (count && (count >= wish->count_max || total + size > wish->size_max)) { /* the others are only looked at */
            full = 1, *judged = i;
            continue;
        }
        total += size;
        chosen[count++] = (Entry){place, wish->number + i, size};
    }
    if (!full) *judged = all;
    if (wish->codes.at && (int64_t)get64(wish->raw.at + (all - 1) * ENTRY) > wish->end) return -1;
    return count;
}

/* Those from `begin` on that are read together end here. */
static Py_ssize_t span_end(const Entry *entries, Py_ssize_t begin, Py_ssize_t count, Py_ssize_t room) {
    Py_ssize_t at = begin + 1;
    for (; at < count; at++) {
        const Entry *last = entries + at - 1, *next = entries + at;
        if (next->place - last->place - last->size > GAP_MAX || next->place + next->size - entries[begin].place > room) break;
    }
    return at;
}

static int is_record(const byte *at, const Entry *entry) {
    return get32(at) == (uint32_t)entry->size && get32(at + 4) == MAGIC_V1 && (int64_t)get64(at + QUEUE_OFFSET_AT) == entry->number;
}

typedef struct {
    PyObject *view, *stretches; /* asks Python; what is at hand, by number, or NULL */
    long long stretch, viewed; /* bytes of one, and bytes that were seen in them */
    Py_ssize_t span_max;
} Log;

/* So many bytes of the log from there on, until `data` is released. NULL: the exception is set. */
static const byte *view_log(Log *log, int64_t place, Py_ssize_t length, Py_buffer *data) {
    PyObject *number = log->stretches ? PyLong_FromLongLong(place / log->stretch) : NULL;
    PyObject *bytes = number ? Py_XNewRef(PyDict_GetItemWithError(log->stretches, number)) : NULL;
    Py_ssize_t at = bytes ? place % log->stretch : 0, most = bytes ? PyObject_Size(bytes) : 0;
    Py_XDECREF(number);
    if (!PyErr_Occurred() && at + length > most) {
        Py_XSETREF(bytes, PyObject_CallFunction(log->view, "Ln", place, length));
        at = 0;
    } else log->viewed += length;
    int failed = PyErr_Occurred() || PyObject_GetBuffer(bytes, data, PyBUF_SIMPLE); /* it holds the memory from here on */
    Py_XDECREF(bytes);
    if (failed || data->len >= at + length) return failed ? NULL : (const byte *)data->buf + at;
    PyErr_Format(PyExc_ValueError, "a view of %zd bytes, asked for %zd", data->len, length);
    PyBuffer_Release(data);
    return NULL;
}

/* The records of these entries, one after another. 1: done, 0: one of them is not its entry's, -1: the exception is set. */
static int copy_records(const Entry *entries, Py_ssize_t count, int64_t total, Log *log, byte *to) {
    int64_t whole = entries[count - 1].place + entries[count - 1].size - entries[0].place;
    int together = whole <= log->span_max && whole - total <= FOREIGN_MAX;
    for (Py_ssize_t begin = 0; begin < count;) {
        Py_ssize_t stop = together ? count : span_end(entries, begin, count, log->span_max);
        int64_t first = entries[begin].place;
        Py_buffer data;
        const byte *seen = view_log(log, first, entries[stop - 1].place + entries[stop - 1].size - first, &data);
        if (!seen) return -1;
        for (; begin < stop; begin++) {
            const byte *record = seen + (entries[begin].place - first);
            if (!is_record(record, entries + begin)) { PyBuffer_Release(&data); return 0; }
            to = add(to, record, entries[begin].size);
        }
        PyBuffer_Release(&data);
    }
    return 1;
}

typedef struct { int binary, opaque; int64_t first, last; } Head;

#define ADD(literal) (to = add(to, literal, sizeof(literal) - 1))
#define FIELD(name, number) do { ADD(name); byte *end = add_number(to + 4, number); put32(to, (uint32_t)(end - to) - 4); to = end; } while (0)

/* What stands before the records of an answer, up to FRONT_MAX bytes, as wire/pulled.py's found_front does it. Returns how much. */
static Py_ssize_t write_front(const Head *head, int64_t next, int64_t size, byte *start) {
    byte *to = start + 8;
    if (!head->binary) {
        ADD("{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"0\",\"nextBeginOffset\":\"");
        to = add_number(to, next); ADD("\",\"minOffset\":\"");
        to = add_number(to, head->first); ADD("\",\"maxOffset\":\"");
        to = add_number(to, head->last); ADD("\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
        to = add_number(to, head->opaque);
        ADD(",\"remark\":\"FOUND\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}");
    } else { /* code, language, version; opaque; flag; remark; fields */
        ADD("\0\0\0\1\x99");
        put32(to, (uint32_t)head->opaque), to += 4;
        ADD("\0\0\0\1\0\0\0\5FOUND");
        byte *fields = to;
        to += 4, ADD("\0\x14suggestWhichBrokerId\0\0\0\1" "0");
        FIELD("\0\x0fnextBeginOffset", next);
        FIELD("\0\x09minOffset", head->first);
        FIELD("\0\x09maxOffset", head->last);
        put32(fields, (uint32_t)(to - fields - 4));
    }
    put32(start, (uint32_t)(to - start - 4 + size)), put32(start + 4, (uint32_t)head->binary << 24 | (uint32_t)(to - start - 8));
    return to - start;
}

/* With `head` the frame of an answer that goes on at `next`, else the records alone, `*total` bytes. NULL: look properly, or an exception. */
static PyObject *gathered(
        const Entry *chosen, Py_ssize_t count, Log *log, const Head *head, int64_t next, int64_t *total) {
    byte front[FRONT_MAX];
    *total = 0;
    for (Py_ssize_t i = 0; i < count; i++) *total += chosen[i].size; /* at most ENTRIES_MAX or a queue's read of 31 bits each */
    if (head && (!count || *total > BODY_MAX)) return NULL;
    Py_ssize_t before = head ? write_front(head, next, *total, front) : 0;
    PyObject *body = PyBytes_FromStringAndSize(NULL, before + *total);
    if (!body) return NULL;
    byte *to = add((byte *)PyBytes_AS_STRING(body), front, before);
    if (count && copy_records(chosen, count, *total, log, to) != 1) Py_CLEAR(body);
    return body;
}

/* gather(raw, codes, number, count_max, size_max, start, end, record_max, view, span_max) -> (records, how many, entries judged) or None */
PyObject *gather(PyObject *Py_UNUSED(module), PyObject *args) {
    Wish wish;
    Log log = {.stretches = NULL};
    if (!PyArg_ParseTuple(args, "y#z#LnLLLLOn:gather", TEXT(wish.raw), TEXT(wish.codes), &wish.number, &wish.count_max, &wish.size_max, &wish.start,
            &wish.end, &wish.record_max, &log.view, &log.span_max)) return NULL;
    Py_ssize_t all = wish.raw.size / ENTRY, judged = 0;
    if (!all || (!wish.codes.at && all > ENTRIES_MAX) || wish.start < 0 || wish.record_max > INT32_MAX) return Py_NewRef(Py_None);
    Entry *chosen = PyMem_New(Entry, all);
    if (!chosen) return PyErr_NoMemory();
    int64_t total;
    Py_ssize_t count = choose(&wish, chosen, &judged);
    PyObject *body = count < 0 ? NULL : gathered(chosen, count, &log, NULL, 0, &total);
    PyMem_Free(chosen);
    if (body) return Py_BuildValue("(Nnn)", body, count, judged);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

typedef struct {
    PyObject *ready, *queues, *answers, *told, *grant; /* that of the first */
    Wish wish;
    Log log;
    long long near, count, size, bytes_max;
} Pulls;

/* `ready` is an entries_ahead.Ready, `numbers` are those of the pull. */
static int answer_pull(Pulls *run, PyObject *ready, const int64_t *numbers) {
    static PyObject *names[2];
    PyObject *grant, *place, *queue;
    Entry chosen[ENTRIES_MAX];
    Wish wish = run->wish;
    Py_ssize_t count, judged;
    int64_t offset = wish.number = numbers[1], start, total;
    int tells, binary;
    if (!PyTuple_Check(ready)) return wrong_type("what is ready is a tuple");
    if (!PyArg_ParseTuple(ready, "OOOLy#nLpp", &grant, &place, &queue, &start, TEXT(wish.raw), &wish.count_max, &wish.size_max, &tells,
            &binary)) return FAILED;
    if (run->grant == Py_None) Py_SETREF(run->grant, Py_NewRef(grant));
    int holds = grant != Py_None && grant == run->grant && queue == PyDict_GetItemWithError(run->queues, place);
    if (!holds) return PyErr_Occurred() ? FAILED : LEAVE;
    int64_t first = get_number(queue, &names[0], "first"), last = first < 0 ? -1 : get_number(queue, &names[1], "visible"), viewed = run->log.viewed;
    if (PyErr_Occurred() || start < 0 || offset < first || offset < start || offset >= last) return PyErr_Occurred() ? FAILED : LEAVE;
    if (wish.count_max > run->wish.count_max) wish.count_max = run->wish.count_max;
    if (wish.size_max > run->wish.size_max) wish.size_max = run->wish.size_max;
    int64_t most = last - offset < wish.count_max ? last - offset : wish.count_max;
    if (most < 1 || most > ENTRIES_MAX || offset - start > wish.raw.size / ENTRY - most) return LEAVE;
    wish.raw = (Text){wish.raw.at + (offset - start) * ENTRY, most * ENTRY};
    if (run->near > wish.start && (int64_t)get64(wish.raw.at) < run->near) return LEAVE;
    if ((count = choose(&wish, chosen, &judged)) < 0) return LEAVE;
    PyObject *answer = gathered(chosen, count, &run->log, &(Head){binary, (int32_t)numbers[0], first, last}, offset + judged, &total);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear(); /* it says so to Python once more */
    if (!answer) { run->log.viewed = viewed; return PyErr_Occurred() ? FAILED : LEAVE; }
    run->count += count, run->size += total;
    if (append(run->answers, answer)) return FAILED;
    return tells && numbers[2] <= last && append(run->told, Py_BuildValue("(OL)", place, (long long)numbers[2])) ? FAILED : PLAIN;
}

PyObject *answer_pulls(PyObject *Py_UNUSED(module), PyObject *args) {
    Pulls run = {.answers = PyList_New(0), .told = PyList_New(0), .grant = Py_NewRef(Py_None)};
    PyObject *frames, *result = NULL;
    Py_ssize_t at;
    int state = run.answers && run.told && PyArg_ParseTuple(args, "O!nO!O!(LLLnLL)O!LOnL:answer_pulls", &PyList_Type, &frames, &at,
        &PyDict_Type, &run.ready, &PyDict_Type, &run.queues, &run.wish.start, &run.wish.end, &run.near, &run.wish.count_max,
        &run.wish.size_max, &run.wish.record_max, &PyDict_Type, &run.log.stretches, &run.log.stretch, &run.log.view, &run.log.span_max,
        &run.bytes_max) ? PLAIN : FAILED;
    if (state == PLAIN && (at < 0 || run.wish.start < 0 || run.wish.record_max > INT32_MAX || run.log.stretch < 1)) state = LEAVE;
    for (; state == PLAIN && at < PyList_GET_SIZE(frames) && run.size < run.bytes_max; at++) {
        int64_t numbers[NUMBERS];
        long form;
        Text header, body;
        PyObject *shape = frame_parts(PyList_GET_ITEM(frames, at), &form, &header, &body) ? NULL : read_shape(form, header, numbers);
        PyObject *ready = shape ? Py_XNewRef(PyDict_GetItemWithError(run.ready, shape)) : NULL;
        state = ready ? answer_pull(&run, ready, numbers) : PyErr_Occurred() ? FAILED : LEAVE;
        Py_XDECREF(ready), Py_XDECREF(shape);
    }
    if (state != FAILED) result = Py_BuildValue("(OOOLLL)", run.answers, run.told, run.grant, run.count, run.size, run.log.viewed);
    Py_XDECREF(run.answers), Py_XDECREF(run.told), Py_DECREF(run.grant);
    return result;
}

/* Where the properties of a record begin that has so many bytes. -1: it is unusual. */
static Py_ssize_t properties_at(const byte *record, Py_ssize_t size) {
    if (record[SYS_FLAG_AT + 3] & HOSTS_V6) return -1;
    Py_ssize_t topic_at = BODY_AT + (Py_ssize_t)get32(record + BODY_AT - 4);
    if (topic_at >= size) return -1;
    Py_ssize_t at = topic_at + 3 + record[topic_at];
    return at > size ? -1 : at;
}

/* The values of these names among the properties; without one its `at` is NULL. 0: one is empty, and an earlier one might count. */
static int read_values(Text properties, const Text *names, Py_ssize_t count, Text *values) {
    const byte *end = properties.at + properties.size;
    memset(values, 0, count * sizeof(Text));
    for (const byte *at = properties.at, *stop; at < end; at = stop < end ? stop + 1 : end) {
        if (!(stop = memchr(at, 2, end - at))) stop = end;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t size = names[i].size; /* of a name; no name has a 1 or a 2 in it */
            if (stop - at > size && at[size] == 1 && !memcmp(at, names[i].at, size)) values[i] = (Text){at + size + 1, stop - at - size - 1};
        } /* of two with one name the last */
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i].at && !values[i].size) return 0;
    return 1;
}

/* What `decisions` has for these values, joined with 2: 1 or 0. -1: the exception is set. */
static int decide(PyObject *decisions, const Text *values, Py_ssize_t count) {
    Py_ssize_t size = count ? count - 1 : 0;
    for (Py_ssize_t i = 0; i < count; i++) size += values[i].size;
    PyObject *row = PyBytes_FromStringAndSize(NULL, size);
    if (!row) return -1;
    byte *to = (byte *)PyBytes_AS_STRING(row);
    for (Py_ssize_t i = 0; i < count; to = add(to, values[i].at, values[i].size), i++)
        if (i) *to++ = 2;
    PyObject *found = PyObject_GetItem(decisions, row);
    int taken = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found), Py_DECREF(row);
    return taken;
}

/* Appends the numbers of those that are taken. 1: done, 0: a record is not its entry's, or unusual, -1: the exception is set. */
static int judge(Text raw, Text data, int64_t start, int64_t number, const Text *names, Py_ssize_t count, PyObject *decisions, PyObject *chosen) {
    Text values[2][NAMES_MAX]; /* of this record, and of the last that was decided: most are alike */
    int now = 0, taken = -1;
    for (Py_ssize_t i = 0; i < raw.size / ENTRY; i++) {
        int64_t place = (int64_t)get64(raw.at + i * ENTRY);
        Entry entry = {place, number + i, (int32_t)get32(raw.at + i * ENTRY + 8)};
        if (entry.size < RECORD_MIN || entry.size > data.size || place < start || place - start > data.size - entry.size) return 0;
        const byte *record = data.at + (place - start);
        Py_ssize_t at = is_record(record, &entry) ? properties_at(record, entry.size) : -1;
        if (at < 0 || !read_values((Text){record + at, entry.size - at}, names, count, values[now])) return 0;
        int alike = taken >= 0;
        for (Py_ssize_t name = 0; alike && name < count; name++) alike = same(values[0][name], values[1][name]);
        if (!alike) {
            if ((taken = decide(decisions, values[now], count)) < 0) return -1;
            now = !now;
        }
        if (taken && append(chosen, PyLong_FromSsize_t(i))) return -1;
    }
    return 1;
}

/* matching(raw, data, start, number, names, decisions) -> which of the entries, or None */
PyObject *matching(PyObject *Py_UNUSED(module), PyObject *args) {
    Text names[NAMES_MAX], raw;
    Py_buffer data;
    PyObject *all, *decisions;
    long long start, number;
    if (!PyArg_ParseTuple(args, "y#y*LLO!O:matching", TEXT(raw), &data, &start, &number, &PyTuple_Type, &all, &decisions)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(all);
    for (Py_ssize_t i = 0; i < count && i < NAMES_MAX; i++) names[i] = bytes_text(PyTuple_GET_ITEM(all, i));
    if (count > NAMES_MAX || start < 0) PyErr_Format(PyExc_ValueError, "%zd names from %lld on, at most %d from 0 on are read", count, start, NAMES_MAX);
    PyObject *chosen = PyErr_Occurred() ? NULL : PyList_New(0);
    int done = chosen ? judge(raw, (Text){data.buf, data.len}, start, number, names, count, decisions, chosen) : -1;
    PyBuffer_Release(&data);
    if (done == 1) return chosen;
    Py_XDECREF(chosen);
    return done ? NULL : Py_NewRef(Py_None);
}
