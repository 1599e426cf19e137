"""Access control in a whole broker: the short way of sends, messages named by their place, changed files, and attacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from roquet.access import guard as guarding
from roquet.access.audit import KEYLESS_AT_ONCE, WRONG_AT_ONCE
from roquet.access.yaml_text import BadAcl
from roquet.acl_files import AclFiles, acl_files
from roquet.broker.topics import Topic
from roquet.errors import BadSetting
from roquet.nameserver.core import NameServer
from roquet.settings import NameServerSettings
from roquet.store.disk import RealDisk
from roquet.testing import FakePeer, ManualClock, WholeBroker
from roquet.wire.batch import join_batch
from roquet.wire.calls import access as calls
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import SysFlag
from roquet.wire.command import RESPONSE, Command
from roquet.wire.frame import Framer
from roquet.wire.sealing import unseal

from ..broker.whole import long_names, pull_fields, send_fields
from .people import SECRETS, TEXT, WHITE, accounts, signed

ACL = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path))
    for topic in ("T", "secret"):
        made.broker.topics.put(Topic(topic, 4, 4))
    made.peer = FakePeer("10.1.1.1:40001")
    yield made
    made.close()


def send(topic: str = "T", body: bytes = b"body", **more: str) -> Command:
    return Command(Code.SEND_MESSAGE_V2, send_fields(topic) | more, body)


def refused(answer: Command) -> bool:
    return answer.code == 1 and (answer.remark or "").startswith(ACL)


# The short way


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_signed_sends_take_the_short_way(whole: WholeBroker, binary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first request of a connection, which shows who it is."""
    assert whole.ask(signed(send(), "producer")).code == 0
    monkeypatch.setattr(whole.broker.sender, "accept", None)
    monkeypatch.setattr(whole.broker, "handle", None)
    batch = Command(Code.SEND_BATCH_MESSAGE, send_fields(m="true"), join_batch([(0, b"a", b""), (0, b"b", b"")]))
    sends = [send(), batch, Command(Code.SEND_MESSAGE, long_names(send_fields()), b"x"), *(send(body=b"%d" % n) for n in range(600))]
    for number, one in enumerate(sends):
        one.opaque, one.binary = number, binary
        signed(one, "producer")
    whole.frames(*sends)
    answers = whole.peer.take()
    assert [(answer.opaque, answer.code) for answer in answers] == [(n, 0) for n in range(len(sends))]


def test_a_refused_send_among_others_is_refused_alone_and_nothing_of_it_is_stored(whole: WholeBroker) -> None:
    sends = [signed(send(body=b"%d" % n), "producer") for n in range(10)]
    sends[3].body = b"changed"
    sends[7] = signed(send("secret"), "producer")
    for number, one in enumerate(sends):
        one.opaque = number
    whole.frames(*sends)
    codes = {answer.opaque: answer.code for answer in whole.peer.take()}
    assert codes == {number: 1 if number in (3, 7) else 0 for number in range(10)}
    assert whole.broker.store.queue("T", 0).visible == 8
    assert whole.broker.store.queue("secret", 0).visible == 0


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE])
def test_a_topic_under_a_second_name_does_not_get_past_the_check(whole: WholeBroker, code: int) -> None:
    """Who reads the long name and who reads the letter must not be told two topics."""
    fields = send_fields(m="true" if code == Code.SEND_BATCH_MESSAGE else "false")
    fields = long_names(fields) if code == Code.SEND_MESSAGE else fields
    body = join_batch([(0, b"a", b"")]) if code == Code.SEND_BATCH_MESSAGE else b"body"
    for more in ({"topic": "secret"}, {"b": "secret"}, {"topic": "T", "b": "secret"}, {"topic": "secret", "b": "T"}):
        for front in (fields | more, more | fields, {**more, **fields, **more}):
            whole.ask(signed(Command(code, dict(front), body), "producer"))
    assert whole.broker.store.queue("secret", 0).visible == 0


def test_numbers_in_place_of_texts_are_signed_as_their_texts(whole: WholeBroker) -> None:
    """Node and C++ send them so."""
    command = signed(send(), "producer")
    ((_, header, body),) = Framer().feed(command.encode())
    head = orjson.loads(header)
    head["extFields"] |= {"d": 4, "e": 0, "k": False, "g": int(head["extFields"]["g"])}
    whole.broker.receive(whole.peer, [(0, orjson.dumps(head), body)])
    assert [answer.code for answer in whole.peer.take()] == [0]


