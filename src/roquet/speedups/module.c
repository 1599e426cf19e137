#include "speedups.h"

#define ENTER(name) {#name, name, METH_VARARGS, NULL},
static PyMethodDef methods[] = {FUNCTIONS(ENTER) {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntConstant(module, "EDITION", EDITION) || PyModule_AddStringConstant(module, "SOURCES", SOURCES)))
        Py_CLEAR(module);
    return module;
}
