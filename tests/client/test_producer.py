"""ProducerCore over a scripted cluster: where messages go, what is retried, what is refused."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.client.core.batches import RECORD_SIZE, split_messages, split_places, stored_size
from roquet.client.core.failures import BatchFailed, GroupTaken, SendTimedOut, ServerRejected
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.receipt import SendReceipt, SendStatus
from roquet.client.core.send_command import SendCommand, SendTemplate
from roquet.errors import ConnectFailed, InvalidMessage, NoRoute, NotStarted, RoquetError, SendFailed
from roquet.message import Message, MessageQueue
from roquet.wire.calls.sends import SendHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command, decode
from roquet.wire.compression import KINDS, decompress
from roquet.wire.frame import Framer
from roquet.wire.headers import encode
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster, Results

SEND = RequestCode.SEND_MESSAGE_V2


def started(cluster: FakeCluster, settings: ProducerSettings | None = None, group: str = "g") -> ProducerCore:
    producer = ProducerCore(cluster.client(), group, settings)
    producer.start()
    return producer


def send(cluster: FakeCluster, producer: ProducerCore, message: Message, **how: object) -> object:
    results = Results()
    producer.send(message, results.append, **how)  # type: ignore[arg-type] # the tests pass what send takes
    cluster.advance_until(lambda: bool(results))
    return results.only


def receipt(result: object) -> SendReceipt:
    assert isinstance(result, SendReceipt), result
    return result


def test_a_send_gets_a_receipt_with_both_ids_and_the_queue() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    got = receipt(send(cluster, started(cluster), Message("t", b"hello", tags="x", keys=["k"])))
    [record] = cluster.log[got.queue]
    assert (got.status, got.ok, got.queue_offset, got.region) == (SendStatus.SEND_OK, True, 0, "DefaultRegion")
    assert decode_properties(record.properties) == {"TAGS": "x", "KEYS": "k", "UNIQ_KEY": got.message_id}
    assert got.offset_message_id.endswith("0" * 16)


def test_sends_go_round_the_queues_of_all_brokers() -> None:
    cluster = FakeCluster("a", "b")
    queues = cluster.create_topic("t", 2)
    producer = started(cluster)
    got = [receipt(send(cluster, producer, Message("t", b"x"))).queue for _ in range(8)]
    assert sorted(got) == sorted(queues * 2)


def test_an_unknown_topic_goes_to_the_default_topics_brokers_with_at_most_four_queues() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("TBW102", 8, perm=7)
    producer = started(cluster)
    got = [receipt(send(cluster, producer, Message("new", b"x"))).queue for _ in range(8)]
    assert {queue.queue_id for queue in got} == {0, 1, 2, 3}
    assert [command.fields["topic"] for command in cluster.requests(105)] == ["new", "TBW102"]


def test_the_real_route_replaces_the_default_one_at_the_next_poll() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("TBW102", 8, brokers=["a"])
    producer = started(cluster)
    send(cluster, producer, Message("new", b"x"))
    cluster.create_topic("new", 2, brokers=["b"])
    cluster.advance(30_000)
    assert receipt(send(cluster, producer, Message("new", b"x"))).queue.broker_name == "b"


def test_without_a_default_topic_there_is_no_route_and_the_text_says_what_to_do() -> None:
    cluster = FakeCluster("a")
    error = send(cluster, started(cluster), Message("new", b"x"))
    assert isinstance(error, NoRoute)
    assert "create it first" in str(error)


def test_the_next_name_server_is_asked_when_one_does_not_answer() -> None:
    cluster = FakeCluster("a", name_servers=("n1:1", "n2:1", "n3:1"))
    cluster.create_topic("t")
    cluster.refused = {"n1:1", "n2:1"}
    receipt(send(cluster, started(cluster), Message("t", b"x")))
    cluster.refused = {"n1:1", "n2:1", "n3:1"}
    error = send(cluster, started(cluster, group="h"), Message("other", b"x"), timeout_ms=1_000)
    assert isinstance(error, ConnectFailed)
    assert "n1:1" in str(error)
    assert "n3:1" in str(error)


def test_a_topic_without_a_master_takes_no_writes() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.masters.clear()
    assert isinstance(send(cluster, started(cluster), Message("t", b"x")), NoRoute)


# -- retries


def test_a_refused_connection_is_retried_on_another_broker() -> None:
    cluster = FakeCluster("a", "b", "c")
    cluster.create_topic("t", 4)
    cluster.refused = {cluster.masters["a"]}
    producer = started(cluster)
    got = [receipt(send(cluster, producer, Message("t", b"x"))).queue.broker_name for _ in range(24)]
    assert set(got) == {"b", "c"}
    sends = cluster.addresses(SEND)
    assert all(after != before for before, after in pairwise(sends) if before == cluster.masters["a"])


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_these_codes_are_retried_on_another_broker(code: int) -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t", 1)
    bad = cluster.masters["a"]
    cluster.overrides[SEND] = lambda address, command: command.reply(code, "no") if address == bad else None
    producer = started(cluster)
    for _ in range(2):
        assert receipt(send(cluster, producer, Message("t", b"x"))).queue.broker_name == "b"


def test_other_codes_are_not_retried_and_carry_advice() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t")
    cluster.overrides[SEND] = lambda _, command: command.reply(13, "the message is illegal")
    error = send(cluster, started(cluster), Message("t", b"x"))
    assert isinstance(error, ServerRejected)
    assert (error.code, error.remark) == (13, "the message is illegal")
    assert str(error).endswith("make the body, the properties or the topic's name smaller")
    assert len(cluster.requests(SEND)) == 1


def test_a_send_waits_for_brokers_that_are_away_and_the_failure_lists_every_attempt() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t")
    cluster.refused = set(cluster.masters.values())
    producer, results, asked_ms = started(cluster), Results(), []
    producer.send(Message("t", b"x"), results.append)
    begun = cluster.clock.ms
    while not results:
        before = len(cluster.requests(SEND))
        cluster.advance(10)
        asked_ms += [cluster.clock.ms - begun] * (len(cluster.requests(SEND)) - before)
    error = results.only
    assert isinstance(error, SendFailed)
    assert not isinstance(error, TimeoutError)
    assert {broker for broker, _ in error.attempts} == {"a", "b"}
    assert 29_000 < asked_ms[-1] < 30_000
    pauses = [later - sooner for sooner, later in pairwise(asked_ms)]
    assert pauses[0] == 0, "the other broker is tried at once"
    assert [50 <= pause <= 110 for pause in pauses[1:2]] == [True]
    assert max(pauses) <= 2_010
    assert len(set(pauses)) > 5, "they are not all alike"
    assert 15 < len(error.attempts) == len(asked_ms) < 60


def test_a_broker_that_comes_back_gets_the_send() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.refused = set(cluster.masters.values())
    producer, results = started(cluster), Results()
    producer.send(Message("t", b"x"), results.append)
    cluster.advance(5_000)
    assert not results
    cluster.refused = set()
    cluster.advance(2_010)
    assert receipt(results.only).ok


def test_a_master_that_is_elected_after_a_quarter_of_a_second_is_found_within_half_a_second() -> None:
    """A DLedger group needs so long. Who asks for the route only once a second waits for that second."""
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer, results = started(cluster), Results()
    receipt(send(cluster, producer, Message("t", b"x")))
    cluster.refused = {cluster.masters["a"]}
    for _ in range(8):  # a client under load notices often
        producer.send(Message("t", b"y"), results.append)
    cluster.advance(250)
    cluster.masters["a"] = "elected:10911"
    cluster.advance(500)
    assert cluster.addresses(SEND)[-1] == "elected:10911"
    assert all(receipt(each).ok for each in results)


def test_a_long_outage_is_asked_about_once_a_second_however_many_sends_wait() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer, results = started(cluster), Results()
    receipt(send(cluster, producer, Message("t", b"x")))
    cluster.refused = {cluster.masters["a"]}
    for _ in range(100):
        producer.send(Message("t", b"y"), results.append, timeout_ms=15_000)
    before = len(cluster.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    cluster.advance(10_000)
    assert 5 <= len(cluster.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) - before <= 14


def test_a_send_follows_the_master_role_to_another_broker_of_the_group() -> None:
    """The old master lives, and says as a slave that it takes no messages: only the name server knows who does."""
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer = started(cluster)
    receipt(send(cluster, producer, Message("t", b"x")))
    old, cluster.masters["a"] = cluster.masters["a"], "elected:10911"

    def slave(address: str, command: Command) -> Command | None:
        return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave") if address == old else None

    cluster.overrides[SEND] = slave
    begun = cluster.clock.ms
    receipt(send(cluster, producer, Message("t", b"y")))
    assert cluster.clock.ms - begun < 2_000
    assert cluster.addresses(SEND)[-1] == "elected:10911"


def test_a_name_server_that_comes_back_gets_the_send_its_route() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.refused = set(cluster.name_servers)
    producer, results = started(cluster), Results()
    producer.send(Message("t", b"x"), results.append)
    cluster.advance(5_000)
    assert not results
    cluster.refused = set()
    cluster.advance(2_010)
    assert receipt(results.only).ok


def test_sends_that_wait_end_with_their_producer() -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t")
    cluster.refused = set(cluster.masters.values())
    producer, results = started(cluster), Results()
    for chosen in (None, queue, queue, queue):
        producer.send(Message("t", b"x"), results.append, queue=chosen)
    cluster.advance(1_000)
    assert not results
    cluster.client().tasks.start(producer.close())
    cluster.advance(100)
    assert len(results) == 4
    assert all(isinstance(result, SendFailed) for result in results)


def refused_with(code: int, _: str, command: Command) -> Command:
    return command.reply(code, "no")


def test_an_error_that_the_same_broker_would_give_again_is_not_waited_for() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    for code, attempts in ((16, 1), (17, 1), (1, 3)):
        asked = len(cluster.requests(SEND))
        cluster.overrides[SEND] = partial(refused_with, code)
        assert isinstance(send(cluster, started(cluster, group=f"g{code}"), Message("t", b"x")), RoquetError)
        assert len(cluster.requests(SEND)) - asked == attempts, code


def test_sends_for_one_queue_keep_their_order_while_its_broker_is_away() -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t")
    producer, results = started(cluster), Results()
    receipt(send(cluster, producer, Message("t", b"first"), queue=queue))
    cluster.refused = set(cluster.masters.values())
    for number in range(20):
        producer.send(Message("t", b"%d" % number), results.append, queue=queue, timeout_ms=500 if number == 7 else None)
        cluster.advance(200)
    cluster.refused = set()
    producer.send(Message("t", b"20"), results.append, queue=queue)  # the broker is back, and the others have not noticed yet
    cluster.advance(3_000)
    assert len(results) == 21
    stored = [record.body for record in cluster.log[queue]]
    assert stored == [b"first", *(b"%d" % number for number in range(21) if number != 7)]


def test_sends_with_one_key_keep_their_order_while_nobody_knows_where_their_topic_is() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.refused = set(cluster.name_servers)
    producer, results = started(cluster), Results()
    for number in range(20):
        producer.send(Message("t", b"%d" % number), results.append, key="k", timeout_ms=500 if number in (0, 7) else None)
        cluster.advance(70)
    cluster.refused = set()
    producer.send(Message("t", b"20"), results.append, key="k")  # the name server is back, and the others have not noticed yet
    cluster.advance(5_000)
    assert len(results) == 21
    [queue] = {result.queue for result in results if isinstance(result, SendReceipt)}
    assert [record.body for record in cluster.log[queue]] == [b"%d" % number for number in range(21) if number not in (0, 7)]
    assert not producer.lines
    assert not producer.waiting


def test_a_callback_that_fails_stops_no_other_send(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t")
    cluster.refused = set(cluster.masters.values())
    producer, results = started(cluster), Results()

    def fails(_: object) -> None:
        raise ValueError("a mistake of the user's")

    for done in (fails, results.append, fails, results.append):
        producer.send(Message("t", b"x"), done, queue=queue)
    cluster.advance(1_000)
    cluster.refused = set()
    cluster.advance(3_000)
    assert [receipt(one).ok for one in results] == [True, True]
    assert receipt(send(cluster, producer, Message("t", b"y"), queue=queue)).queue_offset == 4
    assert "callback of a send to topic 't' failed" in caplog.text
    cluster.refused = set(cluster.masters.values())
    for done in (fails, results.append, fails, results.append):
        producer.send(Message("t", b"z"), done, queue=queue)
    cluster.client().tasks.start(producer.close())
    cluster.advance(100)
    assert len(results) == 4, "those that wait when the producer closes hear of it"


@pytest.mark.parametrize("chosen", [False, True])
def test_a_send_that_is_withdrawn_while_it_waits_is_not_sent_later(chosen: bool) -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t", 1)
    producer, results = started(cluster), Results()
    receipt(send(cluster, producer, Message("t", b"first")))
    cluster.refused = set(cluster.masters.values())
    how = queue if chosen else None
    sendings = [producer.send(Message("t", b"%d" % number), results.append, queue=how) for number in range(3)]
    cluster.advance(1_000)
    sendings[0].withdraw()
    assert [type(one) for one in results] == [SendFailed]
    cluster.refused = set()
    cluster.advance(3_000)
    assert len(results) == 3
    assert sorted(record.body for record in cluster.log[queue]) == [b"1", b"2", b"first"]
    sendings[1].withdraw()  # it is over: nothing happens


def test_a_batch_that_is_cancelled_while_it_waits_is_not_sent_later() -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t", 1)
    producer = started(cluster)
    receipt(send(cluster, producer, Message("t", b"first")))
    cluster.refused = set(cluster.masters.values())
    batch = cluster.client().tasks.start(producer.send_batch([Message("t", b"1"), Message("t", b"2")]), lambda _: None)
    cluster.advance(1_000)
    batch.cancel()
    cluster.refused = set()
    cluster.advance(5_000)
    assert [record.body for record in cluster.log[queue]] == [b"first"]


def test_a_broker_that_stays_away_is_not_asked_by_a_whole_line_each_time_its_first_gives_up() -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t")
    cluster.refused = set(cluster.masters.values())
    producer, results = started(cluster), Results()
    for number in range(100):
        producer.send(Message("t", b"x"), results.append, queue=queue, timeout_ms=2_000 + 10 * number)
    cluster.advance(1_900)
    asked = len(cluster.requests(SEND))
    cluster.advance(1_200)
    assert len(results) == 100
    assert all(isinstance(result, SendFailed) for result in results)
    assert len(cluster.requests(SEND)) - asked <= 200, "one at a time tries"


def test_a_send_without_time_never_left_and_its_error_does_not_say_that_it_may_be_stored() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer = started(cluster)
    with pytest.raises(InvalidMessage, match="timeout_ms is -5; expected is a number of ms above 0"):
        send(cluster, producer, Message("t", b"x"), timeout_ms=-5)
    cluster.silent = set(cluster.name_servers)
    results = Results()
    producer.send(Message("t2", b"x"), results.append, timeout_ms=50)
    cluster.advance(70)
    assert "no name server told in time" in str(results.only), "the route is waited for no longer than the send may take"
    assert "may be stored" not in str(results.only)


def test_a_broker_that_never_answers_uses_up_the_time_and_is_a_timeout_error() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t")
    cluster.silent = set(cluster.masters.values())
    producer = started(cluster)
    results = Results()
    producer.send(Message("t", b"x"), results.append)
    cluster.advance(2_990)
    assert not results
    cluster.advance(20)
    error = results.only
    assert isinstance(error, SendTimedOut)
    assert isinstance(error, TimeoutError)
    assert len(error.attempts) == 1
    assert "may be stored" in str(error)


def test_a_chosen_queue_is_not_retried_elsewhere() -> None:
    cluster = FakeCluster("a", "b")
    queues = cluster.create_topic("t")
    cluster.refused = {cluster.masters["a"]}
    error = send(cluster, started(cluster), Message("t", b"x"), queue=queues[0], timeout_ms=1_000)
    assert isinstance(error, SendFailed)
    assert {broker for broker, _ in error.attempts} == {"a"}


def test_stored_but_not_safe_is_a_receipt_unless_another_broker_shall_be_tried() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t", 1)
    fields = {"msgId": "A" * 32, "queueId": "0", "queueOffset": "0"}
    cluster.overrides[SEND] = lambda address, command: command.reply(12, "slow", dict(fields)) if address.startswith("a") else None
    producer = started(cluster)
    got = {receipt(send(cluster, producer, Message("t", b"x"))).status for _ in range(2)}
    assert got == {SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SEND_OK}
    careful = started(cluster, ProducerSettings(retry_when_not_ok=True), group="careful")
    assert {receipt(send(cluster, careful, Message("t", b"x"))).status for _ in range(4)} == {SendStatus.SEND_OK}


def test_fault_avoidance_leaves_a_failed_broker_alone() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t", 1)
    cluster.refused = {cluster.masters["a"]}
    producer = started(cluster, ProducerSettings(avoid_slow_brokers=True))
    for _ in range(6):
        send(cluster, producer, Message("t", b"x"))
    assert cluster.addresses(SEND).count(cluster.masters["a"]) == 1


def test_a_send_that_was_confirmed_without_numbers_says_it_is_stored() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.overrides[SEND] = lambda _, command: command.reply(0, None, {"queueId": "zero"})
    assert "is stored" in str(send(cluster, started(cluster), Message("t", b"x")))


# -- choosing and forgetting


def test_a_selector_gets_the_queues_the_message_and_the_key() -> None:
    cluster = FakeCluster("a", "b")
    queues = cluster.create_topic("t", 2)
    message = Message("t", b"x")
    seen: list[object] = []

    def selector(all_queues: object, given: Message, key: object) -> MessageQueue:
        seen.extend([list(all_queues), given, key])  # type: ignore[call-overload] # a sequence of queues
        return queues[3]

    assert receipt(send(cluster, started(cluster), message, selector=selector, key="k")).queue == queues[3]
    assert seen == [queues, message, "k"]


@pytest.mark.parametrize("selector", [lambda *_: 1 // 0, lambda *_: None, lambda *_: MessageQueue("other", "a", 0)])
def test_a_selector_that_misbehaves_fails_the_send_and_nothing_else(selector: object) -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer = started(cluster)
    assert "selector" in str(send(cluster, producer, Message("t", b"x"), selector=selector))
    receipt(send(cluster, producer, Message("t", b"x")))


def test_oneway_is_marked_so_and_tells_where_it_went() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    results = Results()
    producer = started(cluster)
    producer.client.tasks.start(producer.send_oneway(Message("t", b"x")), results.append)
    cluster.run()
    assert results.only == cluster.masters["a"]
    [command] = cluster.requests(SEND)
    assert command.is_oneway


# -- what is sent


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_bodies_of_4096_bytes_are_compressed_and_marked(kind: str) -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer = started(cluster, ProducerSettings(compression=kind))
    send(cluster, producer, Message("t", b"z" * 4095))
    send(cluster, producer, Message("t", b"z" * 4096))
    small, large = cluster.requests(SEND)
    assert (small.body, small.fields["f"]) == (b"z" * 4095, "0")
    assert len(large.body) < 200
    assert large.fields["f"] == str(KINDS[kind])
    assert decompress(large.body, KINDS[kind]) == b"z" * 4096


def test_a_message_is_not_changed_by_sending_it_and_each_send_has_its_own_id() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    producer = started(cluster)
    message = Message("t", b"z" * 5000, tags="x")
    ids = {receipt(send(cluster, producer, message)).message_id for _ in range(2)}
    assert len(ids) == 2
    assert (message.body, message.properties) == (b"z" * 5000, {"TAGS": "x"})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("t", b""), "is empty"),
        (Message("t", b"x" * (4 * 1024 * 1024 + 1)), "limit is 4194304"),
        (Message("", b"x"), "blank"),
        (Message("a b", b"x"), "illegal characters"),
        (Message("../x", b"x"), "illegal characters"),
        (Message("t" * 128, b"x"), "longer than"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "forbidden"),
        (Message("t", b"x", properties={"a": "b\x02c"}), "0x01 or 0x02"),
        (Message("t", b"x", properties={"a\0": "b"}), "cannot be stored"),
        (Message("t", b"x", keys="k\0"), "cannot be stored"),
        (Message("t", b"x", tags="\udc00"), "cannot be stored"),
        (Message("t", b"x", properties={"a": "b" * 33_000}), "limit is 32767"),
        (Message("t", b"x", flag=1 << 31), "32 bits"),
    ],
)
def test_a_message_that_no_broker_would_take_is_refused_at_once(message: Message, words: str) -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    with pytest.raises(InvalidMessage, match=words):
        started(cluster).send(message, lambda _: None)
    assert not cluster.requests(SEND)


def test_an_unstarted_or_closed_producer_says_so() -> None:
    cluster = FakeCluster("a")
    producer = ProducerCore(cluster.client(), "g")
    with pytest.raises(NotStarted, match="start"):
        producer.send(Message("t", b"x"), lambda _: None)


def test_one_group_is_taken_once_per_client() -> None:
    client = FakeCluster("a").client()
    ProducerCore(client, "g").start()
    with pytest.raises(GroupTaken, match="instance_name"):
        ProducerCore(client, "g").start()


def test_closing_unregisters_from_every_broker_that_had_a_heartbeat() -> None:
    cluster = FakeCluster("a", "b")
    cluster.create_topic("t")
    producer = started(cluster)
    send(cluster, producer, Message("t", b"x"))
    done: list[bool] = []
    producer.client.tasks.start(producer.close(), lambda _: done.append(True))
    cluster.run()
    assert done == [True]
    assert sorted(cluster.addresses(35)) == sorted(cluster.masters.values())
    assert cluster.requests(35)[0].fields == {"clientID": "c1", "producerGroup": "g"}


# -- the header by hand

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(
    TEXT, TEXT, TEXT, st.integers(0, 1 << 31), st.integers(0, 0x7FF), st.integers(0, 1 << 62), TEXT, st.binary(max_size=20), st.booleans()
)
def test_the_hand_written_header_says_what_the_typed_one_says(
    group: str, topic: str, broker: str, queue_id: int, sys_flag: int, born: int, properties: str, body: bytes, batch: bool
) -> None:
    template = SendTemplate(group, topic, broker, default_topic="TBW102", default_queues=4, batch=batch)
    command = SendCommand(template, queue_id, sys_flag, born, 7, properties, body)
    command.opaque = 99
    typed = SendHeader(group, topic, "TBW102", 4, queue_id, sys_flag, born, 7, properties, 0, False, None, batch, broker)
    expected = Command(template.code, encode(typed, short=True), body, opaque=99, language="PYTHON")
    [frame] = Framer().feed(command.encode())
    assert decode(frame) == expected
    assert command == expected
    [frame] = Framer().feed(command.encode())  # after somebody looked at the fields
    assert decode(frame) == expected


# -- batches


def batch(cluster: FakeCluster, producer: ProducerCore, messages: list[Message]) -> object:
    results = Results()
    producer.client.tasks.start(producer.send_batch(messages), results.append)
    cluster.advance_until(lambda: bool(results))
    return results.only


def test_a_batch_is_one_request_and_gives_a_receipt_per_message() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    got = batch(cluster, started(cluster), [Message("t", b"%d" % number, tags="x") for number in range(5)])
    assert isinstance(got, list)
    [command] = cluster.requests(RequestCode.SEND_BATCH_MESSAGE)
    assert command.fields["m"] == "true"
    assert [one.queue_offset for one in got] == [0, 1, 2, 3, 4]
    records = cluster.log[got[0].queue]
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in records] == [one.message_id for one in got]
    assert len({one.offset_message_id for one in got}) == 5


def test_a_batch_of_two_topics_and_too_many_bytes_becomes_several_requests() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    cluster.create_topic("u", 1)
    producer = started(cluster, ProducerSettings(batch_size_max=5_000, compress_over=0))
    messages = [Message("tu"[number % 2], bytes([number]) * 1_000) for number in range(10)]
    got = batch(cluster, producer, messages)
    assert isinstance(got, list)
    assert len(cluster.requests(RequestCode.SEND_BATCH_MESSAGE)) == 2  # four of each topic
    assert len(cluster.requests(SEND)) == 2  # and one left over
    for message, one in zip(messages, got, strict=True):
        assert one.queue.topic == message.topic
        assert cluster.log[one.queue][one.queue_offset].body == message.body


def test_a_part_that_fails_leaves_the_receipts_of_the_rest() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    cluster.create_topic("u", 1)
    cluster.overrides[320] = lambda _, command: command.reply(13, "illegal") if command.fields["b"] == "u" else None
    error = batch(cluster, started(cluster), [Message("tu"[number % 2], b"x") for number in range(4)])
    assert isinstance(error, BatchFailed)
    assert [one is not None for one in error.receipts] == [True, False, True, False]


@pytest.mark.parametrize(
    "message", [Message("t", b"x", delay_level=3), Message("%RETRY%g", b"x"), Message("t", b"x", properties={"TRAN_MSG": "true"})]
)
def test_what_no_batch_may_hold_is_refused(message: Message) -> None:
    cluster = FakeCluster("a")
    refusal = batch(cluster, started(cluster), [Message("t", b"x"), message])
    assert isinstance(refusal, InvalidMessage)
    assert "send it alone" in str(refusal)


@given(
    st.lists(st.tuples(st.sampled_from("tuv"), st.integers(1, 400), st.booleans()), max_size=40),
    st.integers(RECORD_SIZE, 2_000),
)
def test_splitting_keeps_every_message_once_in_order_and_every_batch_within_the_limit(
    specs: list[tuple[str, int, bool]], limit: int
) -> None:
    messages = [Message(topic, b"x" * size, wait_store_ok=waits) for topic, size, waits in specs]
    places = split_places(messages, limit)
    assert sorted(place for part in places for place in part) == list(range(len(messages)))
    for part in places:
        assert part == sorted(part)
        assert len({(messages[place].topic, messages[place].wait_store_ok) for place in part}) == 1
        assert len(part) == 1 or sum(stored_size(messages[place]) for place in part) <= limit
    assert [part[0] for part in split_messages(messages, limit)] == [messages[part[0]] for part in places]


def errors(result: object) -> RoquetError:
    assert isinstance(result, RoquetError)
    return result


def test_only_retried_codes_are_the_codes_of_the_table() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    cluster.overrides[SEND] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "broken")
    error = errors(send(cluster, started(cluster, ProducerSettings(retries=0)), Message("t", b"x")))
    assert isinstance(error, ServerRejected)  # one attempt, so the broker's own words
    assert error.remark == "broken"


def test_keys_that_the_broker_does_not_know_are_not_tried_again() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("t")
    asked: list[Command] = []

    def refuse(_: object, command: Command) -> Command:
        asked.append(command)
        return command.reply(ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured")

    cluster.overrides[SEND] = refuse
    error = errors(send(cluster, started(cluster, ProducerSettings(retries=2)), Message("t", b"x")))
    assert isinstance(error, ServerRejected)
    assert "accessKey and secretKey" in str(error)
    assert len(asked) == 1


@pytest.mark.parametrize("properties", [{"k\ud800": "v"}, {"k": "v\x01"}])
@pytest.mark.parametrize("with_queue", [False, True])
def test_a_batch_with_a_property_that_nobody_can_store_is_an_invalid_message(properties: dict[str, str], with_queue: bool) -> None:
    cluster = FakeCluster("a")
    [queue, *_] = cluster.create_topic("t", 1)
    producer = started(cluster)
    results = Results()
    batch = [Message("t", b"1"), Message("t", b"2", properties=properties)]
    producer.client.tasks.start(producer.send_batch(batch, queue=queue if with_queue else None), results.append)
    cluster.run()
    assert [type(one) for one in results] == [InvalidMessage]
    assert not cluster.log[queue]
