/* What time it is, as clock.py says it. */

#include "speedups.h"
#include <time.h>

static PyObject *milliseconds(clockid_t clock) {
    struct timespec now;
    return clock_gettime(clock, &now) ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLongLong(now.tv_sec * 1000LL + now.tv_nsec / 1000000);
}

PyObject *now_ms(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { return milliseconds(CLOCK_REALTIME); }
PyObject *steady_ms(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args)) { return milliseconds(CLOCK_MONOTONIC); }