def test_without_access_control_nobody_looks_at_signatures(tmp_path: Path) -> None:
    whole = WholeBroker(tmp_path)
    whole.broker.topics.put(Topic("T", 4, 4))
    wrong = signed(send(), "producer")
    wrong.body = b"changed"
    assert whole.ask(wrong).code == 0
    whole.close()


# Messages that are named by their place


def put_secret(whole: WholeBroker, **more: str) -> int:
    offset = whole.broker.store.log.end
    answer = whole.ask(signed(send("secret", b"for few eyes", **more), "admin"))
    assert answer.code == 0
    return offset


def test_a_message_is_shown_by_its_id_to_readers_of_its_topic_alone(whole: WholeBroker) -> None:
    offset = put_secret(whole)
    assert refused(whole.ask(signed(Command(Code.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}), "consumer")))
    assert b"for few eyes" in whole.ask(signed(Command(Code.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}), "admin")).body


def test_nobody_gets_another_topics_message_by_sending_it_back(whole: WholeBroker) -> None:
    offset, end = put_secret(whole), whole.broker.store.log.end
    fields = {"offset": str(offset), "group": "g", "delayLevel": "0", "originTopic": "T"}
    assert refused(whole.ask(signed(Command(Code.CONSUMER_SEND_MSG_BACK, fields), "consumer")))
    assert whole.broker.store.log.end == end
    own = whole.broker.store.log.end
    whole.ask(signed(send(), "admin"))
    assert whole.ask(signed(Command(Code.CONSUMER_SEND_MSG_BACK, fields | {"offset": str(own)}), "consumer")).code == 0


def test_nobody_ends_the_transaction_of_another_topic(whole: WholeBroker) -> None:
    offset = put_secret(whole, f=str(int(SysFlag.TRANSACTION_PREPARED)), i="TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01U9")
    fields = {
        "producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": str(offset), "commitOrRollback": "8", "msgId": "U9",
    }  # fmt: skip
    answer = whole.ask(signed(Command(Code.END_TRANSACTION, dict(fields)), "producer"))
    assert refused(answer), answer
    assert whole.broker.store.queue("secret", 0).visible == 0
    assert whole.ask(signed(Command(Code.END_TRANSACTION, dict(fields)), "admin")).code == 0
    assert whole.broker.store.queue("secret", 0).visible == 1


