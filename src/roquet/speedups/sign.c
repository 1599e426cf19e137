/* Signed sends, as access/signed_sends.py finds them: frames -> how many are signed by somebody who may send them. HMAC-SHA1 is here because
   a call of the library's costs as much as all the rest. What is in any way unusual is left to Python, which looks at it properly. */

#include "json.h"

#define FIELDS_MAX 32
#define BLOCK 64
#define DIGEST 20
#define SIGNATURE 28 /* its base64 */

/* ---- SHA-1 --------------------------------------------------------------------------------------------------------- */

typedef struct { uint32_t h[5]; uint64_t size; byte block[BLOCK]; } Sha1;

#define ROL(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define W(i) (w[(i) & 15] = (i) < 16 ? get32(at + 4 * (i)) : ROL(w[((i) + 13) & 15] ^ w[((i) + 8) & 15] ^ w[((i) + 2) & 15] ^ w[(i) & 15], 1))
#define STEP(a, b, c, d, e, f, k, i) e += (f) + ROL(a, 5) + (k) + W(i); b = ROL(b, 30);
#define FIVE(f, k, i) \
    STEP(a, b, c, d, e, f(b, c, d), k, i) STEP(e, a, b, c, d, f(a, b, c), k, i + 1) STEP(d, e, a, b, c, f(e, a, b), k, i + 2) \
    STEP(c, d, e, a, b, f(d, e, a), k, i + 3) STEP(b, c, d, e, a, f(c, d, e), k, i + 4)
#define TWENTY(f, k, i) FIVE(f, k, i) FIVE(f, k, i + 5) FIVE(f, k, i + 10) FIVE(f, k, i + 15)
#define CHOOSE(x, y, z) (((x) & ((y) ^ (z))) ^ (z))
#define PARITY(x, y, z) ((x) ^ (y) ^ (z))
#define MAJORITY(x, y, z) (((x) & (y)) | ((z) & ((x) | (y))))

static void sha1_plain(uint32_t h[5], const byte *at) {
    uint32_t w[16], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    TWENTY(CHOOSE, 0x5A827999u, 0)
    TWENTY(PARITY, 0x6ED9EBA1u, 20)
    TWENTY(MAJORITY, 0x8F1BBCDCu, 40)
    TWENTY(PARITY, 0xCA62C1D6u, 60)
    h[0] += a; h[1] += b; h[2] += c; h[3] += d; h[4] += e;
}

#ifdef __x86_64__ /* most processors have instructions for it: a fifth of the time */
#include <cpuid.h>
#include <immintrin.h>

#define GROUPS(from, f) \
    for (int g = from; g < from + 5; g++) { \
        if (g > 3) w[g & 3] = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(w[g & 3], w[(g + 1) & 3]), w[(g + 2) & 3]), w[(g + 3) & 3]); \
        e = g ? _mm_sha1nexte_epu32(before, w[g & 3]) : _mm_add_epi32(last, w[0]); \
        before = now; \
        now = _mm_sha1rnds4_epu32(now, e, f); \
    }

__attribute__((target("sha,sse4.1"))) static void sha1_fast(uint32_t h[5], const byte *at) {
    const __m128i turn = _mm_set_epi64x(0x0001020304050607, 0x08090A0B0C0D0E0F); /* the first word comes to the top */
    __m128i w[4], e, before = _mm_setzero_si128(), last = _mm_set_epi32((int)h[4], 0, 0, 0);
    __m128i first = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0x1B), now = first;
    for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(at + 16 * i)), turn);
    GROUPS(0, 0) GROUPS(5, 1) GROUPS(10, 2) GROUPS(15, 3)
    _mm_storeu_si128((__m128i *)h, _mm_shuffle_epi32(_mm_add_epi32(now, first), 0x1B));
    h[4] = (uint32_t)_mm_extract_epi32(_mm_sha1nexte_epu32(before, last), 3);
}

static int has_instructions(void) {
    unsigned a, b = 0, c = 0, d, b7 = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && c & 1u << 19 && __get_cpuid_count(7, 0, &a, &b7, &b, &d) && b7 & 1u << 29;
}

static void sha1_block(uint32_t h[5], const byte *at) {
    static int fast = -1;
    if (fast < 0) fast = has_instructions();
    if (fast) sha1_fast(h, at);
    else sha1_plain(h, at);
}
#else
#define sha1_block sha1_plain
#endif

static void sha1_add(Sha1 *sha, Text text) {
    Py_ssize_t used = sha->size % BLOCK;
    sha->size += text.size;
    if (used) {
        Py_ssize_t some = text.size < BLOCK - used ? text.size : BLOCK - used;
        add(sha->block + used, text.at, some);
        text = (Text){text.at + some, text.size - some};
        if (used + some < BLOCK) return;
        sha1_block(sha->h, sha->block);
    }
    for (; text.size >= BLOCK; text = (Text){text.at + BLOCK, text.size - BLOCK}) sha1_block(sha->h, text.at);
    add(sha->block, text.at, text.size);
}

