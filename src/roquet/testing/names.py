"""The names that are used in a simulated cluster."""

SHARED_TOPIC = "sim-orders"
"""Made by hand in every broker group."""
NEW_TOPIC = "sim-audit"
"""Made by the first message, in the broker group that this is sent to."""
TOPICS = (SHARED_TOPIC, NEW_TOPIC)
GROUP = "sim-group"
"""Of the push consumers."""
READERS = "sim-readers"