def timed(topic: str, key: str) -> Command:
    return send(topic, i=f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_SEC\x01600")


@pytest.mark.parametrize("named", ["T", "secret"])
def test_nobody_cancels_the_timed_message_of_another_topic(whole: WholeBroker, named: str) -> None:
    sent = whole.ask(signed(timed("secret", "U7"), "admin"))
    assert sent.code == 0
    for handle in ("U7", sent.fields["msgId"], sent.fields["recallHandle"]):
        fields = {"producerGroup": "g", "topic": named, "recallHandle": handle}
        assert refused(whole.ask(signed(Command(Code.RECALL_MESSAGE, dict(fields)), "producer"))), handle
    for text in ("U7", "secret_U7", sent.fields["msgId"]):
        answer = whole.ask(signed(send(i=f"UNIQ_KEY\x01U8\x02TIMER_DEL_UNIQKEY\x01{text}"), "producer"))
        assert answer.code == 22, (text, answer)
    assert whole.broker.timers.cancelling.cancelled == 0
    fields = {"producerGroup": "g", "topic": "", "recallHandle": "U7"}
    assert whole.ask(signed(Command(Code.RECALL_MESSAGE, fields), "admin")).code == 0


def test_nobody_cancels_the_timed_message_of_another_topic_on_a_broker_that_became_the_master(whole: WholeBroker) -> None:
    """A new leader takes up its timers anew. It let everybody cancel everything."""
    assert whole.ask(signed(timed("secret", "U7"), "admin")).code == 0
    whole.broker.become_slave(1)
    whole.broker.become_master("ASYNC_MASTER")
    whole.tick()
    for text in ("U7", "secret_U7"):
        answer = whole.ask(signed(send(i=f"UNIQ_KEY\x01U8\x02TIMER_DEL_UNIQKEY\x01{text}"), "producer"))
        assert answer.code == 22, (text, answer)
    assert whole.broker.timers.cancelling.cancelled == 0
    assert whole.ask(signed(send("secret", i="UNIQ_KEY\x01U8\x02TIMER_DEL_UNIQKEY\x01U7"), "admin")).code == 0
    assert whole.broker.timers.cancelling.cancelled == 1


def test_whoever_may_send_to_a_topic_cancels_its_timed_messages(whole: WholeBroker) -> None:
    assert whole.ask(signed(timed("T", "U1"), "producer")).code == 0
    assert whole.ask(signed(timed("T", "U2"), "producer")).code == 0
    fields = {"producerGroup": "g", "topic": "T", "recallHandle": "U1"}
    assert whole.ask(signed(Command(Code.RECALL_MESSAGE, fields), "producer")).code == 0
    assert whole.ask(signed(send(i="UNIQ_KEY\x01U3\x02TIMER_DEL_UNIQKEY\x01T_U2"), "producer")).code == 0
    assert whole.broker.timers.cancelling.cancelled == 2


def test_a_query_by_key_never_shows_another_topic(whole: WholeBroker) -> None:
    """Java's hash has collisions that anybody can make: "Aa" and "BB"."""
    whole.broker.topics.put(Topic("TAa", 4, 4))
    whole.broker.topics.put(Topic("TBB", 4, 4))
    whole.ask(signed(send("TAa", i="UNIQ_KEY\x01U1\x02KEYS\x01k"), "admin"))
    fields = {"topic": "TBB", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    assert whole.ask(signed(Command(Code.QUERY_MESSAGE, dict(fields)), "default")).code == 22
    assert whole.ask(signed(Command(Code.QUERY_MESSAGE, fields | {"topic": "TAa"}), "default")).code == 0


def test_a_pull_needs_both_the_topic_and_the_group(whole: WholeBroker) -> None:
    assert not refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields()), "consumer")))
    assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields("secret")), "consumer")))
    assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields(consumerGroup="other")), "consumer")))
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_ROQUET_CHANGES"):
        assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields(topic)), "default"))), topic


def test_dead_letters_are_pulled_by_those_who_may_read_for_their_group(whole: WholeBroker) -> None:
    for group in ("g", "other"):
        whole.broker.topics.put(Topic(f"%DLQ%{group}", 1, 1))
    assert not refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields("%DLQ%g")), "named")))
    assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields("%DLQ%other")), "named")))
    assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields("%DLQ%g", consumerGroup="any")), "denied")))
    assert not refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields("%DLQ%other", consumerGroup="any")), "default")))


def test_a_second_pull_like_the_first_is_checked_too(whole: WholeBroker) -> None:
    """A pull of a shape that was allowed before is answered the short way, to whoever need not sign."""
    whole.ask(signed(send(), "admin"))
    friend, stranger = FakePeer(WHITE), FakePeer("10.7.7.7:1")
    for _ in range(3):
        whole.give(friend, Command(Code.PULL_MESSAGE, pull_fields(), opaque=1))
        assert [answer.code for answer in friend.take()] == [0]
        whole.give(stranger, Command(Code.PULL_MESSAGE, pull_fields(), opaque=1))
        assert [refused(answer) for answer in stranger.take()] == [True]


# The files


def turn(whole: WholeBroker, times: int = 3) -> None:
    for _ in range(times):
        whole.tick(1_000)
        whole.background.release()


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "plain_acl.yml").write_text(text)


def test_a_key_that_is_removed_is_refused_at_its_next_request(whole: WholeBroker, tmp_path: Path) -> None:
    assert whole.ask(signed(send(), "producer")).code == 0
    write(tmp_path, TEXT.replace("producer-key", "other-key"))
    turn(whole)
    whole.peer = FakePeer("10.1.1.1:40002")
    assert refused(whole.ask(signed(send(), "producer")))


def waiting(whole: WholeBroker, who: str, address: str, certificate: str = "") -> FakePeer:
    """Somebody whose pull waits for a message."""
    peer = FakePeer(address)
    peer.certificate_subject = certificate
    pull = Command(Code.PULL_MESSAGE, pull_fields(sysFlag="6", suspendTimeoutMillis="60000"))
    whole.give(peer, signed(pull, who) if who else pull)
    assert not peer.take()
    return peer


