"""`make demo`, whose last chapter is Spark's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 1_200


def test_the_demo_runs_through_every_chapter() -> None:
    command = [sys.executable, str(ROOT / "demo" / "run.py"), "--messages", "10000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 of the acknowledged messages" in ran.stdout
    assert re.search(r"^  leader +killed after [\d,]+ of 2,000, [\d,]+ ms until n\d went on, 0 lost$", ran.stdout, re.MULTILINE)
    assert "1 rolled back, 1 asked about, 1 timer cancelled, 1 fired, 1 retried, 1 dead letter sent again" in ran.stdout
    if "Left out:" not in ran.stdout:  # without Java there is no last chapter
        assert re.findall(r"^   (\w+) +[\d,]+ +[\d,]+$", ran.stdout, re.MULTILINE) == ["Bergen", "Lyon", "Porto", "Turin"]
        assert ran.stderr == "", "what Spark says to itself is not for the audience"
