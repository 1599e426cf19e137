"""The names that are used in a simulated cluster."""

SHARED_TOPIC = "sim-orders"
"""Made by hand in every broker group."""
NEW_TOPIC = "sim-audit"
"""Made by the first message, in the broker group that this is sent to."""
PAID_TOPIC = "sim-paid"
"""Of messages that are sent in transactions."""
TOPICS = (SHARED_TOPIC, NEW_TOPIC)
PAYERS = "sim-payers"
"""Of the producers of transactions: one group, so that any of them can be asked."""
GROUP = "sim-group"
"""Of the push consumers."""
READERS = "sim-readers"
