"""Half messages: committed, rolled back, asked about."""

from __future__ import annotations

from roquet.wire.calls.call import Call, Nothing, Records
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class EndTransactionHeader(Header):
    producer_group: str = wire("producerGroup")
    tran_state_table_offset: int = wire("tranStateTableOffset", bits=64)
    """Queue offset in the half topic."""
    commit_log_offset: int = wire("commitLogOffset", bits=64)
    commit_or_rollback: int = wire("commitOrRollback")
    """0 unknown, 8 commit, 12 roll back."""
    msg_id: str = wire("msgId")
    from_transaction_check: bool | None = optional("fromTransactionCheck")
    transaction_id: str | None = optional("transactionId")
    topic: str | None = optional("topic")
    broker_name: str | None = optional("bname")


class CheckTransactionHeader(Header):
    tran_state_table_offset: int = wire("tranStateTableOffset", bits=64)
    commit_log_offset: int = wire("commitLogOffset", bits=64)
    msg_id: str | None = optional("msgId")
    transaction_id: str | None = optional("transactionId")
    offset_msg_id: str | None = optional("offsetMsgId")
    broker_name: str | None = optional("bname")


class ResumeCheckHeader(Header):
    msg_id: str = wire("msgId")
    topic: str | None = optional("topic")


END_TRANSACTION = Call(Code.END_TRANSACTION, EndTransactionHeader, Nothing, Nothing, Nothing)
CHECK_TRANSACTION_STATE = Call(Code.CHECK_TRANSACTION_STATE, CheckTransactionHeader, Records, Nothing, Nothing)
RESUME_CHECK_HALF_MESSAGE = Call(Code.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader, Nothing, Nothing, Nothing)
