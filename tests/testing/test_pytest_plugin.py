"""The fixtures, in a project of somebody else: pytest is run as a program, with nothing but this plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "roquet.testing.pytest_plugin"


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Warnings are errors there, too."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-p", PLUGIN, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False)


def written(directory: Path, text: str, name: str = "test_shop.py") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(text))
    return path


SHOP = """
    import asyncio

    import pytest

    from roquet import BadSql, Message, Producer, PushConsumer, Rejected
    from roquet.client import sync


    async def remind(namesrv):
        async with Producer("shop", namesrv) as producer:
            await producer.send(Message("reminders", b"pay", deliver_after=7200))


    def test_a_plain_test(roquet_broker, roquet_clock, published):
        asyncio.run(remind(roquet_broker.namesrv))
        assert not published.to("reminders")
        roquet_clock.advance(hours=2)
        assert published.bodies("reminders") == [b"pay"]


    def test_each_test_has_a_broker_of_its_own(published):
        assert len(published) == 0


    def test_an_async_test_without_a_plugin_for_those(roquet_broker, roquet_clock):
        seen = []

        async def scenario():
            consumer = PushConsumer("mailer", roquet_broker.namesrv, consume_from="first")
            consumer.subscribe("reminders", function=lambda message: seen.append(message.body))
            async with consumer:
                await remind(roquet_broker.namesrv)
                await roquet_clock.advance(hours=2)

        asyncio.run(scenario())
        assert seen == [b"pay"]


    def test_blocking_code(roquet_broker, roquet_clock, published):
        with sync.Producer("shop", roquet_broker.namesrv) as producer:
            producer.send(Message("reminders", b"pay", delay_level=18))
            roquet_clock.advance(hours=2)
        assert published.bodies("reminders") == [b"pay"]


    class TestWithOtherSettings:
        @pytest.fixture
        def roquet_settings(self):
            return {"maxMessageSize": "100"}

        def test_the_brokers_settings_are_a_fixture(self, roquet_broker):
            with sync.Producer("shop", roquet_broker.namesrv) as producer, pytest.raises(Rejected):
                producer.send(Message("orders", bytes(200)))
"""


def test_the_fixtures_serve_plain_tests(tmp_path: Path) -> None:
    written(tmp_path, SHOP)
    done = run_pytest(tmp_path)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_whoever_does_not_use_it_does_not_load_it(tmp_path: Path) -> None:
    """The plugin is loaded in every run of pytest: then it must load nothing else of ours."""
    written(
        tmp_path,
        """
        import sys

        def test_what_is_loaded():
            ours = {name for name in sys.modules if name.split(".")[0] in ("roquet", "numpy", "asyncio", "orjson")}
            assert ours - {"asyncio"} <= {"roquet", "roquet.testing", "roquet.testing.pytest_plugin"}
        """,
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_it_where_roquet_is_installed_and_loads_it_once_also_when_it_is_asked_for(tmp_path: Path) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    written(tmp_path, "def test_one(pytestconfig): assert pytestconfig.pluginmanager.hasplugin('roquet.testing.pytest_plugin')")
    installed = tmp_path / "installed" / "roquet_entry-1.dist-info"
    installed.mkdir(parents=True)
    written(installed, "Metadata-Version: 2.1\nName: roquet_entry\nVersion: 1\n", "METADATA")
    written(installed, "[pytest11]\n" + "".join(f"{name} = {module}\n" for name, module in entries.items()), "entry_points.txt")
    environment = {**os.environ, "PYTHONPATH": f"{installed.parent}{os.pathsep}{ROOT / 'src'}"}
    for asked in ([], ["-p", PLUGIN]):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *asked]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixtures_are_described(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, "--fixtures").stdout
    described = shown.partition(f"fixtures defined from {PLUGIN}")[2].partition("fixtures defined from")[0]
    for fixture in ("roquet_broker", "roquet_clock", "published", "roquet_settings"):
        assert f"\n{fixture}" in described
    assert "no docstring available" not in described
