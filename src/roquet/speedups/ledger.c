/* The heads of entries of DLedger's log, as store/ledger_heads.py's fill_heads does it. */

#include "speedups.h"

enum { HEAD = 48, UNIT = 32 };

/* The next record that stands behind room for a head: its size; 0 where none does any more; -1 where something else stands. */
static int64_t next_record(Text data, Py_ssize_t at) {
    if (at == data.size || data.at[at]) return 0; /* a blank begins with 0xFF */
    if (data.size - at < HEAD + RECORD_MIN) return -1;
    int64_t size = (int32_t)get32(data.at + at + HEAD);
    return size < RECORD_MIN || size > data.size - at - HEAD ? -1 : size;
}

/* fill_heads(data, pos, index, term) -> (data with its heads, the units of the ledger's index) */
PyObject *fill_heads(PyObject *Py_UNUSED(module), PyObject *args) {
    Text data;
    long long pos, index, term;
    if (!PyArg_ParseTuple(args, "y#LLL:fill_heads", TEXT(data), &pos, &index, &term)) return NULL;
    Py_ssize_t count = 0, at = 0;
    int64_t size;
    for (; (size = next_record(data, at)) > 0; at += HEAD + size) count++;
    if (size < 0) { PyErr_Format(PyExc_ValueError, "no record stands behind the head at byte %zd of %zd", at, data.size); return NULL; }
    PyObject *filled = PyBytes_FromStringAndSize((const char *)data.at, data.size), *units = PyBytes_FromStringAndSize(NULL, count * UNIT);
    if (!filled || !units) { Py_XDECREF(filled); Py_XDECREF(units); return NULL; }
    byte *out = (byte *)PyBytes_AS_STRING(filled), *unit = (byte *)PyBytes_AS_STRING(units);
    for (at = 0; count--; at += HEAD + size, unit += UNIT, index++) {
        size = get32(data.at + at + HEAD);
        byte *head = out + at;
        memset(head, 0, HEAD);
        put32(head, 1), put32(head + 4, HEAD + size), put64(head + 8, index), put64(head + 16, term), put64(head + 24, pos + at);
        put32(head + 44, size);
        put32(unit, 1), put64(unit + 4, pos + at), put32(unit + 12, HEAD + size), put64(unit + 16, index), put64(unit + 24, term);
    }
    return Py_BuildValue("(NN)", filled, units);
}
