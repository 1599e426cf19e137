"""The shop of examples/shop under kill -9: of its three services and of the broker, at random moments.

    python -m soak.orders [--rounds 200] [--seed N] [--database URL] [--rate 40] [--plant BUG] [--keep]

Customers place orders all the time, and ask again until they are answered. A round is one kill: it begins when payments go on after the
round before. In the end every order that was answered must be there and be paid once, and the sums must be equal. Exit code 1 when not.
The database must be empty (default: a file of SQLite).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from tests.process.programs import shared_nursery

from roquet import Admin
from roquet.admin.groups import QueueProgress
from roquet.cli.render import counted, duration
from roquet.cli.shards import free_ports
from roquet.errors import RoquetError
from soak.order_bugs import BUGS
from soak.places import place

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("orders", "relay", "payments")
BROKER = "broker"
TOPIC, GROUP, BROKER_NAME = "shop-orders", "shop_payments", "broker-a"
PATIENCE_S = 120.0
"""Of everything that must happen at all."""
MOMENT_S = 0.5
"""Kills come within so long after payments were seen to go on."""
LEASE_S = 2.0
DELAYS = "1s 1s 2s 3s 4s 5s"
"""The broker's levels: a message of a service that was killed comes again after seconds, not minutes."""
CUSTOMERS = 4


class Broken(Exception):
    """The run cannot go on: what was to be shown has failed already, or the harness has."""


@dataclass
class Report:
    kills: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    orders: int = 0
    asked_again: int = 0
    """Requests that got no answer, and were made again; many of them while the order service starts."""
    published: int = 0
    """Messages of the topic; those above the number of orders are there twice."""


