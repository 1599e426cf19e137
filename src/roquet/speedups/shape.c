/* The header of a pull -> its shape and its numbers, as wire/pull_shapes.py's pull_shape does it. */

#include "text.h"

#define NUMBERS 3
#define DIGITS_MAX 18

/* A number that differs from pull to pull: what stands before it, and where it stands. */
typedef struct { Text name; const byte *from, *to; int64_t number; } Hole;
#define NAME(literal) {{(const byte *)literal, sizeof(literal) - 1}, NULL, NULL, 0}

/* Whether this name stands there, once, and a number behind it. */
static int find_number(Text header, int binary, Hole *hole) {
    const byte *end = header.at + header.size, *at = memmem(header.at, header.size, hole->name.at, hole->name.size);
    if (!at || memmem(at + 1, end - at - 1, hole->name.at, hole->name.size)) return 0;
    if (!binary && (at == header.at || (at[-1] != '{' && at[-1] != ','))) return 0;
    const byte *begin = at + hole->name.size + binary, *stop = begin; /* in the binary form its length stands before it */
    while (stop < end && *stop >= '0' && *stop <= '9') stop++;
    Py_ssize_t count = stop - begin;
    if (count < 1 || count > DIGITS_MAX || (*begin == '0' && count > 1) || (binary && begin[-1] != count)) return 0;
    hole->from = binary ? begin - 4 : begin;
    hole->to = stop;
    return number_of((Text){begin, count}, &hole->number) == PLAIN;
}

static PyObject *without(Text front, Text rest, const Hole *holes, int count) {
    const Hole *order[NUMBERS];
    for (int i = 0; i < count; i++) { /* by where they stand */
        int at = i;
        for (; at > 0 && order[at - 1]->from > holes[i].from; at--) order[at] = order[at - 1];
        order[at] = holes + i;
    }
    Py_ssize_t size = front.size + rest.size;
    for (int i = 0; i < count; i++) size -= holes[i].to - holes[i].from;
    PyObject *shape = PyBytes_FromStringAndSize(NULL, size);
    if (!shape) return NULL;
    byte *to = add((byte *)PyBytes_AS_STRING(shape), front.at, front.size);
    const byte *at = rest.at;
    for (int i = 0; i < count; at = order[i++]->to) to = add(to, at, order[i]->from - at);
    add(to, at, rest.at + rest.size - at);
    return shape;
}

/* pull_shape(form, header) -> (shape, opaque, queue offset, offset to commit) or None */
PyObject *pull_shape(PyObject *Py_UNUSED(module), PyObject *args) {
    int form;
    Text header, front = {NULL, 0}, rest;
    PyObject *shape;
    if (!PyArg_ParseTuple(args, "iy#:pull_shape", &form, TEXT(header))) return NULL;
    rest = header;
    if (form) {
        Hole holes[] = {NAME("\0\x0bqueueOffset\0\0\0"), NAME("\0\x0c" "commitOffset\0\0\0")};
        if (header.size < 21 || get16(header.at) != 11 || get32(header.at + 13) || get32(header.at + 17) != header.size - 21) Py_RETURN_NONE;
        byte fixed[13];
        add(add(fixed, header.at, 5), header.at + 9, 8);
        front = (Text){fixed, sizeof(fixed)};
        rest = (Text){header.at + 21, header.size - 21};
        if (!find_number(rest, 1, holes) || !find_number(rest, 1, holes + 1) || !(shape = without(front, rest, holes, 2))) goto none;
        return Py_BuildValue("(NiLL)", shape, (int32_t)get32(header.at + 5), holes[0].number, holes[1].number);
    }
    if (header.size < 11 || memcmp(header.at, "{\"code\":11,", 11)) Py_RETURN_NONE;
    Hole holes[] = {NAME("\"opaque\":"), NAME("\"queueOffset\":\""), NAME("\"commitOffset\":\"")};
    for (int i = 0; i < NUMBERS; i++)
        if (!find_number(rest, 0, holes + i)) Py_RETURN_NONE;
    if (holes[0].number > INT32_MAX || !(shape = without(front, rest, holes, NUMBERS))) goto none;
    return Py_BuildValue("(NLLL)", shape, holes[0].number, holes[1].number, holes[2].number);
none:
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}