static void sha1_end(Sha1 *sha, byte digest[DIGEST]) {
    static const byte PAD[BLOCK] = {0x80};
    byte size[8];
    put64(size, sha->size * 8);
    sha1_add(sha, (Text){PAD, 1 + (BLOCK + 55 - (Py_ssize_t)(sha->size % BLOCK)) % BLOCK});
    sha1_add(sha, (Text){size, 8});
    for (int i = 0; i < 5; i++) put32(digest + 4 * i, sha->h[i]);
}

/* HMAC's two states behind the first block, which is made of the key. */
static void key_states(Text key, Sha1 *inner, Sha1 *outer) {
    const Sha1 fresh = {.h = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u}};
    byte pad[BLOCK] = {0}, digest[DIGEST];
    if (key.size > BLOCK) {
        *inner = fresh;
        sha1_add(inner, key);
        sha1_end(inner, digest);
        key = (Text){digest, DIGEST};
    }
    add(pad, key.at, key.size);
    *inner = *outer = fresh;
    for (int i = 0; i < BLOCK; i++) pad[i] ^= 0x36;
    sha1_add(inner, (Text){pad, BLOCK});
    for (int i = 0; i < BLOCK; i++) pad[i] ^= 0x36 ^ 0x5C;
    sha1_add(outer, (Text){pad, BLOCK});
}

/* ---- the fields of a send ------------------------------------------------------------------------------------------ */

typedef struct { Text name, value; } Field;
typedef struct { int64_t code; int count; Field field[FIELDS_MAX]; Text key, signature, topic, letter, broker; } Signed;

/* Kept in the order of their names, which are ASCII. -- Java's order is that of UTF-16 units, the same for these. */
static int take_field(Signed *send, Text name, Text value) {
    if (IS(name, "Signature")) { send->signature = value; return send->signature.size == SIGNATURE; }
    if (send->count == FIELDS_MAX) return LEAVE;
    for (Py_ssize_t i = 0; i < name.size; i++) if (name.at[i] >= 0x80) return LEAVE;
    int at = send->count++;
    for (; at > 0; at--) {
        Text before = send->field[at - 1].name;
        Py_ssize_t shared = before.size < name.size ? before.size : name.size;
        int order = shared ? memcmp(before.at, name.at, shared) : 0;
        if (order < 0 || (!order && before.size < name.size)) break;
        if (!order && before.size == name.size) return LEAVE; /* twice */
        send->field[at] = send->field[at - 1];
    }
    send->field[at] = (Field){name, value};
    if (IS(name, "AccessKey")) send->key = value;
    else if (IS(name, "topic")) send->topic = value;
    else if (IS(name, "b")) send->letter = value;
    else if (IS(name, "n") || IS(name, "bname")) {
        if (send->broker.at) return LEAVE;
        send->broker = value;
    }
    return PLAIN;
}

static int signed_json(Text header, Buffer *scratch, Signed *send) {
    Json json = {header.at, header.at + header.size, scratch};
    int have_code = 0, have_fields = 0;
    Text name, value;
    scratch->size = 0;
    if (reserve(scratch, header.size)) return FAILED;
    if (!json_mark(&json, '{')) return LEAVE;
    do {
        if (!json_string(&json, &name) || !json_mark(&json, ':')) return LEAVE;
        if (IS(name, "code")) {
            if (have_code++ || !json_integer(&json, &send->code)) return LEAVE;
        } else if (IS(name, "extFields")) {
            if (have_fields++ || !json_mark(&json, '{')) return LEAVE;
            do {
                if (!json_string(&json, &name) || !json_mark(&json, ':') || !json_string(&json, &value)) return LEAVE;
                if (!take_field(send, name, value)) return LEAVE;
            } while (json_mark(&json, ','));
            if (!json_mark(&json, '}')) return LEAVE;
        } else if (!json_skip(&json)) return LEAVE;
    } while (json_mark(&json, ','));
    return have_code && json_mark(&json, '}') && json.at == json.end;
}

static int signed_binary(Text header, Signed *send) {
    const byte *at = header.at, *end = at + header.size;
    if (header.size < 21 || get32(at + 13) || get32(at + 17) != (uint32_t)(header.size - 21)) return LEAVE;
    send->code = get16(at);
    for (at += 21; at < end;) {
        if (end - at < 2) return LEAVE;
        Text name = {at + 2, get16(at)};
        at += 2;
        if (name.size > 32767 || end - at < name.size + 4) return LEAVE;
        at += name.size;
        Text value = {at + 4, get32(at)};
        at += 4;
        if (value.size > end - at) return LEAVE;
        at += value.size;
        if (!value.size) continue; /* as upstream: empty is absent */
        if (!is_utf8(name) || !is_utf8(value) || !take_field(send, name, value)) return LEAVE;
    }
    return PLAIN;
}

