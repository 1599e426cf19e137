"""Requests and answers of members as remoting commands. The header says nothing but the code: everything is in the body."""

from __future__ import annotations

from roquet.raft import dense
from roquet.raft.codes import Call, Code
from roquet.raft.messages import CALLS, OURS, REQUESTS, Answer, DensePush, PushAnswer, Request, Unreadable, answer_of, body_of, request_of
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

VERSION = 407
"""As Java's members of 4.9.7 send it; nobody looks at it."""
KNOWN = frozenset(REQUESTS) | {Call.DENSE_PUSH}


def command_of(request: Request) -> Command:
    body = dense.body_of_push(request) if isinstance(request, DensePush) else body_of(request)
    return Command(CALLS[type(request)], body=body, version=VERSION)


def answer_from(request: Request, command: Command) -> Answer | None:
    """None: it is no answer that could be read, which counts as none."""
    if not command.body:
        return None
    try:
        if isinstance(request, DensePush):
            return dense.answer_of_push(command.body)
        return answer_of(CALLS[type(request)], command.body)
    except Unreadable:
        return None


def request_from(command: Command) -> Request:
    """Raises Unreadable; KeyError for a code that no member answers."""
    if command.code == Call.DENSE_PUSH:
        return dense.push_of(command.body)
    return request_of(command.code, command.body)


def reply_to(command: Command, answer: Answer) -> Command:
    if command.code == Call.DENSE_PUSH:
        given = answer if isinstance(answer, PushAnswer) else PushAnswer(code=answer.code, term=answer.term, ours=OURS)
        body = dense.body_of_answer(given)
    else:
        body = body_of(answer)
    reply = command.reply(Code.SUCCESS, body=body)
    reply.version = VERSION
    return reply


def refusal_of(command: Command, why: str) -> Command:
    """The answer to what cannot be read. It has a body: a Java member that gets none waits until its time is over."""
    if command.code not in KNOWN:
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
    reply = reply_to(command, Answer(code=Code.UNEXPECTED_ARGUMENT))
    reply.remark = why
    return reply
