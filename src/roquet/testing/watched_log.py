"""The log of the cores in a simulation."""

from __future__ import annotations

import logging

from roquet.testing.promises import Violation
from roquet.testing.simulation import Simulation


class watched_log(logging.Handler):
    """The cores log what they survive. Here a logged exception is a failure, and warnings are part of the trace."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self.simulation = simulation
        self._logger = logging.getLogger("roquet")

    def __enter__(self) -> watched_log:
        self._before = self._logger.propagate, self._logger.level
        self._logger.propagate = False
        self._logger.setLevel(logging.WARNING)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate, self._logger.level = self._before

    def handle(self, record: logging.LogRecord) -> bool:
        self.simulation.note(f"  {record.levelname} {record.getMessage()}")
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation(f"{record.getMessage()}: {record.exc_info[1]!r}") from record.exc_info[1]
        return True
