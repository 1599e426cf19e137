"""The sample configurations under conf/ are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from roquet.settings import BrokerSettings
from roquet.settings_file import layered

CONF = Path(__file__).parents[2] / "conf"
SAMPLES = sorted(path for path in CONF.rglob("*") if path.is_file())


def read(path: Path) -> BrokerSettings:
    settings, warnings = BrokerSettings.read(layered(str(path), "", {}))
    assert warnings == []
    return settings


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_sample_has_no_key_that_is_unknown_or_without_effect(path: Path) -> None:
    read(path)


@pytest.mark.parametrize("kind", sorted({path.parent for path in SAMPLES}), ids=lambda path: path.name)
def test_the_brokers_of_a_sample_can_run_beside_each_other(kind: Path) -> None:
    brokers = [read(path) for path in SAMPLES if path.parent == kind]
    taken = [broker.listen_port + step for broker in brokers for step in (0, -2, 1)]
    assert len(set(taken)) == len(taken)
    assert len({broker.store_path_root_dir for broker in brokers}) == len(brokers)
