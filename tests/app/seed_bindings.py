"""The blocks of YAML that the seeds show, in their layout: fragments, indented as they stand in the document, with their slips. They are
the files of an example, so that the seeds' settings run as they are."""

from __future__ import annotations

from tests.docs.snippets import ROOT


def block(name: str) -> str:
    return (ROOT / "examples" / "spring" / f"{name}.yml").read_text()


PLAIN = block("plain")
BROADCAST = block("broadcast")
ORDERED = block("ordered")
FILTERED = block("filtered")
TRANSACTIONS = block("transactions")
TRANSACTION_CONSUMER = block("transaction_consumer")
ALL = [PLAIN, BROADCAST, ORDERED, FILTERED, TRANSACTIONS, TRANSACTION_CONSUMER]
