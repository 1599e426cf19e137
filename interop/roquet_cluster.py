"""Roquet's servers, started as Apache's are in apache.py: same constructors, same methods."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path

import apache


class NameServer(apache.Server):
    """A Roquet name server that listens by the time the constructor returns."""

    def __init__(self, port: int, dir: str | os.PathLike[str], **settings: object) -> None:
        directory = Path(dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        conf = apache.write_settings(directory / "namesrv.conf", apache.namesrv_settings(port, directory, settings))
        command = [sys.executable, "-m", "roquet", "namesrv", "-c", str(conf)]
        super().__init__(command, name="namesrv", port=port, directory=directory)
        self.wait_booted()


class Broker(apache.Server):
    """A Roquet broker, booted and known to the name server by the time the constructor returns. The store is `dir`/store."""

    def __init__(
        self, port: int, namesrv: str, dir: str | os.PathLike[str], *, tls: ssl.SSLContext | None = None, **settings: object
    ) -> None:
        """`tls`: how to ask the name server."""
        directory = Path(dir).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        conf = apache.write_settings(directory / "broker.conf", apache.broker_settings(port, namesrv, directory, settings))
        command = [sys.executable, "-m", "roquet", "broker", "-c", str(conf)]
        super().__init__(command, name="broker", port=port, directory=directory)
        self.namesrv = namesrv
        if settings.get("aclEnable"):
            self.wait_booted()  # the name server answers nobody who does not sign
        else:
            self.wait_registered(namesrv, tls)
