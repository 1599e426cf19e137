"""Administration of a running cluster: every call typed, used by the command line and later by the console."""

from roquet.admin.asking import Broker, PartlyDone
from roquet.admin.client import Admin
from roquet.admin.groups import GroupMembers, QueueProgress
from roquet.admin.topics import QueueStatus

__all__ = ["Admin", "Broker", "GroupMembers", "PartlyDone", "QueueProgress", "QueueStatus"]
