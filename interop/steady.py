"""Load that goes on whatever happens to the servers: an agent's producer, which says what was acknowledged and when."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

import apache
from agents import Agent, AgentError

LOOK_BACK = 1_000
AGAIN_S = 0.01


@dataclass(frozen=True)
class Acknowledged:
    begun: float
    at: float  # both by time.monotonic
    body: str


class Load:
    """Numbered messages, `in_flight` at a time. One that fails is not repeated: the next has another number."""

    def __init__(
        self, agent: Agent, topic: str, *, in_flight: int = 1, pause_s: float = 0.0, again_s: float = 0.01, **producer: object
    ) -> None:
        self.language = agent.language
        self._agent, self._topic, self._pause_s = agent, topic, pause_s
        self._name = f"steady.{topic}.{agent.language}"
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self.acknowledged: list[Acknowledged] = []
        self.failures: list[tuple[float, str]] = []
        agent.ask("produce", name=self._name, group=f"steady_{agent.language.replace('.', '_')}_p", **producer)
        self._threads = [threading.Thread(target=self._send) for _ in range(in_flight)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stopping.is_set():
            body, begun = f"{self.language} {next(self._numbers)}", time.monotonic()
            try:
                status = self._agent.ask("send", producer=self._name, topic=self._topic, body=body)
            except AgentError as failure:
                self.failures.append((time.monotonic(), str(failure)))
                self._stopping.wait(max(AGAIN_S, self._pause_s))
                continue
            if status.startswith("SEND_OK"):
                self.acknowledged.append(Acknowledged(begun, time.monotonic(), body))
            else:
                self.failures.append((time.monotonic(), status))
            self._stopping.wait(self._pause_s)

    def bodies(self) -> set[str]:
        return {each.body for each in self.acknowledged}

    def first_after(self, moment: float, timeout_s: float = apache.PATIENCE_S) -> float:
        """When the first send that was begun after this moment was acknowledged."""

        def found() -> list[float]:
            return [each.at for each in self.acknowledged[-LOOK_BACK:] if each.begun > moment]

        what = f"an acknowledged send of {self.language}; {len(self.failures)} failed, the last ones with {self.failures[-2:]}"
        apache.wait_until(lambda: bool(found()), what, timeout_s=timeout_s, every_s=0.01)
        return min(found())

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