def arrive(whole: WholeBroker, *peers: FakePeer) -> list[list[bool]]:
    """A message comes; of each of them, whether its answers have it."""
    for peer in peers:
        if peer.closed:
            whole.broker.disconnected(peer)
    assert whole.ask(signed(send(body=b"news"), "admin")).code == 0
    return [[b"news" in answer.body for answer in peer.take()] for peer in peers]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("consumer-key", "other-key"),
        TEXT.replace("consumer-secret", "other-secret"),
        TEXT.replace("  - T=SUB", "  - T=DENY"),
        TEXT.replace("  - T=SUB", "  - elsewhere=SUB"),
    ],
    ids=["gone", "another secret", "denied", "no line"],
)
def test_a_pull_that_waits_is_not_answered_to_an_account_that_may_no_more(
    whole: WholeBroker, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    by_key, by_certificate = waiting(whole, "consumer", "10.1.1.1:2"), waiting(whole, "", "10.1.1.1:3", "consumer-key")
    both = waiting(whole, "consumer", "10.1.1.1:4")
    whole.give(both, signed(send(), "nobody"))
    assert [refused(answer) for answer in both.take()] == [True], "it has two accounts, and shows one after the other"
    other, listed = waiting(whole, "named", "10.1.1.1:5"), waiting(whole, "", WHITE)
    write(tmp_path, text)
    with caplog.at_level(logging.INFO, logger="roquet.access"):
        turn(whole)
    peers = (by_key, by_certificate, both, other, listed)
    assert [peer.closed for peer in peers] == [True, True, True, False, False]
    assert arrive(whole, *peers) == [[], [], [], [True], [True]]
    (line,) = [one for one in caplog.messages if "may less" in one]
    assert line == "access control: 3 connections of accounts that are gone or may less than before are closed: consumer-key"


def test_rules_that_take_nothing_from_an_account_close_nobody(whole: WholeBroker, tmp_path: Path) -> None:
    peers = [waiting(whole, who, f"10.1.1.1:{port}") for port, who in enumerate(("consumer", "named", "default", "admin"), 2)]
    for text in (
        "# other lines\n\n" + TEXT,
        TEXT.replace("producer-key", "other-key"),
        TEXT + "- accessKey: fresh-key\n  secretKey: fresh-secret\n",
        TEXT.replace("  - T=SUB", "  - T=PUB|SUB\n  - more=SUB"),
    ):
        write(tmp_path, text)
        turn(whole)
    assert arrive(whole, *peers) == [[True]] * 4


def test_who_changes_its_own_account_is_told_so_and_others_with_that_account_are_closed(whole: WholeBroker) -> None:
    another = waiting(whole, "admin", "10.1.1.1:2")
    answer = ask(whole, Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "admin-key", "secretKey": "new-secret"}))
    assert answer.code == 0
    whole.tick()
    assert another.closed
    assert not whole.peer.closed
    assert refused(whole.ask(signed(send(), "admin")))


def test_many_are_closed_some_at_a_time(whole: WholeBroker, tmp_path: Path) -> None:
    peers = [waiting(whole, "consumer", f"10.1.1.1:{port}") for port in range(1, 251)]
    whole.broker.disconnected(peers[0])
    write(tmp_path, TEXT.replace("consumer-key", "other-key"))
    closed = [0]
    for _ in range(6):
        whole.tick(1_000)
        whole.background.release()
        closed.append(sum(peer.closed for peer in peers))
    assert sorted(set(closed)) == [0, 100, 200, 249]
    for peer in peers:
        whole.broker.disconnected(peer)
    assert not whole.broker.access._shown.accounts()


