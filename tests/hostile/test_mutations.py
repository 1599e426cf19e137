"""Thousands of hostile frames against both cores in this process: an answer or a closed connection, and never anything else.

What counts as anything else: an exception that leaves the core, one that was only caught by the last resort (it is logged
with its traceback), two answers, an answer that cannot be encoded, a store that does not read back afterwards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from roquet.errors import Broken
from roquet.nameserver.core import NameServer
from roquet.settings import NameServerSettings
from roquet.speedups import native
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer, WholeBroker
from roquet.testing.clock import ManualClock
from roquet.wire import command as commands
from roquet.wire.command import Command
from roquet.wire.frame import JSON, Frame, Framer
from roquet.wire.record import Record
from tests.hostile import mutations
from tests.hostile.conftest import LastResort
from tests.process.line import create_topic, max_offset, pull, records, send_message

EACH = 500 if os.environ.get("ROQUET_LONG") else 60
"""Damaged copies of each of the 180 recorded requests, times two cores; ROQUET_LONG=1 makes it 500."""

Corpus = Iterable[bytes]
FORMS = ["python"] if native is None else ["python", "compiled"]


def corpora() -> Iterator[tuple[str, Corpus]]:
    yield "wrong-fields", mutations.wrong_fields()
    yield "wrong-heads", mutations.wrong_heads()
    yield "wrong-bodies", mutations.wrong_bodies()
    for seed in (1, 2):
        yield f"damaged-{seed}", mutations.damaged(Random(seed), EACH)


CORPORA = {name: list(frames) for name, frames in corpora()}


def feed(
    core: NameServer | WholeBroker, frame: bytes, last_resort: LastResort, troubles: list[str], address: str = "127.0.0.1:40001"
) -> list[Command]:
    """One frame on a fresh connection, and what was answered. What goes wrong is added to `troubles`."""
    peer = FakePeer(address)
    shown = repr(frame[:400])
    before = len(last_resort.caught)
    target = core.broker if isinstance(core, WholeBroker) else core
    try:
        frames = Framer().feed(frame)
    except Broken:
        return []
    try:
        target.receive(peer, frames)
        target.tick(core.clock.now_ms())
        target.disconnected(peer)
    except Exception as error:
        troubles.append(f"{type(error).__name__}: {error} left the core for {shown}")
    troubles += [f"{what} for {shown}" for what in last_resort.caught[before:]]
    answers = [answer for answer in peer.sent if answer.is_response]
    if len(answers) > 1:
        troubles.append(f"{len(answers)} answers for {shown}")
    if answers and answers[0].opaque != opaque_of(frames[0]):
        troubles.append(f"{answers[0]} answers another request than {shown}")
    # A parked pull whose connection is gone must not be answered later.
    peer.closed = True
    return answers


def opaque_of(frame: Frame) -> int | None:
    """What the answer must carry; an int in whatever JSON type it came as."""
    form, header, _ = frame
    if form == JSON:
        opaque = json.loads(header).get("opaque", 0)
        return opaque if isinstance(opaque, int) else None
    return commands.decode(frame).opaque


def report(troubles: list[str]) -> None:
    kinds: dict[str, list[str]] = {}
    for trouble in troubles:
        kinds.setdefault(trouble.split(" for b'")[0][:160], []).append(trouble)
    text = "\n".join(f"{len(those)} x {those[0][:700]}" for those in kinds.values())
    assert not troubles, f"{len(troubles)} troubles of {len(kinds)} kinds\n{text}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CORPORA)
def test_a_broker_survives_hostile_frames_and_its_store_reads_back(
    name: str, form: str, tmp_path: Path, last_resort: LastResort
) -> None:  # fmt: skip
    inside = WholeBroker(tmp_path)
    if form == "python":
        inside.broker.sender.plain.native = None
    assert inside.ask(create_topic("known")).code == 0
    assert inside.ask(send_message("known", b"before", queue_id=1)).code == 0
    troubles: list[str] = []
    for frame in CORPORA[name]:
        feed(inside, frame, last_resort, troubles)
    inside.settings.broker_permission = 6  # a recorded update of the settings may have been damaged into a valid one
    if inside.broker.topics.get("known") is None:
        troubles.append("the topic is gone, and nobody asked for that")
    answer = inside.ask(send_message("known", b"after", queue_id=1))
    if answer.code:
        troubles.append(f"a good message is refused afterwards: {answer}")
    inside.broker.close()
    troubles += read_back(tmp_path)
    report(troubles)


def read_back(root: Path) -> list[str]:
    """Open the store anew, and look at every message of every queue."""
    inside = WholeBroker(root)
    troubles = []
    bodies = []
    for queue in inside.broker.store.queues.values():
        for offset in range(queue.first, queue.visible):
            entry = queue.entry(offset)
            assert entry is not None
            try:
                record = Record.decode(inside.broker.store.record_at(entry[0]))
            except Exception as error:
                troubles.append(f"{queue.topic}/{queue.queue_id} offset {offset} does not read back: {error!r}")
                continue
            if (record.topic, record.queue_id, record.queue_offset) != (queue.topic, queue.queue_id, offset):
                troubles.append(f"{queue.topic}/{queue.queue_id} offset {offset} holds {record}")
            if queue.topic == "known":
                bodies.append(record.body)
    if b"before" not in bodies or b"after" not in bodies:
        troubles.append(f"good messages are gone: {bodies[:10]}")
    inside.broker.close()
    return troubles


@pytest.mark.parametrize("name", CORPORA)
def test_a_name_server_survives_hostile_frames(name: str, tmp_path: Path, last_resort: LastResort) -> None:
    core = NameServer(NameServerSettings(), ManualClock(), RealDisk(), str(tmp_path))
    troubles: list[str] = []
    for frame in CORPORA[name]:
        feed(core, frame, last_resort, troubles)
    peer = FakePeer()
    core.receive(peer, Framer().feed(Command(206, opaque=5).encode()))
    assert [answer.code for answer in peer.take()] == [0]
    NameServer(NameServerSettings(), ManualClock(), RealDisk(), str(tmp_path))  # what it keeps on disk can be read again
    report(troubles)


def test_the_pull_after_all_that_is_still_exact(tmp_path: Path) -> None:
    """The corpus above with one good message before every hostile frame: every good one is found again, in order."""
    inside = WholeBroker(tmp_path)
    assert inside.ask(create_topic("known", 1)).code == 0
    random = Random(3)
    frames = list(mutations.damaged(random, 1))
    for number, frame in enumerate(frames):
        inside.settings.broker_permission = 6
        assert inside.ask(send_message("known", b"%d" % number)).code == 0
        try:
            inside.broker.receive(FakePeer(), Framer().feed(frame))
        except Broken:
            continue
    assert int(inside.ask(max_offset("known")).fields["offset"]) == len(frames)
    offset = 0
    while offset < len(frames):
        for record in records(inside.ask(pull("known", offset))):
            assert record.body == b"%d" % offset
            offset += 1
    inside.broker.close()
