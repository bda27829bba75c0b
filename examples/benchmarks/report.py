"""The tables of the suite: speeds, ratios, seconds until full speed, and memory, a row for each setting.

A ratio is of neighbours: of two sides in the same turn. Tables give medians over the turns, and ranges of ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from job import Job, Result

DASH = "-"
SETTING = ("model", "row", "data", "batch", "sink size")

# What a framework adds to the numbers of a model that PyTorch trains, or leaves out.
COUNTED_OTHERWISE = {
    ("keras", "LSTM"): -4 * 64,  # one bias for each gate; PyTorch has one for the input and one for the state
}


@dataclass(frozen=True)
class Row:
    """One setting and what the sides have found: as many results as turns, or none of a side without a figure."""

    setting: Job
    found: dict[str, list[Result]]

    def cells(self) -> list[str]:
        job = self.setting
        return [job.model, job.row, job.data, f"{job.batch_size:,}", f"{job.sink_size:,}"]

    def ratios(self, over: str, under: str) -> list[float]:
        """Of each turn that both sides have."""
        pairs = zip(self.found.get(over, []), self.found.get(under, []), strict=False)
        return [a.speed / b.speed for a, b in pairs]


def check_same_model(model: str, parameters: dict[str, int]) -> None:
    """Raises a ValueError unless all sides train as many numbers, but for what is documented above."""
    known = {side: count - COUNTED_OTHERWISE.get((side, model), 0) for side, count in parameters.items()}
    if len(set(known.values())) > 1:
        counts = ", ".join(f"{side} {count:,}" for side, count in parameters.items())
        raise ValueError(f"{model}: the sides do not train the same model; parameters: {counts}")


def table(head: Sequence[str], rows: list[list[str]], left: int) -> str:
    """A Markdown table, its first columns to the left and the others to the right."""
    lines = [head, ["---" if column < left else "--:" for column in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_side(
    rows: list[Row],
    sides: Sequence[str],
    cell: Callable[[list[Result]], str],
    more: dict[str, Callable[[Row], str]] | None = None,
) -> str:
    """A table with a column for each side."""
    more = more or {}
    lines = [
        [
            *row.cells(),
            *(cell(row.found[side]) if row.found.get(side) else DASH for side in sides),
            *(text(row) for text in more.values()),
        ]
        for row in rows
    ]
    return table([*SETTING, *sides, *more], lines, left=3)


def speeds(rows: list[Row], sides: Sequence[str], steps: Callable[[Row], str]) -> str:
    return by_side(rows, sides, lambda found: f"{median(r.speed for r in found):,.0f}", {"steps: many / others": steps})


def ratios(rows: list[Row], sides: Sequence[str]) -> str:
    """What sinks gain over each other side."""
    others = [side for side in sides if side != "sink"]

    def cell(row: Row, side: str) -> str:
        found = row.ratios("sink", side)
        return f"{median(found):.2f} ({min(found):.2f}-{max(found):.2f})" if found else DASH

    lines = [[*row.cells(), *(cell(row, side) for side in others)] for row in rows]
    return table([*SETTING, *(f"sink / {side}" for side in others)], lines, left=3)


def starts(rows: list[Row], sides: Sequence[str]) -> str:
    """The first turn finds the compiler's cache empty ("cold"), the others find it filled ("warm")."""

    def cell(found: list[Result]) -> str:
        cold, *warm = (max(0.0, result.start) for result in found)  # below nothing by chance, where nothing starts
        return f"{cold:.1f}" + (f" / {median(warm):.1f}" if warm else "")

    return by_side(rows, sides, cell)


def memory(rows: list[Row], sides: Sequence[str]) -> str:
    def parameters(row: Row) -> str:
        return f"{next(iter(row.found.values()))[0].parameters:,}" if row.found else DASH

    return by_side(rows, sides, lambda found: f"{median(r.peak_mib for r in found):,.0f}", {"parameters": parameters})
