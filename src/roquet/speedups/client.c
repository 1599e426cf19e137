/* For clients: columns of messages -> the body of a batch send, as wire/batch.py's join_messages does it; what was pulled -> records, as
   wire/record.py's cut_records does. */

#include "text.h"

enum { BODY_MAX = 1 << 30 };

static int utf8(PyObject *object, Text *found) {
    found->at = (const byte *)PyUnicode_AsUTF8AndSize(object, &found->size);
    return found->at ? 0 : -1;
}

PyObject *join_messages(PyObject *Py_UNUSED(module), PyObject *args) {
    Text name, text, id;
    Buffer out = {NULL, 0, 0};
    PyObject *made = NULL, *lists[3];
    if (!PyArg_ParseTuple(args, "O!O!O!s#:join_messages", &PyList_Type, lists, &PyList_Type, lists + 1, &PyList_Type, lists + 2,
            TEXT(name))) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(lists[0]);
    if (PyList_GET_SIZE(lists[1]) != count || PyList_GET_SIZE(lists[2]) != count) Py_RETURN_NONE;
    for (Py_ssize_t at = 0; at < count; at++) {
        Text body = bytes_text(PyList_GET_ITEM(lists[0], at));
        if (!body.at || utf8(PyList_GET_ITEM(lists[1], at), &text) || utf8(PyList_GET_ITEM(lists[2], at), &id)) goto end;
        Py_ssize_t properties = text.size + (text.size > 0) + name.size + 1 + id.size, size = 22 + body.size + properties;
        if (body.size > BODY_MAX || properties > PROPERTIES_MAX) { made = Py_NewRef(Py_None); goto end; }
        if (reserve(&out, size)) goto end;
        byte *to = out.at + out.size;
        put32(to, (uint32_t)size);
        memset(to + 4, 0, 12); /* magic, checksum, flag */
        put32(to + 16, (uint32_t)body.size);
        to = add(to + 20, body.at, body.size);
        put16(to, (uint16_t)properties);
        to = add(to + 2, text.at, text.size);
        if (text.size) *to++ = 2; /* between properties */
        to = add(to, name.at, name.size);
        *to++ = 1; /* between name and value */
        add(to, id.at, id.size);
        out.size += size;
    }
    made = buffer_bytes(&out);
end:
    PyMem_Free(out.at);
    return made;
}

PyObject *cut_records(PyObject *Py_UNUSED(module), PyObject *args) {
    Text data, topic;
    long long queue;
    if (!PyArg_ParseTuple(args, "y#y#L:cut_records", TEXT(data), TEXT(topic), &queue)) return NULL;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t at = 0; found && at < data.size;) {
        const byte *record = data.at + at;
        Py_ssize_t left = data.size - at;
        if (left < RECORD_MIN) goto odd;
        int64_t size = (int32_t)get32(record), body_at = BODY_AT + 12 * (record[39] >> 4 & 1) + 12 * (record[39] >> 5 & 1);
        int width = get32(record + 4) == MAGIC_V1 ? 1 : get32(record + 4) == MAGIC_V2 ? 2 : 0;
        if (!width || size > left || size < body_at + width + topic.size + 2 || (int32_t)get32(record + 12) != queue) goto odd;
        int64_t body_size = (int32_t)get32(record + body_at - 4), topic_at = body_at + body_size + width;
        if (body_size < 0 || topic_at + topic.size + 2 > size) goto odd;
        Py_ssize_t named = width == 1 ? (int8_t)record[topic_at - 1] : (int16_t)get16(record + topic_at - 2);
        if (!same((Text){record + topic_at, named}, topic)) goto odd;
        if (topic_at + topic.size + 2 + (int16_t)get16(record + topic_at + topic.size) != size) goto odd; /* a negative one is too small */
        if ((crc32_of((Text){record + body_at, body_size}) & 0x7FFFFFFF) != get32(record + 8)) goto odd;
        if (append(found, Py_BuildValue("(y#LL)", record, (Py_ssize_t)size, (long long)get64(record + 20), (long long)body_size)))
            Py_CLEAR(found);
        at += size;
    }
    return found;
odd:
    Py_DECREF(found);
    Py_RETURN_NONE;
}