class Customers:
    """Threads that place orders. Every order that one began is answered in the end: stop() needs the order service."""

    def __init__(self, port: int, rate: float, seed: int) -> None:
        self.answered: dict[str, int] = {}
        """Cents by order id."""
        self.asked_again = 0
        self._port, self._pause_s, self._seed = port, CUSTOMERS / rate, seed
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._place_orders, args=(number,)) for number in range(CUSTOMERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident:
                thread.join()

    def _place_orders(self, customer: int) -> None:
        random, number = Random(self._seed * CUSTOMERS + customer), 0
        while not self._stop.wait(random.uniform(0, 2 * self._pause_s)):
            number += 1
            order_id, cents = f"c{customer}n{number}", random.randint(1, 10_000)
            deadline = time.monotonic() + PATIENCE_S
            while not self._put(order_id, {"customer": f"customer {customer}", "cents": cents}):
                self.asked_again += 1
                if time.monotonic() > deadline:
                    return  # the end finds that it is missing
                time.sleep(0.05)
            self.answered[order_id] = cents

    def _put(self, order_id: str, order: dict[str, object]) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return put(self._port, order_id, json.dumps(order)) in (200, 201)
        return False


def put(port: int, order_id: str, body: str) -> int:
    """The HTTP status of the answer."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as asking:
        asking.request("PUT", f"/orders/{order_id}", body)
        return asking.getresponse().status


class Shop:
    """The services, the broker and the name server, as processes. `with` ends them."""

    def __init__(self, directory: Path, seed: int, *, database: str = "", rate: float = 40, bug: str = "") -> None:
        self.directory, self.seed, self.bug = directory, seed, bug
        self.database = database or f"sqlite:///{directory}/shop.db"
        self.engine = create_engine(self.database)
        self.report = Report()
        self.port = free_ports(1, "127.0.0.1")[0]
        self.customers = Customers(self.port, rate, seed)
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Shop:
        with contextlib.ExitStack() as stack:
            name_server = shared_nursery().name_server(self.directory / "namesrv")
            stack.callback(name_server.kill)
            self.namesrv = ":".join(map(str, name_server.address))
            self._start(BROKER)
            stack.callback(lambda: self.broker.kill())
            stack.callback(self.engine.dispose)
            stack.callback(self._end_services)
            for name in SERVICES:
                self._start(name)
            stack.callback(self.customers.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _start(self, name: str) -> None:
        if name == BROKER:
            settings = {"namesrvAddr": self.namesrv, "registerBrokerTimeoutMills": "6000", "brokerName": BROKER_NAME}
            self.broker = shared_nursery().broker(self.directory / "broker", {**settings, "messageDelayLevel": DELAYS})
            return
        path = os.pathsep.join([str(ROOT / "examples"), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        about = {"SHOP_DATABASE": self.database, "SHOP_PORT": str(self.port), "SHOP_LEASE_S": str(LEASE_S), "NAMESRV_ADDR": self.namesrv}
        command = ["-m", f"shop.{name}"] if not self.bug else ["-m", "soak.order_bugs", self.bug, f"shop.{name}"]
        with open(self.directory / f"{name}.log", "ab") as log:
            self._services[name] = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **about, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _kill(self, name: str) -> None:
        if name == BROKER:
            self.broker.kill()
            return
        self._check_alive()
        process = self._services[name]
        process.kill()
        process.wait()

    def _check_alive(self) -> None:
        for name, process in self._services.items():
            if process.poll() is not None:
                raise Broken(f"{name} ended by itself with {process.returncode}:\n{self._tail(name)}")

    def _end_services(self) -> None:
        for process in self._services.values():
            process.kill()
            process.wait()

    def _tail(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3_000:]

    # -- rounds

    def run(self, victims: Sequence[str], say: Callable[[str], None] = lambda text: None) -> Report:
        """A round for each of them, and the count. Raises Broken."""
        random = Random(self.seed)
        self.customers.start()
        for number, victim in enumerate(victims, 1):
            began, paid = time.monotonic(), self._paid()
            self._until(partial(self._is_more_paid, paid), "payments that go on")
            waited_s = time.monotonic() - began
            time.sleep(random.random() * MOMENT_S)
            self._kill(victim)
            self._start(victim)
            self.report.kills[victim] += 1
            say(f"round {number}: payments went on after {waited_s:.1f} s; killed {victim}, {self._paid():,} orders are paid")
        self.customers.stop()
        self._until(self._is_settled, "an end: everything published, paid and consumed", is_needed=False, every_s=0.3)
        self._check_alive()
        self._count()
        return self.report

    def _until(self, condition: Callable[[], bool], what: str, *, is_needed: bool = True, every_s: float = 0.05) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self._check_alive()
            if time.monotonic() > deadline:
                lost = f"no sign of {what} within {PATIENCE_S:.0f} s"
                if is_needed:
                    raise Broken("\n".join([lost, *(f"{name}:\n{self._tail(name)}" for name in SERVICES)]))
                self.report.faults.append(lost)
                return
            time.sleep(every_s)

    def _number(self, sql: str) -> int:
        """0 while the services have not made their tables."""
        with contextlib.suppress(DBAPIError), self.engine.connect() as connection:
            return int(connection.scalar(text(sql)) or 0)
        return 0

    def _paid(self) -> int:
        return self._number("SELECT count(DISTINCT order_id) FROM payments")

    def _is_more_paid(self, than: int) -> bool:
        return self._paid() > than

    def _is_settled(self) -> bool:
        if self._number("SELECT count(*) FROM roquet_outbox WHERE sent_ms = 0") or self._paid() < len(self.customers.answered):
            return False
        try:
            queues = asyncio.run(self._progress())
        except RoquetError:
            return False
        self.report.published = sum(queue.broker_offset for queue in queues if queue.queue.topic == TOPIC)
        return not sum(queue.lag for queue in queues)

    async def _progress(self) -> list[QueueProgress]:
        async with Admin(self.namesrv) as admin:
            return await admin.progress(GROUP)

    # -- the count

    def _count(self) -> None:
        report, answered = self.report, self.customers.answered
        with self.engine.connect() as connection:
            orders = {row.id: row.cents for row in connection.execute(text("SELECT id, cents FROM orders"))}
            payments = [(row.order_id, row.cents) for row in connection.execute(text("SELECT order_id, cents FROM payments"))]
        report.orders, report.asked_again = len(orders), self.customers.asked_again
        report.faults += faults_of(answered, orders, payments)


def choose(rounds: int, random: Random) -> list[str]:
    """Turn after turn through all parts, each turn in an order of its own. Pure."""
    parts = (*SERVICES, BROKER)
    turns = [random.sample(parts, len(parts)) for _ in range(0, rounds, len(parts))]
    return [victim for turn in turns for victim in turn][:rounds]


def faults_of(answered: dict[str, int], orders: dict[str, int], payments: list[tuple[str, int]]) -> list[str]:
    """What is wrong, in words. Pure."""
    times = Counter(order_id for order_id, _ in payments)
    found = {
        "lost: answered, and not in the table of orders": answered.keys() - orders.keys(),
        "in the table of orders, and never answered": orders.keys() - answered.keys(),
        "in the table of orders with another price": {one for one in answered if orders.get(one, answered[one]) != answered[one]},
        "never paid": orders.keys() - times.keys(),
        "paid more than once": {one for one, count in times.items() if count > 1},
        "paid, and never ordered": times.keys() - orders.keys(),
    }
    faults = [f"{counted(len(those), 'order')} {what}: {', '.join(sorted(those)[:5])}" for what, those in found.items() if those]
    ordered, paid = sum(orders.values()), sum(cents for _, cents in payments)
    if ordered != paid:
        faults.append(f"ordered were {ordered:,} cents, and paid {paid:,}")
    return faults


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.orders", description="The shop under kill -9.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="of everything random (default: from the clock; it is printed)")
    parser.add_argument("--database", default="", help="a URL of SQLAlchemy, of an empty database (default: a file of SQLite)")
    parser.add_argument("--rate", type=float, default=40, help="orders a second (default: 40)")
    parser.add_argument("--plant", choices=[*BUGS], default="", help="a bug that must be found")
    parser.add_argument("--keep", action="store_true", help="keep the directory: database, store, logs")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.rate <= 0:
        parser.error(f"--rounds {given.rounds} --rate {given.rate}: expected are one round or more, and more than 0 orders a second")
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    say(f"{counted(given.rounds, 'round')}, --seed {seed}" + (f", planted: {given.plant}" if given.plant else ""))
    with place(given.keep) as directory, Shop(directory, seed, database=given.database, rate=given.rate, bug=given.plant) as shop:
        try:
            shop.run(choose(given.rounds, Random(seed)), say)
        except Broken as error:
            shop.report.faults.append(str(error))
    report = shop.report
    print("killed        " + ", ".join(f"{name} {count}" for name, count in sorted(report.kills.items())))
    print(f"orders        {report.orders:,}; requests without an answer, made again: {report.asked_again:,}")
    print(f"messages      {report.published:,}, so {report.published - report.orders:,} were published twice")
    for fault in report.faults:
        print(f"FAULT: {fault}")
    print(f"{counted(report.kills.total(), 'round')} in {duration(time.monotonic() - began)}, seed {seed}: "
          + (counted(len(report.faults), "fault") if report.faults else "no order lost, none paid twice, the sums are equal."))  # fmt: skip
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
