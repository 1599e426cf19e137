"""Which properties of a send ask for more than storing it."""

from __future__ import annotations

from roquet.message import Property
from roquet.settings import BrokerSettings

SPECIAL = frozenset(
    (
        Property.DELAY, Property.TRANSACTION_PREPARED, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS,
        Property.START_DELIVER_TIME, Property.TIMER_CANCELLED_KEY, Property.INNER_MULTI_DISPATCH,
    )
)  # fmt: skip
NOTHING_ASKED = ("0", "false")
"""Values with which they ask for nothing."""
REFUSED = frozenset((Property.INNER_MULTI_DISPATCH,))
"""Those that no part of this broker serves: refused, not silently ignored."""

SPECIAL_MARKS = [name + "\x01" for name in SPECIAL]
SPECIAL_BYTES = [mark.encode() for mark in SPECIAL_MARKS]

WAITS, WAITS_NOT = Property.WAIT + "\x01true", Property.WAIT + "\x01false"
UNUSUAL = SPECIAL | {Property.WAIT, Property.CLUSTER, Property.MSG_REGION, Property.TRACE_ON}
"""What a plain send has not, except for WAITS."""

KEPT_FLAGS = 0x703
"""Of a client's system flags: compression and its kind, several tags."""


def added_properties(settings: BrokerSettings) -> dict[str, str]:
    """What the broker adds to the properties of every message that clients send."""
    added = {str(Property.CLUSTER): settings.broker_cluster_name}
    return added | region_fields(settings) if settings.stores_region else added


def region_fields(settings: BrokerSettings) -> dict[str, str]:
    """What every answer to a send carries, one that refuses it too."""
    return {Property.MSG_REGION: settings.region_id, Property.TRACE_ON: "true" if settings.trace_on else "false"}


def may_ask_for_more(properties: bytes) -> bool:
    """One of these may ask for more than storing."""
    return any(mark in properties for mark in SPECIAL_BYTES)
