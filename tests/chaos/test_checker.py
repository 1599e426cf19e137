from __future__ import annotations

import pytest
from chaos.checker import Promise, check
from chaos.history import COMMITTED, DELAYED, ROLLED_BACK, Acknowledged, History, Place, Read, Reading, Send
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.histories import CRC, Sound

SAFE = Promise()
LOSSY = Promise(may_lose=True)


def kinds(history: History, promise: Promise = SAFE) -> set[str]:
    return {finding.kind for finding in check(history, promise).findings}


def without(reading: Reading, place: Place) -> None:
    del reading.found[place]


@given(st.integers(0, 10_000), st.integers(0, 40), st.floats(0, 1))
def test_a_log_that_does_everything_right_is_sound(seed: int, sends: int, unanswered: float) -> None:
    assert check(Sound(seed, sends, unanswered).finish(), SAFE).findings == []


@given(st.integers(0, 10_000))
def test_an_acknowledged_message_that_is_cut_off_the_end_of_a_queue_is_lost(seed: int) -> None:
    sound = Sound(seed, unanswered=0.0)
    place = sound.send("producer-9-1")
    sound.log[place.queue].pop()
    assert "lost" in kinds(sound.finish())


@given(st.integers(0, 10_000))
def test_an_acknowledged_message_that_another_stands_in_place_of_is_lost_and_the_place_had_two(seed: int) -> None:
    sound = Sound(seed, unanswered=0.0)
    place = sound.send("producer-9-1")
    sound.history.sends["producer-9-2"] = Send(sound.now(), "producer-9", CRC)
    sound.log[place.queue][place.offset] = "producer-9-2"
    assert {"lost", "two"} <= kinds(sound.finish())


def test_a_message_that_moved_to_another_place_is_lost_at_its_own() -> None:
    sound = Sound(unanswered=0.0)
    place = sound.send("producer-9-1")
    sound.log[place.queue].pop()
    sound.log[next(queue for queue in sound.log if queue != place.queue)].append("producer-9-1")
    assert "lost" in kinds(sound.finish())


def test_what_was_acknowledged_after_a_reading_began_need_not_be_in_it() -> None:
    sound = Sound()
    early = Reading("broker-2, whose master was killed", sound.now(), True, False)
    for queue, ids in sound.log.items():
        early.ranges[queue] = (0, len(ids))
        early.found |= {Place(queue, offset): id for offset, id in enumerate(ids)}
    sound.history.readings.append(early)
    sound.send("producer-9-1")
    assert kinds(sound.finish()) == set()


def test_what_was_acknowledged_before_a_slave_was_read_alone_must_be_there() -> None:
    sound = Sound(unanswered=0.0)
    place = sound.send("producer-9-1")
    alone = Reading("broker-2, whose master was killed", sound.now(), True, False)
    for queue, ids in sound.log.items():
        alone.ranges[queue] = (0, len(ids) - (queue == place.queue))
        alone.found |= {Place(queue, offset): id for offset, id in enumerate(ids) if id != "producer-9-1"}
    sound.history.readings.append(alone)
    verdict = check(sound.finish(), SAFE)
    assert [finding.kind for finding in verdict.findings] == ["lost"]
    assert "whose master was killed" in verdict.findings[0].text


def test_an_answer_that_promises_less_may_be_forgotten_and_is_counted() -> None:
    sound = Sound(unanswered=0.0)
    place = sound.send("producer-9-1", status="SLAVE_NOT_AVAILABLE")
    sound.log[place.queue].pop()
    verdict = check(sound.finish(), SAFE)
    assert verdict.findings == []
    assert verdict.counts["acknowledged as less than safe, and gone"] == 1


def test_a_mode_that_may_lose_is_not_blamed_for_a_loss_but_for_two_nodes_that_differ() -> None:
    sound = Sound(unanswered=0.0)
    place = sound.send("producer-9-1")
    sound.log[place.queue].pop()
    history = sound.finish()
    assert kinds(history, LOSSY) == set()
    at = sound.some_place()
    history.readings[0].found[at] = "producer-0-999"
    assert kinds(history, LOSSY) == {"two"}


@given(st.integers(0, 10_000))
def test_a_hole_in_a_queue_is_found(seed: int) -> None:
    sound = Sound(seed, sends=30)
    place = sound.some_place()
    history = sound.finish()
    without(history.readings[-1], place)
    assert "gap" in kinds(history, LOSSY)


def test_a_queue_that_begins_later_than_its_first_message_is_found() -> None:
    history = Sound().finish()
    history.readings[-1].ranges["broker-a/0"] = (2, history.readings[-1].ranges["broker-a/0"][1])
    assert "gap" in kinds(history)


def test_a_message_that_a_consumer_was_shown_and_that_is_gone_was_taken_back() -> None:
    sound = Sound()
    sound.history.sends["producer-9-1"] = Send(sound.now(), "producer-9", CRC)
    sound.read(Place("broker-a/0", len(sound.log["broker-a/0"])), "producer-9-1", by="watcher", group="")
    assert kinds(sound.finish()) == {"taken back"}


