/* The header of a pull -> its shape and its numbers, as wire/pull_shapes.py's pull_shape does it. */

#include "text.h"

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
    if (count < 1 || (*begin == '0' && count > 1) || (binary && begin[-1] != count)) return 0;
    hole->from = binary ? begin - 4 : begin, hole->to = stop;
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

/* The shape, and its numbers: opaque, queue offset, offset to commit. NULL: it is no pull, or not sure, or the exception is set. */
PyObject *read_shape(long form, Text header, int64_t *numbers) {
    if (form) {
        Hole holes[] = {NAME("\0\x0bqueueOffset\0\0\0"), NAME("\0\x0c" "commitOffset\0\0\0")};
        if (header.size < 21 || get16(header.at) != 11 || get32(header.at + 13) || get32(header.at + 17) != header.size - 21) return NULL;
        Text rest = {header.at + 21, header.size - 21};
        if (!find_number(rest, 1, holes) || !find_number(rest, 1, holes + 1)) return NULL;
        byte fixed[13];
        add(add(fixed, header.at, 5), header.at + 9, 8);
        numbers[0] = (int32_t)get32(header.at + 5), numbers[1] = holes[0].number, numbers[2] = holes[1].number;
        return without((Text){fixed, sizeof(fixed)}, rest, holes, 2);
    }
    Hole holes[] = {NAME("\"opaque\":"), NAME("\"queueOffset\":\""), NAME("\"commitOffset\":\"")};
    if (header.size < 11 || memcmp(header.at, "{\"code\":11,", 11)) return NULL;
    for (int i = 0; i < NUMBERS; numbers[i] = holes[i].number, i++)
        if (!find_number(header, 0, holes + i)) return NULL;
    return numbers[0] > INT32_MAX ? NULL : without((Text){NULL, 0}, header, holes, NUMBERS);
}

/* pull_shape(form, header) -> (shape, opaque, queue offset, offset to commit) or None */
PyObject *pull_shape(PyObject *Py_UNUSED(module), PyObject *args) {
    int form;
    Text header;
    int64_t numbers[NUMBERS];
    if (!PyArg_ParseTuple(args, "iy#:pull_shape", &form, TEXT(header))) return NULL;
    PyObject *shape = read_shape(form, header, numbers);
    if (shape) return Py_BuildValue("(NLLL)", shape, (long long)numbers[0], (long long)numbers[1], (long long)numbers[2]);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
