"""`broker/pull_runs.py` makes the same answers compiled or not, and those that looking at one entry after another would give."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roquet.broker.entries_ahead import Place, Ready
from roquet.broker.gather import SPAN_MAX, gather
from roquet.broker.pull import Pull
from roquet.broker.pull_requests import Grant, PullRequests
from roquet.broker.pull_runs import Answers, answer_pulls, answer_run
from roquet.broker.topics import Topic
from roquet.speedups import native
from roquet.store.disk import Cold, blocking
from roquet.store.mending import Odd
from roquet.store.queue import ENTRY_SIZE, ConsumeQueue
from roquet.store.stretches import STRETCH
from roquet.testing import FakePeer
from roquet.wire.batch import join_batch
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer
from roquet.wire.layout import ENTRY
from roquet.wire.pull_shapes import pull_shape

from .whole import Whole, pull_fields, send_fields

FORMS: list[Callable[..., Answers]] = [answer_pulls] if native is None else [answer_pulls, native.answer_pulls]
compiled = pytest.mark.skipif(native is None, reason="the extension is not here")
SCENES = 3_000
BEHIND = 500
"""Bytes that a stretch of a scene is longer than it must be."""


def frame_of(request: Command) -> Frame:
    (frame,) = Framer().feed(request.encode())
    return frame


# A store that scenes are played over


class World:
    """A broker whose log has several files, with queues of several topics in it; its entries and its log as bytes."""

    def __init__(self, root: Path) -> None:
        self.whole = made = Whole(root / "store", mapped_file_size_commit_log=1 << 18, mapped_file_size_consume_queue=40_000)
        random = Random(7)
        for topic in ("T", "U"):
            made.broker.topics.put(Topic(topic, 4, 4))
        self.places: list[Place] = [("T", 0), ("T", 1), ("U", 0), ("U", 3)]
        for _ in range(350):
            topic, queue_id = random.choice(self.places)
            if random.random() < 0.6:
                parts = [(0, random.randbytes(random.choice((0, 10, 60))), b"") for _ in range(random.choice((1, 4, 32)))]
                assert made.ask(310, send_fields(topic, queue_id, m="true"), join_batch(parts)).code == 0
            else:
                assert made.ask(310, send_fields(topic, queue_id), random.randbytes(random.choice((0, 700, 3_000, 20_000)))).code == 0
        for _ in range(40):  # a queue with more entries than are looked at together
            assert made.ask(310, send_fields("T", 1, m="true"), join_batch([(0, b"small", b"")] * 32)).code == 0
        self.log = made.broker.store.log
        self.data = b"".join(file.read_bytes() for file in sorted((root / "store" / "commitlog").iterdir()))
        self.queues = {place: made.broker.store.queue(*place) for place in self.places}
        self.entries = {place: self._entries(queue) for place, queue in self.queues.items()}
        self.files = self.log.segments.size

    def _entries(self, queue: ConsumeQueue) -> bytes:
        found = b""
        while len(found) < queue.visible * ENTRY_SIZE:
            found += blocking(queue.read, len(found) // ENTRY_SIZE, queue.visible)
        return found

    def view(self, offset: int, size: int) -> memoryview:
        """As the log shows itself: bytes of one file."""
        if offset < 0 or offset // self.files != (offset + size - 1) // self.files or offset + size > self.log.written:
            raise LookupError(f"{size} bytes at {offset}")
        return memoryview(self.data)[offset : offset + size]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("runs"))
    yield made
    made.whole.close()


@dataclass
class Kind:
    """Pulls of one shape."""

    group: str
    place: Place
    fields: dict[str, str]
    binary: bool

    def frame(self, opaque: int, offset: int, told: int, body: bytes = b"") -> Frame:
        fields = self.fields | {"queueOffset": str(offset), "commitOffset": str(told)}
        return frame_of(Command(11, fields, body, opaque=opaque, binary=self.binary))


@dataclass
class Views:
    """Shows the log, and notes for what it was asked. From the `fails_at`-th time on it raises `error`."""

    world: World
    fails_at: int = 1 << 60
    error: BaseException = field(default_factory=LookupError)
    as_bytes: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, offset: int, size: int) -> memoryview:
        self.asked.append((offset, size))
        if len(self.asked) > self.fails_at:
            raise self.error
        found = self.world.view(offset, size)
        return cast(memoryview, bytes(found)) if self.as_bytes else found


@dataclass
class Scene:
    """The arguments of one call."""

    frames: list[Frame]
    at: int
    ready: dict[bytes, Ready]
    queues: dict[Place, ConsumeQueue]
    terms: tuple[int, int, int, int, int, int]
    stretches: dict[int, memoryview]
    stretch: int
    views: Callable[[], Views]
    span_max: int
    bytes_max: int

    def play(self, form: Callable[..., Answers]) -> tuple[Answers, list[tuple[int, int]]]:
        """What comes of it, and what was asked of the log."""
        view = self.views()
        found = form(
            self.frames, self.at, self.ready, self.queues, self.terms, self.stretches, self.stretch, view, self.span_max, self.bytes_max,
        )  # fmt: skip
        return found, view.asked


def spoiled(raw: bytes, random: Random) -> bytes:
    """One or two entries are damaged."""
    made = bytearray(raw)
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(max(1, min(40, len(raw) // ENTRY_SIZE))) * ENTRY_SIZE
        place, size, tag = ENTRY.unpack_from(raw, at)
        made[at : at + ENTRY_SIZE] = ENTRY.pack(
            *random.choice(
                (
                    (place, 0x7FFFFFFF, tag), (place, 0, tag), (place, -1, tag), (place, size + 1, tag), (place, 90, tag),
                    (place, 1 << 26, tag), (place + 1, size, tag), (-1, size, tag), (1 << 62, size, tag), (0, size, tag),
                    (place, size, tag ^ 1), (place, size, tag + (1 << 32)), (place, size, tag - (1 << 40)), (0, 0, 0),
                    (place, size - 1, tag), (-1 << 63, size, tag), ((1 << 63) - 1, size, tag),
                )
            )
        )  # fmt: skip
    return bytes(made)


def other_frame(random: Random, kind: Kind) -> Frame:
    """One that is no pull, or none that one could be sure of."""
    form, header, body = kind.frame(1, 1, 1)
    return random.choice(
        (
            frame_of(Command(310, send_fields(), b"x", opaque=1, binary=kind.binary)),
            frame_of(Command(34, {}, b"{}", opaque=1)),
            frame_of(Command(11, kind.fields, opaque=1, flag=1, binary=kind.binary)),
            frame_of(Command(361, kind.fields, opaque=1, binary=kind.binary)),
            (form, b"", body),
            (form, header[:-3], body),
            (form, header[:30], body),
            (form, header.replace(b"queueOffset", b"queueoffset"), body),
            (1 - form, header, body),
            (0, b'{"code":11,"opaque":99999999999,"queueOffset":"1","commitOffset":"1"}', b""),
            kind.frame(1, -1, 1),
            kind.frame(1, 10**18, 1),
        )
    )


def a_scene(world: World, random: Random, spoil: float = 0.15) -> Scene:
    """One in which most is as usual, and one thing or another is not."""
    trouble = random.choice((0.0, 0.3, 1.0))

    def odd(share: float = 0.08) -> bool:
        return random.random() < share * trouble

    places = random.sample(world.places, random.randint(1, 3))
    queues: dict[Place, ConsumeQueue] = {}
    for place in places:
        real = world.queues[place]
        first = random.randrange(real.visible) if odd() else 0
        last = random.randint(first, real.visible) if odd(0.3) else real.visible
        queues[place] = cast(ConsumeQueue, SimpleNamespace(first=first, visible=last))
    grants = {name: Grant(GroupConfig(name), Topic("T", 4, 4), None, None, f"T@{name}", gather) for name in "gh"}
    kinds: list[Kind] = []
    ready: dict[bytes, Ready] = {}
    starts: dict[int, int] = {}
    for number in range(random.randint(1, 5)):
        place = random.choice(places)
        fields = pull_fields(
            *place,
            consumerGroup="h" if odd(0.05) else "g",
            maxMsgNums=random.choice(("1", "2", "8", "32", "32", "1024", "1100")),
            sysFlag=random.choice(("4", "5")),
        )
        if random.random() < 0.3:
            fields["maxMsgBytes"] = random.choice(("1", "700", "5000", "100000"))
        kind = Kind(fields["consumerGroup"], place, fields, random.random() < 0.5)
        kinds.append(kind)
        queue, raw = queues[place], world.entries[place]
        start = random.randrange(queue.visible + 1) if odd() else random.randint(0, max(0, queue.visible - 100))
        starts[number] = start
        raw = raw[start * ENTRY_SIZE : (start + random.choice((5, 100, 1_024, 1_024, 2_000))) * ENTRY_SIZE]
        if raw and random.random() < spoil:
            raw = spoiled(raw, random)
        if odd(0.05):
            raw = raw[: -random.randrange(1, 20)]
        known = PullRequests().find(kind.frame(1, 0, 0))
        assert known is not None
        if not odd(0.03):
            grant = None if odd(0.05) else grants[kind.group] if not odd(0.03) else grants["h"]
            about = known[0]
            ready[about.shape] = grant, place, queue, start, raw, about.count_max, about.size_max, about.commits, kind.binary
    for place in places:
        if odd(0.03):
            del queues[place]
        elif odd(0.03):
            queues[place] = cast(ConsumeQueue, SimpleNamespace(first=0, visible=queues[place].visible))
    frames: list[Frame] = []
    for _ in range(random.choice((1, 3, 12, 40))):
        number = random.randrange(len(kinds))
        kind, start = kinds[number], starts[number]
        last = world.queues[kind.place].visible
        offset = start + random.choice((0, 0, 1, 5, random.randrange(60), random.randrange(60)))
        if odd(0.05):
            offset = max(0, random.choice((start - 1, last - 1, last, last + 5, 10**17, start + random.randrange(1_100))))
        told = random.choice((0, offset, offset, last, last + 1, 10**18 - 1))
        opaque = random.choice((0, 1, random.randrange(1 << 31), 0x7FFFFFFF))
        frames.append(other_frame(random, kind) if odd(0.03) else kind.frame(opaque, offset, told, b"body" if odd() else b""))
    written = world.log.written
    start = random.randrange(written) if odd(0.05) else 0
    near = random.choice((-1 << 40, 0, start, written // 8 if odd(0.3) else 0, written if odd(0.1) else 0))
    terms = start, written, near, random.choice((32, 32, 5, 1, 1_024, 1_100)), random.choice((1 << 18, 1 << 18, 3_000)), 1 << 22
    stretch = random.choice((1_000, 4_096, 100_000, 100_000, STRETCH))
    kept: dict[int, memoryview] = {}
    if random.random() < 0.7:
        share = random.choice((0.2, 0.8, 1.0))
        for n in range(written // stretch + 1):
            if random.random() < share:
                length = stretch + BEHIND if not odd() else random.randrange(stretch)
                kept[n] = memoryview(world.data)[n * stretch : min(n * stretch + length, written)]
    fails_at = random.randrange(12) if odd() else 1 << 60
    error = random.choice((Cold(lambda: None), LookupError("gone"), OSError("broken"), RuntimeError("a mistake of ours")))
    as_bytes = odd(0.2)
    at = random.choice((0, 0, 0, 0, len(frames) // 2, len(frames) - 1)) if not odd(0.04) else random.choice((-1, len(frames), 99, -1 << 40))
    return Scene(
        frames, at, ready, queues, terms, kept, stretch, lambda: Views(world, fails_at, error, as_bytes),
        random.choice((5_000, 1)) if odd(0.4) else SPAN_MAX,
        random.choice((5_000, 1, 0, -1)) if odd(0.3) else random.choice((1 << 18, 1 << 30)),
    )  # fmt: skip


@compiled
@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_one_answers_as_python_does(world: World, seed: int) -> None:
    random, seen = Random(seed), Counter[str]()
    for number in range(SCENES):
        scene = a_scene(world, random)
        (one, asked), (other, also_asked) = [scene.play(form) for form in FORMS]
        assert one == other, f"scene {number}"
        assert one[2] is other[2]
        assert also_asked == asked[: len(also_asked)], "a record that is not its entry's ends it sooner"
        answered = len(one[0])
        seen["scenes with answers"] += answered > 0
        seen["answers"] += answered
        seen["many"] += answered > 10
        seen["all"] += scene.at + answered == len(scene.frames)
        seen["told"] += len(one[1])
        seen["told less"] += len(one[1]) < answered
        seen["viewed"] += one[5] > 0
        seen["asked"] += len(asked)
        seen["nobody"] += one[2] is None
        seen["allowed, and yet no answer"] += one[2] is not None and not answered
        seen["full"] += one[4] >= scene.bytes_max > 0
    assert all(count > SCENES // 50 for count in seen.values()), seen


def test_what_is_answered_is_what_one_entry_after_another_would_give(world: World) -> None:
    """Whatever is wrong with the entries, and wherever the log is seen."""
    random, puller, answers = Random(11), world.whole.broker.puller, 0
    for number in range(SCENES // 3):
        scene = a_scene(world, random, 0.5)
        found, _ = scene.play(answer_run)
        told, count, size = [], 0, 0
        for frame, answer in zip(scene.frames[max(0, scene.at) :], found[0], strict=False):
            shaped = pull_shape(frame[0], frame[1])
            assert shaped is not None
            shape, opaque, offset, progress = shaped
            _, place, queue, start, raw, count_max, size_max, tells, binary = scene.ready[shape]
            most = min(count_max, scene.terms[3]), min(size_max, scene.terms[4])
            at, wanted = (offset - start) * ENTRY_SIZE, min(most[0], queue.visible - offset)
            asked = Pull(FakePeer(), Command(11), "g", *place, offset, offset, *most, None, None, 0)
            try:
                picked = blocking(puller._pick, asked, raw[at : at + wanted * ENTRY_SIZE], queue.first, queue.visible, *most)
            except (LookupError, Odd):
                pytest.fail(f"scene {number}: what is odd to whoever looks properly was answered")
            reply = decode(frame_of_answer(answer))
            assert reply.body == b"".join(picked.records)
            assert (reply.opaque, reply.code, reply.remark, reply.binary) == (opaque, 0, "FOUND", binary)
            assert reply.fields == {
                "suggestWhichBrokerId": "0", "nextBeginOffset": str(picked.next_offset), "minOffset": str(queue.first),
                "maxOffset": str(queue.visible),
            }  # fmt: skip
            told += [(place, progress)] if tells and progress <= queue.visible else []
            count, size, answers = count + picked.count, size + len(reply.body), answers + 1
        assert found[1] == told
        assert found[3:5] == (count, size)
    assert answers > SCENES // 2


def frame_of_answer(answer: bytes) -> Frame:
    (frame,) = Framer().feed(answer)
    return frame


# What the compiled one is not made for


class Grumbles:
    """Whatever is asked of it fails."""

    def __bool__(self) -> bool:
        raise ValueError("neither")

    def __len__(self) -> int:
        raise ValueError("nobody knows")


def edges(**numbers: object) -> ConsumeQueue:
    return cast(ConsumeQueue, SimpleNamespace(**({"first": 0, "visible": 100} | numbers)))


GRANT = Grant(GroupConfig("g"), Topic("T", 4, 4), None, None, "T@g", gather)


class Call:
    """The arguments of a call that answers one pull, to be spoiled."""

    def __init__(self, world: World) -> None:
        kind = Kind("g", ("T", 0), pull_fields(sysFlag="5"), False)
        self.frame = kind.frame(1, 0, 7)
        known = PullRequests().find(self.frame)
        assert known is not None
        self.shape = known[0].shape
        raw = world.entries[kind.place]
        self.ready: list[Any] = [GRANT, kind.place, world.queues[kind.place], 0, raw, 32, 1 << 31, True, False]
        self.terms: list[Any] = [0, world.log.written, -1, 32, 1 << 18, 1 << 22]
        self.arguments: list[Any] = [
            [self.frame], 0, {self.shape: tuple(self.ready)}, dict(world.queues), tuple(self.terms), {}, STRETCH, world.view, SPAN_MAX,
            1 << 18,
        ]  # fmt: skip

    def made_ready(self, at: int, value: object) -> None:
        self.ready[at] = value
        self.arguments[2] = {self.shape: tuple(self.ready)}

    def with_queue(self, queue: object) -> None:
        self.arguments[3] = {("T", 0): queue}
        self.made_ready(2, queue)

    def with_term(self, at: int, value: object) -> None:
        self.terms[at] = value
        self.arguments[4] = tuple(self.terms)


WRONG_ARGUMENTS: list[tuple[int, object]] = [
    (0, None), (0, ()), (0, {}), (0, [None]), (0, [5]), (0, [()]), (0, [b"xyz"]),
    (1, None), (1, "0"), (1, 1 << 70), (1, 0.0), (2, None), (2, []), (3, None), (3, ()),
    (4, None), (4, ()), (4, (0, 1, 2, 3, 4)), (4, (0, 1, 2, 3, 4, 5, 6)), (4, 5),
    (5, None), (5, []), (6, None), (6, "1"), (6, 1 << 70), (8, None), (8, "x"), (8, 1 << 70), (9, None), (9, 1.5), (9, 1 << 70),
]  # fmt: skip


@compiled
@pytest.mark.parametrize(("at", "value"), WRONG_ARGUMENTS, ids=str)
def test_an_argument_of_another_type_is_refused(world: World, at: int, value: object) -> None:
    assert native is not None
    call = Call(world)
    assert len(native.answer_pulls(*call.arguments)[0]) == 1
    call.arguments[at] = value
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.answer_pulls(*call.arguments)


@compiled
def test_a_wrong_number_of_arguments_is_refused(world: World) -> None:
    assert native is not None
    arguments = Call(world).arguments
    for some in ([], arguments[:9], [*arguments, 1]):
        with pytest.raises(TypeError):
            native.answer_pulls(*some)


@compiled
def test_a_frame_that_is_none_is_refused(world: World) -> None:
    assert native is not None
    call = Call(world)
    form, header, body = call.frame
    others: list[Any] = [
        (form, header), (form, header, body, 1), [form, header, body], ("0", header, body), (None, header, body), (1 << 70, header, body),
        (form, "text", body), (form, None, body), (form, bytearray(header), body), (form, header, None), (form, header, "x"),
    ]  # fmt: skip
    for wrong in others:
        for frames in ([wrong], [call.frame, wrong]):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                native.answer_pulls(frames, *call.arguments[1:])


@compiled
@pytest.mark.parametrize("value", [None, 5, (), [], b"123456789", "123456789", (1,) * 8, (1,) * 10], ids=str)
def test_what_is_ready_and_no_such_tuple_is_refused(world: World, value: object) -> None:
    assert native is not None
    call = Call(world)
    call.arguments[2] = {call.shape: value}
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.answer_pulls(*call.arguments)
    call.arguments[2] = {call.shape: list(call.ready)}
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.answer_pulls(*call.arguments)


WRONG_PARTS: list[tuple[int, object]] = [
    (1, []), (1, ("T", [])), (3, None), (3, "0"), (3, 1 << 70), (3, 1.5), (4, None), (4, "text"), (4, 5), (4, bytearray(20)),
    (5, None), (5, "32"), (5, 1 << 70), (6, None), (6, 1 << 70), (7, Grumbles()), (8, Grumbles()),
]  # fmt: skip


@compiled
@pytest.mark.parametrize(("at", "value"), WRONG_PARTS, ids=str)
def test_a_part_of_what_is_ready_that_has_another_type_is_refused(world: World, at: int, value: object) -> None:
    assert native is not None
    call = Call(world)
    call.made_ready(at, value)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        native.answer_pulls(*call.arguments)


@compiled
@pytest.mark.parametrize("value", [None, "5", 1.5, 1 << 63, -1 << 64])
@pytest.mark.parametrize("name", ["first", "visible"])
def test_a_queue_whose_ends_are_no_numbers_is_refused(world: World, name: str, value: object) -> None:
    assert native is not None
    call = Call(world)
    call.with_queue(edges(**{name: value}))
    with pytest.raises((TypeError, OverflowError)):
        native.answer_pulls(*call.arguments)
    for lacking in (5, SimpleNamespace(), SimpleNamespace(first=0), SimpleNamespace(visible=100)):
        call.with_queue(lacking)
        with pytest.raises(AttributeError):
            native.answer_pulls(*call.arguments)


@compiled
@pytest.mark.parametrize("value", [None, "5", 1.5, 1 << 63])
@pytest.mark.parametrize("at", range(6))
def test_a_term_that_is_no_number_is_refused(world: World, at: int, value: object) -> None:
    assert native is not None
    call = Call(world)
    call.with_term(at, value)
    with pytest.raises((TypeError, OverflowError)):
        native.answer_pulls(*call.arguments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "view",
    [
        None, 5, lambda: None, lambda offset, size: None, lambda offset, size: 5, lambda offset, size: "x" * size,
        lambda offset, size: [0] * size,
        lambda offset, size: b"", lambda offset, size: bytes(size), lambda offset, size: memoryview(bytes(2 * size))[::2],
        lambda offset, size: 1 // 0,
    ],
)  # fmt: skip
def test_a_log_that_shows_no_records_leaves_the_pull_to_others(world: World, form: Callable[..., Answers], view: object) -> None:
    call = Call(world)
    call.arguments[7] = view
    assert form(*call.arguments) == ([], [], GRANT, 0, 0, 0)


@compiled
def test_a_log_that_shows_less_than_was_asked_for_leaves_the_pull_to_others(world: World) -> None:
    assert native is not None
    call = Call(world)
    for missing in (1, 20, 100):
        call.arguments[7] = lambda offset, size, missing=missing: world.view(offset, size)[:-missing]
        assert native.answer_pulls(*call.arguments) == ([], [], GRANT, 0, 0, 0)


@compiled
@pytest.mark.parametrize(
    "kept", [5, None, "x" * STRETCH, [0] * STRETCH, Grumbles(), memoryview(bytes(STRETCH * 2))[::2]], ids=lambda kept: type(kept).__name__
)
def test_a_stretch_that_has_no_bytes_leaves_the_pull_to_others(world: World, kept: object) -> None:
    assert native is not None
    call = Call(world)
    call.arguments[5] = {0: kept}
    assert native.answer_pulls(*call.arguments)[:5] == ([], [], GRANT, 0, 0)


@compiled
def test_a_stretch_that_says_it_is_longer_than_it_is_leaves_the_pull_to_others(world: World) -> None:
    class Liar(bytes):
        def __len__(self) -> int:
            return 1 << 40

    assert native is not None
    call, offset = Call(world), 300
    place = int.from_bytes(world.entries["T", 0][offset * ENTRY_SIZE :][:8], "big")
    call.arguments[0] = [Kind("g", ("T", 0), pull_fields(sysFlag="5"), False).frame(1, offset, 0)]
    call.made_ready(5, 1)
    call.arguments[6] = 1 << 30
    for length, answers in ((place + 100_000, 1), (place + 88, 0), (place, 0)):
        call.arguments[5] = {0: Liar(world.data[:length])}
        assert len(native.answer_pulls(*call.arguments)[0]) == answers


@pytest.mark.parametrize("form", FORMS)
def test_what_ends_the_program_is_not_swallowed(world: World, form: Callable[..., Answers]) -> None:
    call = Call(world)
    for error in (KeyboardInterrupt, SystemExit):
        call.arguments[7] = Views(world, 0, error())
        with pytest.raises(error):
            form(*call.arguments)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_are_far_off_leave_the_pull_to_others(world: World, form: Callable[..., Answers]) -> None:
    most = (1 << 63) - 1
    for start, first, last, offset in (
        (0, 0, -1, 0), (0, 0, -most, 5), (0, 0, -most - 1, 10**18 - 1), (0, most, most, 0), (most, 0, most, 0), (0, 0, most, 10**18 - 1),
        (10**18, 0, most, 10**18 - 1), (-5, 0, 100, 10**6), (-most - 1, 0, most, 10**17),
    ):  # fmt: skip
        call = Call(world)
        call.with_queue(edges(first=first, visible=last))
        call.made_ready(3, start)
        call.arguments[0] = [Kind("g", ("T", 0), pull_fields(sysFlag="5"), False).frame(1, offset, 0)]
        assert form(*call.arguments) == ([], [], GRANT, 0, 0, 0), (start, first, last, offset)


@compiled
def test_nothing_is_kept_of_what_it_was_given(world: World) -> None:
    """Whatever comes of it: answers, a pull that is left, a refusal."""
    assert native is not None
    grant, place, queue = object(), ("T", int("0")), world.queues["T", 0]

    def fails(offset: int, size: int) -> memoryview:
        raise LookupError(offset)

    calls: list[Call] = []
    for at, value in ((7, world.view), (7, fails), (7, lambda offset, size: b""), (5, {0: memoryview(world.data)}), (5, {0: 5}), (9, None)):
        calls.append(Call(world))
        calls[-1].made_ready(0, grant)
        calls[-1].made_ready(1, place)
        calls[-1].arguments[at] = value
    watched: list[object] = [grant, place, queue, world.data, fails, *(call.frame for call in calls), *(call.shape for call in calls)]
    watched += [call.arguments[number] for call in calls for number in (0, 2, 3, 4, 5)] + [call.arguments[2][call.shape] for call in calls]
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(50):
        for call in calls:
            try:
                native.answer_pulls(*call.arguments)
            except TypeError:
                assert call is calls[-1]
    assert [sys.getrefcount(one) for one in watched] == before