def test_a_place_that_showed_another_message_for_a_moment_had_two() -> None:
    sound = Sound()
    sound.history.sends["producer-9-1"] = Send(sound.now(), "producer-9", CRC)
    sound.read(sound.some_place(), "producer-9-1", by="watcher", group="")
    assert kinds(sound.finish()) == {"two", "taken back"}


@given(st.integers(0, 10_000))
def test_two_messages_that_changed_places_are_out_of_order(seed: int) -> None:
    sound = Sound(seed, sends=0)
    for number in range(6):
        sound.send(f"producer-1-{number}")
    queue, ids = max(sound.log.items(), key=lambda one: len(one[1]))
    ids[0], ids[1] = ids[1], ids[0]
    for offset, id in enumerate(ids):  # as receipts have it, too
        sound.history.acknowledged[id] = sound.history.acknowledged[id]._replace(place=Place(queue, offset))
    assert kinds(sound.finish()) == {"order"}


def test_sends_that_were_under_way_together_may_stand_either_way() -> None:
    sound = Sound(sends=0)
    for at, id in ((0.0, "a"), (1.0, "b")):
        sound.history.sends[id] = Send(at, id, CRC)
    for at, id, offset in ((2.0, "b", 0), (3.0, "a", 1)):
        sound.history.acknowledged[id] = Acknowledged(at, Place("broker-a/0", offset), "SEND_OK")
        sound.log["broker-a/0"].append(id)
    assert kinds(sound.finish()) == set()


def test_a_duplicate_of_a_repeated_send_is_counted_and_is_no_fault() -> None:
    sound = Sound(unanswered=0.0)
    first = next(iter(sound.log.values()))[0]
    sound.log["broker-a/1"].append(first)
    verdict = check(sound.finish(), SAFE)
    assert verdict.findings == []
    assert verdict.counts["duplicates"] == 1


def test_a_message_that_nobody_sent_and_one_with_other_bytes_are_strangers() -> None:
    sound = Sound()
    queue, place = "broker-a/0", Place("broker-a/0", len(sound.log["broker-a/0"]))
    sound.log[queue].append("nobody-1")
    assert kinds(sound.finish()) == {"stranger"}
    other = Sound()
    place = other.some_place()
    id = other.log[place.queue][place.offset]
    other.history.reads.append(Read(other.now(), "consumer-1", id, CRC + 1, place, "readers"))
    assert kinds(other.finish()) == {"stranger"}


def test_a_delayed_message_must_be_somewhere_and_not_before_its_time() -> None:
    sound = Sound()
    place = sound.send("delayer-1", kind=DELAYED)
    assert kinds(sound.finish()) == set()
    sound.history.sends["delayer-1"] = sound.history.sends["delayer-1"]._replace(not_before=1e9)
    assert kinds(sound.history) == {"early"}
    gone = Sound()
    place = gone.send("delayer-1", kind=DELAYED)
    gone.log[place.queue].pop()
    assert kinds(gone.finish()) == {"lost"}


def test_a_delayed_message_need_not_be_delivered_by_a_slave_that_is_alone() -> None:
    sound = Sound()
    place = sound.send("delayer-1", kind=DELAYED)
    history = sound.finish()
    history.readings[0].all_delivered = False
    without(history.readings[0], place)
    history.readings[0].ranges[place.queue] = (0, place.offset)
    assert kinds(history) == set()


def test_a_rolled_back_message_that_is_shown_and_a_committed_one_that_is_there_twice_are_found() -> None:
    sound = Sound()
    sound.send("transactor-1", kind=ROLLED_BACK)
    assert kinds(sound.finish()) == {"rolled back"}
    twice = Sound()
    place = twice.send("transactor-0", kind=COMMITTED)
    twice.log[place.queue].append("transactor-0")
    assert "twice" in kinds(twice.finish())


def test_a_message_that_a_group_never_got_was_skipped() -> None:
    sound = Sound()
    history = sound.finish()
    place = sound.some_place()
    history.reads = [read for read in history.reads if read.place != place]
    assert kinds(history) == {"skipped"}


def test_what_the_run_itself_could_not_do_in_the_end_is_a_finding() -> None:
    history = Sound().finish()
    history.troubles.append("queue broker-a/1 could not be read at broker-2: it answered code 1")
    assert kinds(history) == {"trouble"}


def test_a_history_without_a_reading_is_refused() -> None:
    with pytest.raises(ValueError, match="no reading"):
        check(Sound().history, SAFE)


def test_many_findings_of_a_kind_are_counted_after_the_first_five() -> None:
    history = Sound(sends=40, unanswered=0.0).finish()
    history.readings[-1].found.clear()
    sentences = check(history, SAFE).sentences()
    assert any(sentence.startswith("lost: and ") for sentence in sentences)
