/* Keys of messages -> entries of an index file, as store/index.py's `entries_of` makes them. */

#include "speedups.h"

enum { INDEX_ENTRY = 20, SLOT = 4 };

PyObject *index_entries(PyObject *Py_UNUSED(module), PyObject *args) {
    Text keys;
    Py_buffer table;
    long long number, begin_ms;
    if (!PyArg_ParseTuple(args, "y#w*LL:index_entries", TEXT(keys), &table, &number, &begin_ms)) return NULL;
    int64_t count = keys.size / (Py_ssize_t)sizeof(Key), fresh = 0, newest = INT64_MIN;
    uint32_t slots = (uint32_t)(table.len / SLOT);
    const Key *key = (const Key *)keys.at;
    PyObject *made = NULL;
    if (keys.size % (Py_ssize_t)sizeof(Key) || !slots || table.len / SLOT > UINT32_MAX || number < 1 || number > INT32_MAX - count)
        PyErr_Format(PyExc_ValueError, "%zd bytes of keys from number %lld on for %zd bytes of slots", keys.size, number, table.len);
    else made = PyBytes_FromStringAndSize(NULL, count * INDEX_ENTRY);
    for (int64_t i = 0; made && i < count; i++) {
        uint32_t at = key[i].hash % slots;
        byte *slot = (byte *)table.buf + (Py_ssize_t)at * SLOT, *entry = (byte *)PyBytes_AS_STRING(made) + i * INDEX_ENTRY;
        int64_t before = (int32_t)get32(slot), ms = key[i].ms, seconds = ms > begin_ms ? (ms - begin_ms) / 1000 : 0;
        if (before < 0 || before >= number + i || (before >= number && key[before - number].hash % slots != at)) before = 0;
        put32(entry, key[i].hash), put64(entry + 4, (uint64_t)key[i].offset);
        put32(entry + 12, (uint32_t)(seconds < INT32_MAX ? seconds : INT32_MAX));
        put32(entry + 16, (uint32_t)before), put32(slot, (uint32_t)(number + i));
        fresh += !before;
        if (ms > newest) newest = ms;
    }
    PyBuffer_Release(&table);
    return made ? Py_BuildValue("(NLL)", made, (long long)fresh, (long long)newest) : NULL;
}
