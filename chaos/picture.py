"""Availability over time as a picture: acknowledged sends in each tenth of a second, with the faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from chaos.availability import BUCKET_S, Happened, buckets

COLORS = {
    "kill": "#c62828", "replace": "#ad1457", "stop": "#ef6c00", "cut": "#6a1b9a",
    "cut-peers": "#8e24aa", "cut-outward": "#ab47bc", "cut-inward": "#ce93d8",
    "loss": "#1565c0", "delay": "#42a5f5", "full-disk": "#5d4037",
}  # fmt: skip
ROW_S = 120.0
"""Seconds in one row of the picture."""
HEIGHT = 4
"""Times the usual number: what waited is acknowledged at once when service is back, and is cut off there."""


def draw(
    path: Path, title: str, safe: Sequence[float], others: Sequence[float], faults: Sequence[Happened], began: float, ended: float
) -> None:
    """`safe`, `others`: when sends were acknowledged, as safe as promised, and less safe."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    count = max(1, round((ended - began) / ROW_S + 0.49))
    figure, rows = pyplot.subplots(count, 1, figsize=(14, 1.2 + 1.5 * count), sharey=True, squeeze=False)
    usual = [number for number in buckets([*safe, *others], began, ended) if number]
    top = HEIGHT * (median(usual) if usual else 1)
    for number, (axes,) in enumerate(rows):
        first, last = began + number * ROW_S, min(ended, began + (number + 1) * ROW_S)
        good, weak = buckets(safe, first, last), buckets(others, first, last)
        seconds = [first - began + at * BUCKET_S for at in range(len(good))]
        axes.fill_between(seconds, good, step="post", color="#2e7d32", linewidth=0)
        axes.fill_between(
            seconds, good, [one + other for one, other in zip(good, weak, strict=True)], step="post", color="#f9a825", linewidth=0
        )
        for fault in faults:
            if fault.began < last and fault.ended > first:
                axes.axvspan(
                    fault.began - began, max(fault.ended, fault.began + 0.2) - began, color=COLORS[fault.kind], alpha=0.25, linewidth=0
                )
                if fault.began >= first:
                    axes.axvline(fault.began - began, color=COLORS[fault.kind], linewidth=1)
        axes.set_xlim(number * ROW_S, (number + 1) * ROW_S if count > 1 else ended - began)
        axes.set_ylim(0, top)
        axes.set_ylabel("per 100 ms", fontsize=8)
        axes.tick_params(labelsize=8)
    rows[-1][0].set_xlabel("seconds")
    seen = sorted({fault.kind for fault in faults})
    legend = [
        Patch(color="#2e7d32", label="acknowledged, safe"),
        *([Patch(color="#f9a825", label="acknowledged, less safe")] if others else []),
    ]
    legend += [Patch(color=COLORS[kind], alpha=0.5, label=kind) for kind in seen]
    figure.legend(handles=legend, loc="lower center", ncols=len(legend), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, 0.12 / (1 + 0.3 * count), 1, 1))
    figure.savefig(path)
    pyplot.close(figure)
