"""The charts, as SVG: speeds beside plain Lightning's, and how figures grow. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report import Row

COLORS = {
    "loop": "#b0b7c3",
    "loop-compile": "#7d8799",
    "loop-reduce-overhead": "#5f6b80",
    "lightning-compile": "#a78bca",
    "plain": "#4c5566",
    "sink": "#e4572e",
    "jax": "#2a9d8f",
    "jax-step": "#8fcfc7",
    "keras": "#e9b44c",
    "mindspore": "#3d7dca",
}


def _save(figure: Figure, path: Path) -> None:
    """Writes an SVG that is the same file for the same figures."""
    with matplotlib.rc_context({"svg.hashsalt": "lightning_sink"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def _label(row: Row, rows: Sequence[Row]) -> str:
    """The model, and what else distinguishes a row from the others of the chart."""
    names = [one.cells() for one in rows]
    differing = [len({name[column] for name in names if name[0] == row.cells()[0]}) > 1 for column in range(5)]
    kinds = ("", "", "", "batch ", "sinks of ")
    rest = [kind + cell for kind, cell, differs in zip(kinds, row.cells(), differing, strict=True) if differs]
    return "\n".join([row.setting.model, *rest])


def draw_speeds(rows: Sequence[Row], sides: Sequence[str], path: Path) -> None:
    """Steps a second of each side over plain Lightning's, on a logarithmic scale, grouped by row."""
    rows = [row for row in rows if row.found.get("plain")]
    width = 0.8 / len(sides)
    chart = Figure(figsize=(max(6.0, 1.0 + 2.2 * len(rows)), 4.5), layout="constrained")
    axes = chart.subplots()
    for place, side in enumerate(sides):
        at = [(index, median(found)) for index, row in enumerate(rows) if (found := row.ratios(side, "plain"))]
        xs = [index + (place - (len(sides) - 1) / 2) * width for index, _ in at]
        heights = [ratio for _, ratio in at]
        # Bars start at 1, plain Lightning's speed: slower ones hang down.
        bars = axes.bar(xs, [h - 1 for h in heights], width, bottom=1, color=COLORS[side], label=side)
        axes.bar_label(bars, [f"{h:.2g}" if h < 10 else f"{h:.0f}" for h in heights], fontsize=7, padding=1)
    axes.set_yscale("log")
    axes.axhline(1, color=COLORS["plain"], linewidth=0.8)
    axes.set_xticks(range(len(rows)), [_label(row, rows) for row in rows])
    axes.set_ylabel("steps a second, plain Lightning = 1")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.1)
    axes.legend(ncols=4, fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    _save(chart, path)


def _panel(axes: Axes, xs: Sequence[float], ys: Sequence[float], logarithmic: bool) -> None:
    axes.plot(xs, ys, "o-", color=COLORS["sink"], markersize=4)
    axes.set_xscale("log")
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.15 * max([*ys, 1e-9]))
    axes.grid(alpha=0.3)


def draw_growth(points: dict[str, list[tuple[float, dict[str, float]]]], path: Path) -> None:
    """Small panels: a row for each figure, a column for each thing that grows; `points` has figures by name."""
    figures = list(next(iter(points.values()))[0][1])
    chart = Figure(figsize=(3.4 * len(points), 2.4 * len(figures)), layout="constrained")
    panels = chart.subplots(len(figures), len(points), squeeze=False)
    for column, (axis, found) in enumerate(points.items()):
        for line, figure in enumerate(figures):
            values = [(x, figures_there[figure]) for x, figures_there in found]
            _panel(panels[line][column], *zip(*values, strict=True), logarithmic=figure == "steps/s")
            if column == 0:
                panels[line][column].set_ylabel(figure)
        panels[-1][column].set_xlabel(axis)
    _save(chart, path)