/* Without an early end: how long it takes says nothing of where they differ. */
static int is_signature(const byte digest[DIGEST], Text given) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    byte made[SIGNATURE], differs = 0;
    for (int i = 0; i < 7; i++) {
        uint32_t three = (uint32_t)digest[3 * i] << 16 | (uint32_t)digest[3 * i + 1] << 8 | (i < 6 ? digest[3 * i + 2] : 0);
        for (int j = 0; j < 4; j++) made[4 * i + j] = (byte)DIGITS[three >> (18 - 6 * j) & 63];
    }
    made[SIGNATURE - 1] = '=';
    for (int i = 0; i < SIGNATURE; i++) differs |= made[i] ^ given.at[i];
    return !differs;
}

/* signed_sends(frames, at, stop, secrets, may, broker name) -> (where the first stands that is not sure, None or what `may` lacks for it) */
PyObject *signed_sends(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *frames, *secrets, *may;
    Py_ssize_t at, stop;
    Text broker;
    if (!PyArg_ParseTuple(args, "O!nnO!Oy#:signed_sends", &PyList_Type, &frames, &at, &stop, &PyDict_Type, &secrets, &may, TEXT(broker))) return NULL;
    if (!PyAnySet_Check(may)) { PyErr_SetString(PyExc_TypeError, "`may` is a set"); return NULL; }
    if (at < 0) at = 0;
    if (stop > PyList_GET_SIZE(frames)) stop = PyList_GET_SIZE(frames);
    Buffer scratch = {NULL, 0, 0};
    PyObject *last_key = NULL, *lacks = NULL; /* the key whose states these are */
    Sha1 inner, outer;
    for (; at < stop && !lacks; at++) {
        PyObject *frame = PyList_GET_ITEM(frames, at);
        Signed send = {.count = 0};
        byte digest[DIGEST];
        if (!PyTuple_Check(frame) || PyTuple_GET_SIZE(frame) != 3) { PyErr_SetString(PyExc_TypeError, "a frame is a tuple of three"); break; }
        long form = PyLong_AsLong(PyTuple_GET_ITEM(frame, 0));
        Text header = bytes_text(PyTuple_GET_ITEM(frame, 1)), body = bytes_text(PyTuple_GET_ITEM(frame, 2));
        if (PyErr_Occurred() || (form ? signed_binary(header, &send) : signed_json(header, &scratch, &send)) != PLAIN) break;
        if (send.code != 310 && send.code != 320 && send.code != 10) break;
        Text topic = send.code == 10 ? send.topic : send.letter;
        if (!topic.size || (send.code == 10 ? send.letter.at : send.topic.at) || !send.key.size || !send.signature.at) break;
        if (send.broker.size && !same(send.broker, broker)) break;
        if (!last_key || !same(bytes_text(last_key), send.key)) {
            Py_XDECREF(last_key);
            if (!(last_key = PyBytes_FromStringAndSize((const char *)send.key.at, send.key.size))) break;
            PyObject *secret = PyDict_GetItemWithError(secrets, last_key);
            if (!secret || !PyBytes_Check(secret)) break;
            key_states(bytes_text(secret), &inner, &outer);
        }
        Sha1 text = inner, whole = outer;
        for (int i = 0; i < send.count; i++) sha1_add(&text, send.field[i].value);
        sha1_add(&text, body);
        sha1_end(&text, digest);
        sha1_add(&whole, (Text){digest, DIGEST});
        sha1_end(&whole, digest);
        if (!is_signature(digest, send.signature)) break;
        PyObject *pair = PyBytes_FromStringAndSize(NULL, send.key.size + 1 + topic.size);
        if (!pair) break;
        byte *to = add((byte *)PyBytes_AS_STRING(pair), send.key.at, send.key.size);
        *to++ = 0;
        add(to, topic.at, topic.size);
        int known = PySet_Contains(may, pair);
        if (known == 1) Py_DECREF(pair);
        else if (known < 0) { Py_DECREF(pair); break; }
        else { lacks = pair; at--; }
    }
    Py_XDECREF(last_key);
    PyMem_Free(scratch.at);
    if (PyErr_Occurred()) { Py_XDECREF(lacks); return NULL; }
    return Py_BuildValue("(nN)", at, lacks ? lacks : Py_NewRef(Py_None));
}