def test_a_broken_file_is_told_with_its_line_and_the_old_rules_stay(whole: WholeBroker, tmp_path: Path) -> None:
    write(tmp_path, TEXT.replace("  - T=PUB|SUB", "  - T=PUX"))
    turn(whole)
    assert whole.ask(signed(send(), "producer")).code == 0
    (notice,) = [one for one in whole.broker.notices.list() if one.key == "acl files"]
    assert "plain_acl.yml, line 18: 'PUX' is no permission" in notice.text
    write(tmp_path, "accounts:\n")
    turn(whole)
    assert whole.ask(signed(send(), "producer")).code == 0
    (tmp_path / "plain_acl.yml").unlink()
    turn(whole)
    assert whole.ask(signed(send(), "producer")).code == 0
    write(tmp_path, TEXT)
    turn(whole)
    assert not [one for one in whole.broker.notices.list() if one.key == "acl files"]


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    files = accounts(tmp_path)
    files.read()
    write(tmp_path, TEXT[:200])
    assert files.look() is None
    write(tmp_path, TEXT + "# more\n")
    assert files.look() is None
    found = files.look()
    assert found is not None
    assert len(found.accounts) == 8
    assert files.look() is None


@pytest.mark.parametrize("text", ["", "accounts:\n", "accounts: [", None])
def test_without_a_usable_file_the_broker_does_not_start_and_leaves_nothing(tmp_path: Path, text: str | None) -> None:
    files = accounts(tmp_path, text or "")
    if text is None:
        (tmp_path / "plain_acl.yml").unlink()
    with pytest.raises((BadAcl, BadSetting)):
        WholeBroker(tmp_path / "store", accounts=files)
    assert not (tmp_path / "store" / "commitlog").exists()


def test_files_are_found_where_rocketmq_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, beside = tmp_path / "home" / "conf", tmp_path / "etc"
    (home / "acl").mkdir(parents=True)
    beside.mkdir()
    other = "accounts:\n- accessKey: another1\n  secretKey: secret12\n"
    (beside / "plain_acl.yml").write_text(other)
    (beside / "tools.yml").write_text("accessKey: tools-key\nsecretKey: secret12\n")
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    assert set(acl_files("", str(beside / "broker.conf")).read().accounts) == {"another1"}
    (home / "plain_acl.yml").write_text(TEXT)
    (home / "acl" / "more.yml").write_text(other)
    monkeypatch.setenv("ROCKETMQ_HOME", str(home.parent))
    assert len(acl_files("", str(beside / "broker.conf")).read().accounts) == 9
    assert len(acl_files(str(home / "acl"), "").read().accounts) == 1
    assert len(acl_files(str(home / "acl" / "more.yml"), "").read().accounts) == 1


# Remote administration


def ask(whole: WholeBroker, command: Command, who: str = "admin") -> Command:
    """Of work that is done elsewhere."""
    whole.give(whole.peer, signed(command, who))
    whole.background.release()
    whole.tick(10)
    (answer,) = [one for one in whole.peer.take() if one.is_response]
    return answer


def test_accounts_are_made_changed_and_deleted_over_the_wire(whole: WholeBroker, tmp_path: Path) -> None:
    fields = {
        "accessKey": "fresh-key",
        "secretKey": "fresh-secret",
        "topicPerms": "T=PUB,secret=PUB",
        "groupPerms": "g=SUB",
        "admin": "false",
    }
    assert ask(whole, Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, fields)).code == 0
    assert whole.ask(signed(send("secret"), "fresh")).code == 0
    assert ask(whole, Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "fresh-key", "topicPerms": "T=PUB"})).code == 0
    assert refused(whole.ask(signed(send("secret"), "fresh")))
    assert whole.ask(signed(send(), "fresh")).code == 0
    text = (tmp_path / "plain_acl.yml").read_text()
    assert "counter: 2" in text
    assert text.startswith("globalWhiteRemoteAddresses:")
    version = ask(whole, Command(Code.GET_BROKER_CLUSTER_ACL_INFO))
    files = orjson.loads(version.fields["allAclFileVersion"])  # mqadmin 4.9.8 stumbles where it is not there
    assert [set(one) for one in files.values()] == [{"counter", "timestamp"}]
    assert '"counter":2' in version.fields["version"]
    assert '"counter":2' in version.fields["allAclFileVersion"]
    assert ask(whole, Command(Code.DELETE_ACL_CONFIG, {"accessKey": "fresh-key"})).code == 0
    assert refused(whole.ask(signed(send(), "fresh")))
    assert ask(whole, Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.1.1.1,10.1.1.2"})).code == 0
    assert whole.ask(send()).code == 0


def test_a_change_that_makes_no_sense_has_rocketmqs_code_and_changes_nothing(whole: WholeBroker, tmp_path: Path) -> None:
    before = (tmp_path / "plain_acl.yml").read_text()
    wrong = [
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "x", "secretKey": "y"}, 209),
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "fresh-key"}, 209),
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "named-key", "defaultTopicPerm": "ALL"}, 209),
        (Code.DELETE_ACL_CONFIG, {"accessKey": "no-such-key"}, 210),
        (Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "../../etc", "aclFileFullPath": "/etc/passwd"}, 211),
    ]
    for code, fields, expected in wrong:
        answer = ask(whole, Command(code, fields))
        assert answer.code == expected, answer
        assert "Nothing was changed" in (answer.remark or "")
    assert (tmp_path / "plain_acl.yml").read_text() == before


