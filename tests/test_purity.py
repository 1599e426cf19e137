"""The cores reach the world through their parameters alone, and arrows between packages point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import roquet

ROOT = Path(roquet.__file__).parent

IMPURE = frozenset(
    {"asyncio", "socket", "threading", "time", "random", "os", "selectors", "ssl", "subprocess", "multiprocessing", "concurrent"}
)
TABLES = ("settings.py", "settings_upstream.py", "properties.py")
NOUNS = ("message.py", "errors.py", "hosts.py", "ports.py")
PURE = ("wire", "routing", "access", "ha", "raft", "broker", "nameserver", "client/core", *NOUNS, *TABLES)
"""Of the store only disk.py touches the machine; the rest is held to the same rule."""

BASE = frozenset({"errors", "hosts", "message", "properties", "speedups"})
ALLOWED: dict[str, frozenset[str]] = {
    "errors.py": frozenset(),
    "hosts.py": frozenset(),
    "message.py": frozenset({"errors", "wire"}),
    "ports.py": frozenset({"errors", "wire"}),
    "properties.py": frozenset(),
    "settings.py": frozenset({"errors", "routing", "settings_upstream", "wire"}),
    "settings_upstream.py": frozenset(),
    "clock.py": frozenset({"speedups"}),
    "system.py": frozenset(),
    "speedups": frozenset({"speedups"}),
    "wire": BASE | {"wire"},
    "routing": BASE | {"wire", "routing"},
    "access": BASE | {"wire", "ports", "access"},
    "store": BASE | {"wire", "ports", "settings", "store", "system"},
    "net": BASE | {"wire", "ports", "settings", "net", "system"},
    "ha": BASE | {"wire", "ports", "settings", "store", "ha"},
    "broker": BASE | {"wire", "routing", "ports", "settings", "store", "ha", "raft", "access", "broker"},
    "raft": BASE | {"wire", "ports", "store", "raft"},
    "nameserver": BASE | {"wire", "routing", "ports", "settings", "store", "access", "nameserver"},
    "client/core": BASE | {"wire", "routing", "ports", "client/core"},
    "app": BASE | {"wire", "client", "system", "app"},
    "client": BASE | {"wire", "routing", "ports", "net", "client", "client/core", "clock", "idempotence"},
    "idempotence": BASE | {"client/core", "idempotence"},
    "spark": BASE | {"wire", "routing", "store", "settings", "client", "client/core", "admin", "net", "ports", "clock", "spark"},
    "outbox": BASE | {"wire", "client", "client/core", "outbox"},
    "admin": BASE | {"wire", "routing", "raft", "settings", "client", "client/core", "admin", "net", "ports", "clock"},
}
"""Package -> what it may import of ours. Programs (cli, supervisor, embed, programs, testing) put everything together."""

STARTS = ("servers.py", "shards.py", "apps.py")
PROGRAMS_ONLY = frozenset({"cli", "supervisor", "programs", "embed", "testing"})


def sources(part: str) -> list[Path]:
    place = ROOT / part
    found = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
    if part == "client":
        found = [path for path in found if "core" not in path.relative_to(place).parts]
    assert found, f"nothing is at {place}"
    return found


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands, except under `if TYPE_CHECKING`."""

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from walk(other)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if node.module == "roquet":
                for alias in node.names:
                    if alias.name.startswith("__"):  # its version
                        continue
                    yield node.lineno, f"roquet.{alias.name}"
            else:
                yield node.lineno, node.module or ""
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(path.read_text()))


def package(module: str) -> str:
    """ "roquet.client.core.routes" -> "client/core"."""
    parts = module.split(".")[1:]
    return "client/core" if parts[:2] == ["client", "core"] else parts[0] if parts else ""


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT.parent)}:{line}"


@pytest.mark.parametrize("part", PURE)
def test_a_core_imports_nothing_that_touches_the_world(part: str) -> None:
    found = [
        f"{where(path, line)} imports {module}"
        for path in sources(part)
        for line, module in imports(path)
        if module.split(".")[0] in IMPURE
    ]
    assert not found, "\n".join(found)


def test_of_the_store_only_the_disk_touches_the_machine() -> None:
    found = [
        f"{where(path, line)} imports {module}"
        for path in sources("store")
        if path.name != "disk.py"
        for line, module in imports(path)
        if module.split(".")[0] in IMPURE
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("part", ALLOWED)
def test_arrows_point_one_way(part: str) -> None:
    found = [
        f"{where(path, line)} imports {module}"
        for path in sources(part)
        for line, module in imports(path)
        if module.split(".")[0] == "roquet" and package(module) not in ALLOWED[part]
    ]
    assert not found, "\n".join(found)


def test_the_command_line_reaches_brokers_through_admin_and_client() -> None:
    """servers.py, shards.py and apps.py start programs, so they know them; no other command knows more than the two."""
    through = BASE | {"access", "acl_files", "admin", "client", "client/core", "cli", "wire", "settings", "settings_upstream", "spark"}
    through |= {"system", "app", "outbox"}
    programs = through | {"programs", "supervisor", "embed", "settings_file", "settings_tls", "listening"}
    found = [
        f"{where(path, line)} imports {module}"
        for path in sources("cli")
        for line, module in imports(path)
        if module.split(".")[0] == "roquet" and package(module) not in (programs if path.name in STARTS else through)
    ]
    assert not found, "\n".join(found)


def test_nothing_but_programs_imports_the_test_kit() -> None:
    found = [
        f"{where(path, line)} imports {module}"
        for path in sorted(ROOT.rglob("*.py"))
        if "testing" not in path.parts
        for line, module in imports(path)
        if module.split(".")[:2] == ["roquet", "testing"]
    ]
    assert not found, "\n".join(found)


def test_every_package_is_listed_here() -> None:
    """A new one decides what it may import before it imports."""
    known = {part.split("/")[0] for part in ALLOWED} | PROGRAMS_ONLY
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert found <= known, f"add {sorted(found - known)} to ALLOWED"


def test_a_type_checking_import_does_not_count_and_a_hidden_one_does(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\nelse:\n    import ssl\n"
        "def late():\n    import os.path\n    from roquet import net\n"
    )
    assert list(imports(path)) == [(1, "typing"), (5, "ssl"), (7, "os.path"), (8, "roquet.net")]


def test_the_client_and_the_commands_load_no_numpy() -> None:
    """It takes as long to load as all the rest."""
    code = "from roquet.client import *; import sys, roquet.admin, roquet.cli.main; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_spark_reads_and_writes_with_loads_no_producer_and_no_consumer() -> None:
    """Each streaming query begins with a Python that Spark starts for it alone: what is loaded there is waited for."""
    code = "import sys, roquet.spark.watch, roquet.spark.brokers, roquet.spark.sending; print('roquet.client.core.instance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_server_loads_no_numpy_before_it_serves() -> None:
    """Nor the other commands: it is up sooner. Numpy comes at its first use, or a moment after the start."""
    code = (
        "import sys, roquet.programs; from roquet.cli.main import build_parser; build_parser('broker')\n"
        "print(sorted({'numpy', 'roquet.cli.status', 'roquet.admin', 'roquet.client.sync'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
