/* The list of all functions of the extension. What each does, and which Python function it stands for, is in _native.pyi. */

#include "speedups.h"

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FUNCTION(cut_frames),
    FUNCTION(take_sends),
    FUNCTION(gather),
    FUNCTION(property_rows),
    FUNCTION(pull_shape),
    FUNCTION(join_messages),
    FUNCTION(cut_records),
    FUNCTION(fill_heads),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntConstant(module, "EDITION", EDITION) || PyModule_AddStringConstant(module, "SOURCES", SOURCES))) Py_CLEAR(module);
    return module;
}