def test_the_list_of_accounts_has_no_secrets(whole: WholeBroker) -> None:
    answer = ask(whole, Command(Code.GET_BROKER_CLUSTER_ACL_CONFIG))
    config = calls.GET_BROKER_CLUSTER_ACL_CONFIG.answer(answer).body
    assert {one.access_key for one in config.plain_access_configs} >= {"admin-key", "named-key"}
    assert {one.secret_key for one in config.plain_access_configs} == {"******"}
    assert b"-secret" not in answer.body


@pytest.mark.parametrize(("code", "expected"), [(50, 209), (51, 210), (53, 211), (52, 1), (54, 1)])
def test_with_access_control_off_its_requests_say_so(tmp_path: Path, code: int, expected: int) -> None:
    whole = WholeBroker(tmp_path)
    answer = whole.ask(Command(code, {"accessKey": "some-key", "globalWhiteAddrs": "*"}))
    assert answer.code == expected
    assert "access control is off" in (answer.remark or "")
    whole.close()


# Attacks


def test_a_request_signed_for_another_broker_is_refused(whole: WholeBroker) -> None:
    assert refused(whole.ask(signed(send(n="broker-b"), "producer")))
    assert refused(whole.ask(signed(Command(Code.PULL_MESSAGE, pull_fields(bname="broker-b")), "consumer")))
    assert whole.ask(signed(send(n="broker-a"), "producer")).code == 0


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "an unknown key"])
def test_requests_of_strangers_are_answered_so_often_and_no_more(whole: WholeBroker, keyed: bool) -> None:
    """From one address, over as many connections as they like."""
    most = WRONG_AT_ONCE if keyed else KEYLESS_AT_ONCE
    answered = closed = 0
    for number in range(2 * most):
        stranger = FakePeer(f"[2001:db8:1:2::{number:x}]:5")  # one machine has all of such a network
        whole.give(stranger, signed(send(), "stranger") if keyed else send())
        answered += len(stranger.take())
        closed += stranger.closed
    assert (answered, closed) == (most, most)
    elsewhere = FakePeer("[2001:db8:1:3::1]:5")
    whole.give(elsewhere, send())
    assert [refused(answer) for answer in elsewhere.take()] == [True]
    whole.tick(10_000)
    late = FakePeer("[2001:db8:1:2::1]:5")
    whole.give(late, send())
    assert [refused(answer) for answer in late.take()] == [True]


def unasked(count: int = 1) -> list[Command]:
    """Answers that nobody waits for."""
    return [Command(0, opaque=number, flag=RESPONSE) for number in range(count)]


def test_answers_of_strangers_that_nobody_asked_for_count_as_requests_without_a_key(whole: WholeBroker) -> None:
    first, second = FakePeer("10.6.6.6:5"), FakePeer("10.6.6.6:6")
    whole.give(first, *unasked(KEYLESS_AT_ONCE - 1))
    whole.give(second, send())
    assert [refused(answer) for answer in second.take()] == [True]
    assert not first.closed
    whole.give(first, *unasked())
    assert "that nobody asked for" in first.close_reason
    whole.give(second, send())
    assert second.closed
    whole.tick(10_000)
    late = FakePeer("10.6.6.6:7")
    whole.give(late, *unasked())
    assert not late.closed


def test_who_is_known_may_answer_too_late(whole: WholeBroker) -> None:
    friend, known, certified = FakePeer(WHITE), FakePeer("10.6.6.6:5"), FakePeer("10.6.6.6:6")
    certified.certificate_subject = "producer-key"
    whole.give(known, signed(send(), "producer"))
    for peer in (friend, known, certified):
        whole.give(peer, *unasked(2 * KEYLESS_AT_ONCE))
        assert not peer.closed


