"""The sequence that both clusters are played: groups of steps, in this order. Later groups rely on what earlier ones stored."""

from __future__ import annotations

from collections.abc import Callable

from differential import steps_administration, steps_clients, steps_deliveries, steps_names, steps_pulls, steps_sends
from differential.side import Side

GROUPS: dict[str, Callable[[Side], None]] = {
    "transactions": steps_deliveries.transactions,  # first: topics for them, which Apache makes some time after its start, are there then
    "routes": steps_names.routes,
    "values of the name server": steps_names.values,
    "registrations": steps_names.registrations,
    "topics": steps_sends.topics,
    "plain sends": steps_sends.plain_sends,
    "refused sends": steps_sends.refused_sends,
    "new topics": steps_sends.new_topics,
    "batches": steps_sends.batches,
    "delays": steps_sends.delays,
    "pulls": steps_pulls.pulls,
    "filters": steps_pulls.filters,
    "subscriptions": steps_pulls.subscriptions,
    "long polls": steps_pulls.long_polls,
    "offsets": steps_pulls.offsets,
    "queries": steps_pulls.queries,
    "clients": steps_clients.clients,
    "locks": steps_clients.locks,
    "groups": steps_clients.groups,
    "calls to clients": steps_clients.calls_to_clients,
    "replies": steps_clients.replies,
    "send-backs": steps_deliveries.send_backs,
    "transactions that are checked": steps_deliveries.checks,
    "statistics": steps_administration.statistics,
    "settings": steps_administration.settings,
    "what is left": steps_administration.rest,
}


def play(side: Side) -> None:
    for name, steps in GROUPS.items():
        with side.group(name):
            steps(side)
