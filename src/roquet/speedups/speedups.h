/* Numbers, texts and buffers, for all files of the extension. Every length that comes from outside is checked before it is used. */

#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "big-endian machines run the Python functions: nobody has tested this there"
#endif

#define EDITION 18 /* also in __init__.py, which says when it rises */

/* Of records and entries, as in wire/layout.py. */
enum { ENTRY = 20, RECORD_MIN = 91, QUEUE_OFFSET_AT = 20, SYS_FLAG_AT = 36, BODY_AT = 88, HOSTS_V6 = 0x30, PROPERTIES_MAX = 32767 };
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu

typedef unsigned char byte;
typedef struct { const byte *at; Py_ssize_t size; } Text;
typedef struct { byte *at; Py_ssize_t size, room; } Buffer;
typedef struct __attribute__((packed, may_alias)) { uint32_t hash; int64_t offset, ms; } Key; /* of index.KEYS */

/* Room for so many more bytes behind out->size. -1: there is no memory, and the exception is set. */
static inline int reserve(Buffer *out, Py_ssize_t more) {
    if (more <= out->room - out->size) return 0;
    if (more > PY_SSIZE_T_MAX / 4 - out->size) { PyErr_NoMemory(); return -1; }
    Py_ssize_t room = out->size + more < 128 ? 256 : 2 * (out->size + more) + 4096;
    byte *grown = PyMem_Realloc(out->at, room);
    if (!grown) { PyErr_NoMemory(); return -1; }
    out->at = grown, out->room = room;
    return 0;
}

static inline void put16(byte *to, uint16_t n) { n = __builtin_bswap16(n); memcpy(to, &n, 2); }
static inline void put32(byte *to, uint32_t n) { n = __builtin_bswap32(n); memcpy(to, &n, 4); }
static inline void put64(byte *to, uint64_t n) { n = __builtin_bswap64(n); memcpy(to, &n, 8); }
static inline uint16_t get16(const byte *at) { uint16_t n; memcpy(&n, at, 2); return __builtin_bswap16(n); }
static inline uint32_t get32(const byte *at) { uint32_t n; memcpy(&n, at, 4); return __builtin_bswap32(n); }
static inline uint64_t get64(const byte *at) { uint64_t n; memcpy(&n, at, 8); return __builtin_bswap64(n); }

static inline byte *add(byte *to, const void *from, Py_ssize_t size) {
    if (size) memcpy(to, from, size);
    return to + size;
}
static inline byte *add_text(byte *to, Text text) { return add(to, text.at, text.size); }

static inline int same(Text one, Text other) { return one.size == other.size && (!one.size || !memcmp(one.at, other.at, one.size)); }
static inline int has(Text text, byte one) { return text.size > 0 && memchr(text.at, one, text.size); }
#define IS(text, literal) ((text).size == (Py_ssize_t)sizeof(literal) - 1 && !memcmp((text).at, literal, sizeof(literal) - 1))
#define LITERAL(literal) (Text){(const byte *)(literal), sizeof(literal) - 1}

/* Where it stands among these; -1: nowhere. */
static inline int place_among(const Text *texts, int count, Text text) {
    for (int i = 0; i < count; i++)
        if (same(texts[i], text)) return i;
    return -1;
}

/* The bytes of an object; of another type than bytes none, and the exception is set. */
static inline Text bytes_text(PyObject *object) {
    if (PyBytes_Check(object)) return (Text){(const byte *)PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object)};
    PyErr_Format(PyExc_TypeError, "expected bytes, got %.80s", Py_TYPE(object)->tp_name);
    return (Text){NULL, 0};
}

/* Appends a row that was just made and is the list's alone then. -1: there is none, or the exception is set. */
static inline int append(PyObject *list, PyObject *row) {
    int failed = !row || PyList_Append(list, row);
    Py_XDECREF(row);
    return failed ? -1 : 0;
}

static inline PyObject *buffer_bytes(const Buffer *buffer) { return PyBytes_FromStringAndSize((const char *)buffer->at, buffer->size); }

/* An attribute, by a name that is made once and kept. */
static inline PyObject *get(PyObject *object, PyObject **kept, const char *name) {
    if (!*kept) *kept = PyUnicode_InternFromString(name);
    return *kept ? PyObject_GetAttr(object, *kept) : NULL;
}

/* One that is a number; -1: perhaps the exception is set. */
static inline int64_t get_number(PyObject *object, PyObject **kept, const char *name) {
    PyObject *found = get(object, kept, name);
    int64_t number = found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    return number;
}
static inline int wrong_type(const char *why) { PyErr_SetString(PyExc_TypeError, why); return -1; }

/* The parts of a frame. -1: it is none, and the exception is set. */
static inline int frame_parts(PyObject *frame, long *form, Text *header, Text *body) {
    if (!PyTuple_Check(frame) || PyTuple_GET_SIZE(frame) != 3) return wrong_type("a frame is (form, header, body)");
    *form = PyLong_AsLong(PyTuple_GET_ITEM(frame, 0));
    *header = bytes_text(PyTuple_GET_ITEM(frame, 1)), *body = bytes_text(PyTuple_GET_ITEM(frame, 2));
    return PyErr_Occurred() ? -1 : 0;
}

#define TEXT(text) &(text).at, &(text).size /* for y#: the bytes of an argument */

/* All functions. What each does, and which Python function it stands for, is in _native.pyi. */
#define FUNCTIONS(DO) \
    DO(cut_frames) DO(take_sends) DO(put_messages) DO(gather) DO(pull_shape) DO(join_messages) DO(cut_records) DO(fill_heads) \
    DO(derive_run) DO(index_entries) DO(take_many_apart) DO(signed_sends) DO(matching) DO(answer_pulls) \
    DO(now_ms) DO(steady_ms)
#define DECLARE(name) PyObject *name(PyObject *, PyObject *args);
FUNCTIONS(DECLARE)
