"""How sinks grow: speed, peak memory and compile time by the size of a sink, by parameters and by layers of an MLP.

    python examples/benchmarks/growth.py --out growth.md --chart growth.svg

Each point is a training of its own, in a process of its own, the compiler's cache empty in each: batches of 32 from
memory, no logger, checkpoint, bar or summary. Sinks have `--steps` steps or two sinks, whichever is more; speed and the
start are measured as in `suite.py`. Libraries are what the compiler built, a few of them to learn what the processor
can do, and code is the C++ that they were built from. The points take turns; the table gives medians.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from apart import NoFigureError, measure
from job import Job, Result
from machine import command, machine, versions
from report import DASH, table

FIGURES = {
    "steps/s": lambda found: found.result.speed,
    "peak memory, MiB": lambda found: found.result.peak_mib,
    "above imports, MiB": lambda found: found.result.peak_mib - found.result.imports_mib,
    "start, s": lambda found: found.result.start,
    "libraries": lambda found: found.libraries,
    "code, bytes": lambda found: found.code,
}
DRAWN = ("steps/s", "peak memory, MiB", "start, s")


@dataclass(frozen=True)
class Point:
    """One place on an axis: what grows, how far, and the job."""

    axis: str
    value: int
    job: Job


@dataclass(frozen=True)
class Found:
    """What one training gave, and what the compiler left in its cache."""

    result: Result
    libraries: int
    code: int  # bytes of C++

    @classmethod
    def of(cls, result: Result, cache: Path) -> Found:
        files = [path for path in cache.rglob("*") if path.is_file()]
        code = sum(path.stat().st_size for path in files if path.suffix == ".cpp")
        return cls(result, sum(path.suffix == ".so" for path in files), code)


def points(args: argparse.Namespace) -> list[Point]:
    base = Job(side="sink", model="MLP", batch_size=32, sink_size=args.sink_size, engine=args.engine)
    found = [Point("sink size", size, replace(base, sink_size=size).lasting(args.steps)) for size in args.sink_sizes]
    other = base.lasting(args.other_steps)
    found += [Point("parameters", width, replace(other, options={"width": width})) for width in args.widths]
    return found + [Point("layers", depth + 1, replace(other, options={"depth": depth})) for depth in args.depths]


def measured(every: list[Point], args: argparse.Namespace, notes: list[str]) -> list[tuple[Point, list[Found]]]:
    """Each point's results, a turn of all points after the other."""
    found: list[list[Found]] = [[] for _ in every]
    for turn in range(args.repeats):
        for point, results in zip(every, found, strict=True):
            name = f"{point.axis} {point.value:,}" if not point.job.options else f"{point.axis}, {point.job.options}"
            with tempfile.TemporaryDirectory() as cache:
                try:
                    result = measure(point.job, sys.executable, Path(cache), args.timeout)
                    results.append(Found.of(result, Path(cache)))
                except NoFigureError as error:
                    notes.append(f"{name}: {error}")
                    print(notes[-1], flush=True)
                    continue
            figures = ", ".join(f"{what} {figure(results[-1]):,.1f}" for what, figure in FIGURES.items())
            print(f"{name} {turn + 1}/{args.repeats}: {figures}", flush=True)
    return list(zip(every, found, strict=True))


def place(point: Point, results: list[Found]) -> int:
    """Where a point is on its axis: a width counts by the numbers that are trained."""
    return results[0].result.parameters if point.axis == "parameters" else point.value


def written(found: list[tuple[Point, list[Found]]], notes: list[str], host: str, args: argparse.Namespace) -> str:
    head = ["what grows", "value", "parameters", "layers", "sink size", "steps", *FIGURES]
    lines = []
    for point, results in found:
        options = {"depth": 2} | point.job.options
        setting = [f"{options['depth'] + 1:,}", f"{point.job.sink_size:,}", f"{point.job.steps:,}"]
        if not results:
            lines.append([point.axis, f"{point.value:,}", DASH, *setting, *(DASH for _ in FIGURES)])
            continue
        medians = [median(map(figure, results)) for figure in FIGURES.values()]
        figures = [
            f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}" for value in medians
        ]
        count = f"{results[0].result.parameters:,}"
        lines.append([point.axis, f"{place(point, results):,}", count, *setting, *figures])
    threads = sorted({r.result.threads for _, results in found for r in results})
    footer = [
        f"* machine: {host}; torch used {' or '.join(map(str, threads))} threads",
        f"* versions: {versions(r.result.versions for _, results in found for r in results)}",
        f"* medians of {args.repeats}, each in a process of its own with an empty compiler cache",
        f"* command: `{command('growth.py')}`",
        *(f"* {note}" for note in notes),
    ]
    return table(head, lines, left=1) + "\n\n" + "\n".join(footer) + "\n"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How the speed, memory and start of sinks grow.")
    parser.add_argument("--sink-sizes", nargs="*", type=int, default=[1, 10, 100, 1000, 10_000, 100_000])
    parser.add_argument("--widths", nargs="*", type=int, default=[16, 64, 256, 1024, 2048], help="of hidden layers")
    parser.add_argument("--depths", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32], help="hidden layers")
    parser.add_argument("--sink-size", type=int, default=100, help="where something else grows")
    parser.add_argument("--steps", type=int, default=20_000, help="where the sink size grows")
    parser.add_argument("--other-steps", type=int, default=1000, help="where something else grows")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one measurement")
    parser.add_argument("--out", type=Path, metavar="TABLE.md", help="write the table here too, as Markdown")
    parser.add_argument("--chart", type=Path, metavar="CHART.svg", help="draw a small panel for each figure and axis")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    host, notes = machine(), []
    found = measured(points(args), args, notes)
    text = written(found, notes, host, args)
    print(text)
    if args.out:
        args.out.write_text(text)
    if args.chart:
        from chart import draw_growth  # matplotlib is needed for this alone, and would count as memory of each point

        axes: dict[str, list[tuple[float, dict[str, float]]]] = {}
        for point, results in found:
            if results:
                figures = {what: median(map(FIGURES[what], results)) for what in DRAWN}
                axes.setdefault(point.axis, []).append((place(point, results), figures))
        draw_growth(axes, args.chart)


if __name__ == "__main__":
    main()