def test_without_access_control_answers_are_not_counted(tmp_path: Path) -> None:
    whole = WholeBroker(tmp_path)
    whole.frames(*unasked(2 * KEYLESS_AT_ONCE))
    assert not whole.peer.closed
    whole.close()


@pytest.mark.parametrize("on", [True, False], ids=["with access control", "without"])
def test_a_name_server_counts_the_answers_of_strangers_too(tmp_path: Path, on: bool) -> None:
    settings = NameServerSettings(acl_enable=on)
    server = NameServer(settings, ManualClock(), RealDisk(), str(tmp_path), accounts=accounts(tmp_path))
    known, stranger = FakePeer("10.6.6.6:5"), FakePeer("10.6.6.6:6")

    def give(peer: FakePeer, *commands: Command) -> None:
        server.receive(peer, Framer().feed(b"".join(command.encode() for command in commands)))

    give(known, signed(Command(Code.GET_BROKER_CLUSTER_INFO), "producer"), *unasked(2 * KEYLESS_AT_ONCE))
    assert [answer.code for answer in known.take()] == [0]
    assert not known.closed
    give(stranger, *unasked(KEYLESS_AT_ONCE))
    assert not stranger.closed
    give(stranger, *unasked())
    assert stranger.closed == on


def test_a_large_body_is_not_looked_at_where_wrong_signatures_come_from(whole: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(guarding, "is_signed", lambda fields, body, secret: looked.append(len(body)))
    for _ in range(10):
        wrong = signed(send(body=bytes(4 << 20)), "producer")
        stranger = FakePeer("10.6.6.6:5")
        whole.give(stranger, wrong)
    assert len(looked) == 4, "twenty at once, and each of these counts for five"
    monkeypatch.undo()
    neighbour = FakePeer("10.6.6.6:6")
    whole.give(neighbour, signed(send(), "producer"))
    whole.give(neighbour, signed(send(body=bytes(100_000)), "producer"))
    assert [answer.code for answer in neighbour.take()] == [0, 0], "who has shown who it is sends what it likes"


def test_a_request_with_a_million_fields_costs_no_sorting(whole: WholeBroker) -> None:
    command = signed(send(), "producer")
    command.fields |= {f"f{number}": "x" for number in range(300)}
    signed(command, "producer")
    assert refused(whole.ask(command))


def test_a_flood_of_wrong_signatures_is_cut_off_and_honest_clients_are_served(whole: WholeBroker) -> None:
    answered = closed = 0
    for _ in range(5 * WRONG_AT_ONCE):
        attacker = FakePeer("10.6.6.6:5")
        wrong = signed(send(), "producer")
        wrong.body = b"guess"
        whole.give(attacker, wrong)
        answered += len(attacker.take())
        closed += attacker.closed
    assert answered == WRONG_AT_ONCE
    assert closed == 4 * WRONG_AT_ONCE
    neighbour = FakePeer("10.6.6.6:6")
    whole.give(neighbour, signed(send(), "producer"))
    assert [answer.code for answer in neighbour.take()] == [0], "another client at the same address"
    assert whole.ask(signed(send(), "producer")).code == 0


def test_every_refused_call_is_kept_and_the_log_has_a_limited_number_of_lines(whole: WholeBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="roquet.audit"):
        for _ in range(100):
            whole.ask(signed(send("secret"), "producer"))
        whole.ask(signed(send("evil\x1b[2J\ntopic %s"), "producer"))
    lines = [one for one in caplog.messages if one.startswith("refused: ")]
    assert 0 < len(lines) <= 25
    assert lines[0] == (
        "refused: key producer-key from 10.1.1.1:40001, request 310, topic:secret: no line for topic secret, and no defaultTopicPerm, "
        f"which is DENY ({whole.root.parent}/plain_acl.yml, line 21)"
    )
    answer = whole.ask(signed(Command(Code.ACCESS_AUDIT), "admin"))
    found = calls.ACCESS_AUDIT.answer(answer).body
    assert found.refused == 101
    assert found.calls[-1].resource == "topic:evil?[2J?topic %s"
    assert (found.calls[0].access_key, found.calls[0].code, found.calls[0].address) == ("producer-key", 310, "10.1.1.1:40001")


def test_a_white_listed_peer_takes_every_short_way(whole: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    friend = FakePeer(WHITE)
    monkeypatch.setattr(whole.broker, "handle", None)
    whole.give(friend, send())
    assert [answer.code for answer in friend.take()] == [0]


def test_a_certificates_subject_may_be_an_account(whole: WholeBroker) -> None:
    peer = FakePeer("10.5.5.5:1")
    peer.certificate_subject = "producer-key"
    whole.give(peer, send())
    assert [answer.code for answer in peer.take()] == [0]
    whole.give(peer, send("secret"))
    assert [refused(answer) for answer in peer.take()] == [True]
    peer.certificate_subject = "CN=somebody"
    whole.give(peer, send())
    assert [refused(answer) for answer in peer.take()] == [True]


def test_replies_need_pub_unless_the_setting_says_otherwise(whole: WholeBroker) -> None:
    reply = Command(Code.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC"), b"pong")
    assert refused(whole.ask(signed(reply, "consumer")))
    answer = whole.ask(signed(Command(Code.UPDATE_BROKER_CONFIG, {}, b"aclRepliesNeedPub=false\n"), "admin"))
    assert answer.code == 0
    assert not refused(whole.ask(signed(reply, "consumer")))
    for topic in ("secret", "secret_REPLY_TOPIC"):
        assert refused(whole.ask(signed(Command(Code.SEND_REPLY_MESSAGE_V2, send_fields(topic), b"pong"), "consumer"))), topic


def test_access_control_cannot_be_switched_off_or_moved_over_the_wire(whole: WholeBroker) -> None:
    for line in (b"aclEnable=false\n", b"aclFile=/tmp/other.yml\n", b"aclCredentialsFile=/tmp/other.yml\n"):
        assert whole.ask(signed(Command(Code.UPDATE_BROKER_CONFIG, {}, line), "admin")).code != 0
    assert whole.broker.access.guard is not None


def test_the_broker_signs_what_it_asks_with_its_first_admin(whole: WholeBroker) -> None:
    whole.settings.namesrv_addr = "127.0.0.1:9876"
    whole.broker.registration.now()
    (asked,) = whole.caller.calls[-1:]
    assert "admin-key" in repr(asked)


def test_a_file_that_others_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = accounts(tmp_path)
    (tmp_path / "plain_acl.yml").chmod(0o644)
    AclFiles(files.places).read()
    assert "may be read by everybody" in caplog.text


def test_a_commands_repr_has_no_secret() -> None:
    command = Command(50, {"accessKey": "some-key", "secretKey": "hidden-1", "Signature": "hidden-2", "SecurityToken": "hidden-3"})
    assert "hidden" not in repr(command)
    assert "some-key" in repr(command)
    assert repr(calls.AccountHeader("some-key", "hidden-1")) == "<AccountHeader 'some-key'>"


# Accounts for a new broker


def test_all_accounts_are_told_to_an_admin_sealed_with_its_own_secret(whole: WholeBroker) -> None:
    answer = whole.ask(signed(Command(Code.ACCESS_COPY), "admin"))
    assert answer.code == 0
    assert not any(secret.encode() in answer.body for secret in SECRETS)
    told = calls.AclConfig.decode(unseal("admin-secret", answer.body))
    assert {one.access_key: one.secret_key for one in told.plain_access_configs}["named-key"] == "named-secret"
    assert told.global_white_addrs == ["10.9.9.*"]
    again = whole.ask(signed(Command(Code.ACCESS_COPY), "admin"))
    assert again.body[:16] != answer.body[:16], "no nonce comes twice"


def test_accounts_are_told_to_nobody_else_and_of_no_use_to_who_only_names_an_admin(whole: WholeBroker) -> None:
    assert refused(whole.ask(signed(Command(Code.ACCESS_COPY), "default")))
    assert refused(whole.ask(Command(Code.ACCESS_COPY)))
    whole.peer = FakePeer(WHITE)  # may do everything without a key
    assert whole.ask(Command(Code.ACCESS_COPY)).code == 16
    assert whole.ask(Command(Code.ACCESS_COPY, {"AccessKey": "default-key"})).code == 16
    sealed = whole.ask(Command(Code.ACCESS_COPY, {"AccessKey": "admin-key"}))
    assert sealed.code == 0
    assert not any(secret.encode() in sealed.body for secret in SECRETS)
