"""Hostile frames made from the recorded ones: wrong types in every field of every request, and seeded damage to the bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from random import Random

from roquet.wire.frame import JSON, Framer, encode_frame
from tests.process.line import send_message
from tests.wire.golden_frames import Golden, golden

DEEP = "[" * 900 + "]" * 900

WRONG = (
    "null", "true", "0", "-1", "1.5", "1e308", "1e400", "2147483648", "-2147483649", "9223372036854775808", "-9223372036854775809",
    "1" + "0" * 400, "[]", "[1,[2,[3]]]", "{}", '{"a":{"b":null}}', DEEP, '""', '" "', '"NaN"', '"1_000"', '" 1"', '"1e3"', '"٣"', '"0x10"',
    '"-0"', '"99999999999"', '"-99999999999"', '"99999999999999999999"', '"\\u0000"', '"../x"', '"a/b"', '"..%2fx"', '"%s%n%x"',
    '"\\u2028"', '"😀"', '"' + "x" * 300 + '"', '"' + "y" * 70_000 + '"', '"a\\u0001b\\u0002c\\u0001"', '"%RETRY%"',
)  # fmt: skip
"""JSON texts that stand where a short text should."""

WRONG_HEADS = (
    '{"code":%s}', '{"code":34,"opaque":%s}', '{"code":34,"flag":%s}', '{"code":34,"version":%s}', '{"code":34,"extFields":%s}',
    '{"code":34,"remark":%s}', '{"code":34,"language":%s}', "%s",
    '{"code":310,"flag":0,"opaque":%s,"version":409,"extFields":SEND}', '{"code":310,"flag":%s,"opaque":1,"version":409,"extFields":SEND}',
    '{"code":310,"flag":0,"opaque":1,"version":%s,"extFields":SEND}', '{"code":%s,"flag":0,"opaque":1,"version":409,"extFields":SEND}',
)  # fmt: skip
SEND = json.dumps(send_message("known", b"", properties={"TAGS": "t"}).fields)


@cache
def requests() -> tuple[Golden, ...]:
    return tuple(one for one in golden() if one.is_request)


@cache
def one_of_each_code() -> tuple[Golden, ...]:
    """One recorded JSON request for every code, also those that only clients receive."""
    found: dict[int, Golden] = {}
    for one in requests():
        if one.form == "JSON":
            found.setdefault(one.request_code, one)
    return tuple(found.values())


def wrong_fields() -> Iterator[bytes]:
    """Every field of every recorded request, in turn replaced by every wrong value, and left out."""
    for one in one_of_each_code():
        ((_, header, body),) = Framer().feed(one.data)
        head = json.loads(header)
        fields = head.get("extFields") or {}
        for name in [*fields, "aFieldThatNobodyKnows"]:
            others = {key: value for key, value in fields.items() if key != name}
            for value in (*WRONG, None):
                texts = [f"{json.dumps(key)}:{json.dumps(known)}" for key, known in others.items()]
                if value is not None:
                    texts.append(f"{json.dumps(name)}:{value}")
                rest = {key: known for key, known in head.items() if key != "extFields"}
                text = json.dumps(rest)[:-1] + ',"extFields":{' + ",".join(texts) + "}}"
                yield encode_frame(JSON, text.encode(), body)


def wrong_heads() -> Iterator[bytes]:
    for shape in WRONG_HEADS:
        for value in WRONG:
            yield encode_frame(JSON, (shape % value).replace("SEND", SEND).encode(), b"body")


def wrong_bodies() -> Iterator[bytes]:
    """Every recorded request with bodies that are not what it needs."""
    bodies = (
        b"", b"\0", b"null", b"[]", b"{}", b"0", b"{", b'{"a":', b"\xff\xfe", DEEP.encode(), b"[" * 100_000, b'{"a":' * 50_000,
        b'{"topicConfigTable":{"x":null}}', b'{"consumerDataSet":[null],"producerDataSet":[1],"clientID":"c"}',
        b'{"clientID":5,"consumerDataSet":{},"producerDataSet":"x"}', b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}',
        b'{"mqSet":[null],"consumerGroup":"g","clientId":"c"}', b'{"mqSet":[{"topic":"../x","queueId":"a","brokerName":[]}]}',
        b'{ {"a":1}:{} }', b"{1:2,3:{4:5}}", bytes(100_000), b"a=b", b"=", b"\n\n=\n", b"a" * 100_000,
    )  # fmt: skip
    for one in one_of_each_code():
        ((form, header, _),) = Framer().feed(one.data)
        for body in bodies:
            yield encode_frame(form, header, body)


def damaged(random: Random, each: int) -> Iterator[bytes]:
    """Every recorded request, `each` times with damage somewhere behind the frame's length, which is made right again."""
    for one in requests():
        for _ in range(each):
            inner = bytearray(one.data[4:])
            for _ in range(random.choice((1, 1, 2, 5, 40))):
                damage(inner, random)
            yield len(inner).to_bytes(4, "big") + inner


def damage(data: bytearray, random: Random) -> None:
    if len(data) < 8:
        data += bytes(8)
    # Most of the interest is in the header.
    at = random.randrange(len(data)) if random.random() < 0.5 else random.randrange(min(len(data), 400))
    match random.randrange(7):
        case 0:
            data[at] ^= 1 << random.randrange(8)
        case 1:
            data[at] = random.choice(b'\x00\xff\x7f\x80"{}[],:0-9.e\\\x01\x02/')
        case 2:
            del data[at : at + random.choice((1, 2, 8, 100))]
        case 3:
            data[at:at] = random.randbytes(random.choice((1, 2, 8, 100)))
        case 4:
            data[at:at] = data[at : at + random.choice((2, 8, 50))]
        case 5:
            data[at : at + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\xff\xff\xff"))
        case _:
            data[at : at + 1] = random.choice((b"99999999999999999999", b"null", b"1e999", b"[[[[[[", b'"', b"true", b"-"))
