/* Bytes -> frames, as wire/frame.py's cut_frames does it. */

#include "speedups.h"

static PyObject *frame(const byte *at, uint32_t word, Py_ssize_t size) {
    Py_ssize_t head = word & 0xFFFFFF;
    PyObject *made = PyTuple_New(3);
    if (!made) return NULL;
    PyTuple_SET_ITEM(made, 0, PyLong_FromLong(word >> 24));
    PyTuple_SET_ITEM(made, 1, PyBytes_FromStringAndSize((const char *)at + 8, head));
    PyTuple_SET_ITEM(made, 2, PyBytes_FromStringAndSize((const char *)at + 8 + head, size - 4 - head));
    if (PyErr_Occurred()) Py_CLEAR(made);
    return made;
}

/* Of a stream that cannot be trusted 0 bytes are needed, and Python says why. */
PyObject *cut_frames(PyObject *Py_UNUSED(module), PyObject *args) {
    Text data;
    Py_ssize_t limit, at = 0, need = 8;
    if (!PyArg_ParseTuple(args, "y#n:cut_frames", TEXT(data), &limit)) return NULL;
    PyObject *frames = PyList_New(0);
    while (frames && data.size - at >= 8) {
        Py_ssize_t size = get32(data.at + at);
        uint32_t word = get32(data.at + at + 4);
        if (size < 4 || size > limit || (Py_ssize_t)(word & 0xFFFFFF) > size - 4 || word >> 24 > 1) { need = 0; break; }
        if (size > data.size - at - 4) { need = 4 + size; break; }
        if (append(frames, frame(data.at + at, word, size))) Py_CLEAR(frames);
        at += 4 + size;
    }
    return frames ? Py_BuildValue("(Nnn)", frames, at, need) : NULL;
}
