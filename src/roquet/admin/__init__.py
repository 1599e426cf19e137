"""Administration of a running cluster: every call typed, used by the command line and later by the console."""

from roquet.admin.client import Admin, Broker, GroupMembers, PartlyDone, QueueProgress, QueueStatus

__all__ = ["Admin", "Broker", "GroupMembers", "PartlyDone", "QueueProgress", "QueueStatus"]
