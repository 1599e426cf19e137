"""What interop passes over in a client's log: an answer that nobody waits for may be somebody else's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def client_logs() -> ModuleType:
    path = Path(__file__).parents[1] / "interop" / "client_logs.py"
    spec = importlib.util.spec_from_file_location("client_logs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def answer(second: str, opaque: int = 7, remark: str = "OFFSET_OVERFLOW_ONE") -> str:
    return (
        f"2026-11-16 01:23:{second} WARN  [Netty] RocketmqRemoting - receive response, cmd=RemotingCommand [code=19, language=JAVA, "
        f"version=409, opaque={opaque}, flag(B)=1, remark={remark}, extFields=null], but not matched any request, address=127.0.0.1:1"
    )


CLOSED = "2026-11-16 01:23:{} WARN  [Netty] o.a.r - send heart beat to broker failed | send request to </127.0.0.1:1> failed"
PULL_FAILED = (
    "2026-11-16 01:23:{} WARN  [NettyClientPublicExecutor_2] RocketmqClient - execute the pull request exception | "
    "org.apache.rocketmq.client.exception.MQClientException: send request failed to 127.0.0.1:1, Request: RemotingCommand [code=11]"
)
INTERRUPTED = "2026-11-16 01:23:01.000 ERROR [PullMsgThread-j4_lite_assign1] o.a.r - Polling thread was interrupted"
GIVEN_UP = "2026-11-16 01:23:01.000 WARN  [Timer] o.a.r - remove timeout request, ResponseFuture [opaque=7, timeoutMillis=3000]"


@pytest.mark.parametrize("phase", ["working", "leaving"])
def test_an_answer_that_nobody_waits_for_is_a_failure(client_logs: ModuleType, phase: str) -> None:
    (left,) = client_logs.unmatched([(phase, answer("10.082"))])
    assert "nobody waits for" in left


def test_also_when_the_answer_is_told_in_the_next_entry(client_logs: ModuleType) -> None:
    first, second = answer("10.082").split("cmd=")
    entries = [("working", first + "but not matched any request, 127.0.0.1:1"), ("working", f"2026-11-16 01:23:10.082 WARN {second}")]
    assert len(client_logs.unmatched(entries)) == 1


def test_one_answer_of_a_pull_is_passed_over_for_each_pull_that_was_interrupted(client_logs: ModuleType) -> None:
    assert not client_logs.unmatched([("working", INTERRUPTED), ("working", answer("10.082"))])
    assert len(client_logs.unmatched([("working", INTERRUPTED), ("working", answer("10.082")), ("working", answer("10.083"))])) == 1
    assert len(client_logs.unmatched([("working", INTERRUPTED), ("working", answer("10.082", remark="null"))])) == 1


def test_the_answer_to_a_request_that_was_given_up_is_passed_over_and_no_other(client_logs: ModuleType) -> None:
    assert not client_logs.unmatched([("working", GIVEN_UP), ("working", answer("10.082", 7))])
    assert len(client_logs.unmatched([("working", GIVEN_UP), ("working", answer("10.082", 8))])) == 1


def test_an_answer_to_a_client_that_closes_its_connection_is_passed_over(client_logs: ModuleType) -> None:
    assert not client_logs.unmatched([("leaving", answer("10.082")), ("leaving", CLOSED.format("10.122"))])
    assert not client_logs.unmatched([("leaving", PULL_FAILED.format("10.045")), ("leaving", answer("10.082", remark="FOUND"))])
    assert len(client_logs.unmatched([("leaving", answer("10.082")), ("leaving", CLOSED.format("12.122"))])) == 1
    assert len(client_logs.unmatched([("working", answer("10.082")), ("working", CLOSED.format("10.122"))])) == 1, "it does not close then"


def test_a_pull_that_the_broker_held_may_be_answered_as_late_as_it_holds_one(client_logs: ModuleType) -> None:
    assert not client_logs.unmatched([("leaving", CLOSED.format("10.122")), ("leaving", answer("16.642"))])
    assert len(client_logs.unmatched([("leaving", CLOSED.format("10.122")), ("leaving", answer("41.642"))])) == 1
    found = answer("16.642", remark="FOUND").replace("code=19", "code=0")
    assert len(client_logs.unmatched([("leaving", CLOSED.format("10.122")), ("leaving", found)])) == 1, "a message is for somebody"
    assert len(client_logs.unmatched([("working", CLOSED.format("10.122")), ("working", answer("16.642"))])) == 1


SELECTOR_GONE = "java.util.concurrent.RejectedExecutionException: event executor terminated"
"""As Apache's 4.9.8 client logs it with Apache's servers, when its threads are held for nine seconds while it shuts down."""


def pipeline(thread: str, cause: str, between: str = "") -> str:
    head = f"2026-11-20 00:20:49.705 WARN  [{thread}] RocketmqRemoting - NETTY CLIENT PIPELINE: exceptionCaught"
    return f"{head} 127.0.0.1:29450\n{between}{head} exception.\n{cause}\n\tat io.netty.Somewhere.execute(Somewhere.java:926)\n"


def complaints(client_logs: ModuleType, directory: Path, text: str, phase: str = "leaving") -> list[str]:
    log = directory / "rocketmq_client.log"
    log.write_text(text)
    entries = client_logs.java_entries(log, {phase: ""})
    left: list[str] = client_logs.complaints(entries, client_logs.JAVA_WORKING, client_logs.JAVA_LEAVING)
    return left


def test_a_client_whose_selector_ended_before_its_other_threads_says_nothing_of_the_broker(client_logs: ModuleType, tmp_path: Path) -> None:
    other = "2026-11-20 00:20:49.705 WARN  [PullMessageService] RocketmqClient - PullMessageServiceScheduledThread has shutdown\n"
    told = f"2026-11-20 00:20:49.703 ERROR [T_2] i.n.rejectedExecution - Failed to submit a listener notification task.\n{SELECTOR_GONE}\n"
    text = told + pipeline("T_1", SELECTOR_GONE, between=other) + pipeline("T_2", SELECTOR_GONE)
    assert not complaints(client_logs, tmp_path, text)
    assert len(complaints(client_logs, tmp_path, text, phase="working")) == 4, "it does not end then"


def test_whatever_else_fails_on_a_connection_is_a_failure_with_its_address_and_cause(client_logs: ModuleType, tmp_path: Path) -> None:
    for cause in ("java.io.IOException: Connection reset by peer", "java.util.concurrent.RejectedExecutionException: rejected from a pool"):
        (left,) = complaints(client_logs, tmp_path, pipeline("T_1", SELECTOR_GONE) + pipeline("T_1", cause))
        assert "127.0.0.1:29450" in left
        assert cause in left
    alone = pipeline("T_1", SELECTOR_GONE).splitlines()[0]
    assert complaints(client_logs, tmp_path, alone) == [alone], "an address without a cause is not known to be harmless"
