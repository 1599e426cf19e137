"""Accounts for the tests, in a real file, and requests that they sign."""

from __future__ import annotations

from pathlib import Path

from roquet.acl_files import AclFiles
from roquet.wire.command import Command
from roquet.wire.signing import Credentials, sign

TEXT = """\
globalWhiteRemoteAddresses:
- 10.9.9.*
accounts:
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
- accessKey: nobody-key
  secretKey: nobody-secret
- accessKey: default-key
  secretKey: default-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: named-key
  secretKey: named-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - T=PUB|SUB
  groupPerms:
  - g=SUB
- accessKey: producer-key
  secretKey: producer-secret
  topicPerms:
  - T=PUB
- accessKey: consumer-key
  secretKey: consumer-secret
  topicPerms:
  - T=SUB
  groupPerms:
  - g=SUB
- accessKey: denied-key
  secretKey: denied-secret
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - T=DENY
  groupPerms:
  - g=DENY
- accessKey: at-home-key
  secretKey: at-home-secret
  whiteRemoteAddress: 10.8.8.8
"""
SECRETS = ("admin-secret", "nobody-secret", "default-secret", "named-secret", "producer-secret", "consumer-secret", "denied-secret")
WHITE = "10.9.9.9:40001"
HOME = "10.8.8.8:40001"


def key_of(who: str) -> Credentials:
    return Credentials(f"{who}-key", f"{who}-secret")


def signed(command: Command, who: str) -> Command:
    sign(command, key_of(who))
    return command


def accounts(directory: Path, text: str = TEXT) -> AclFiles:
    path = directory / "plain_acl.yml"
    path.write_text(text)
    path.chmod(0o600)
    return AclFiles([path])
