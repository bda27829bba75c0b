"""Steps per second of `Trainer.fit` in sinks beside plain Lightning, hand-written loops, JAX, Keras and MindSpore.

    python examples/benchmarks/suite.py --python jax=JAX_ENV/bin/python --python keras=JAX_ENV/bin/python --out suite.md

All sides train the same model on the same batches with the same optimizer, in float32; each script in `peers/` says
what its side does. Row "bare" has no logger, checkpoint, bar or summary and the module logs nothing; row "defaults" has
all that Lightning turns on by itself, and the module logs its loss; sides without such defaults are measured again.
Data "memory" is 200 distinct batches in a list, over and over; "loader" is a shuffled `DataLoader` of as many, or the
nearest that a framework has.

Whole sinks of at least 20 steps, and as many steps of the other sides, are warm-up; speed is measured from there to the
last step. What the warm-up took beyond its steps at that speed is the start: recording, tracing, compiling. Its "cold"
value is the first turn, with an empty compiler cache (PyTorch's sides have one each); "warm" is the median of the
others.

Every measurement runs in a process of its own, and the sides take turns. A ratio is of neighbours in that order; the
tables give the median of the ratios and the range. A side whose package is not there is skipped with a word, and one
that fails has a dash and its reason under the tables. Sides that do not train as many numbers end the suite.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import report
from apart import SIDES, NoFigureError, absent, measure
from job import Job, Result
from machine import command, machine, versions
from workload import DATA, ROWS, WORKLOADS


def settings(args: argparse.Namespace) -> Iterator[Job]:
    """A job for each row of the tables, without a side and its steps."""
    for model in args.models:
        batch_sizes = args.batch_sizes or [WORKLOADS[model].batch_size]
        sink_sizes = args.sink_sizes or [WORKLOADS[model].sink_size]
        for row, data, batch_size, sink_size in product(args.rows, args.data, batch_sizes, sink_sizes):
            job = Job(side="", model=model, row=row, data=data, batch_size=batch_size, sink_size=sink_size)
            yield replace(job, engine=args.engine, accelerator=args.accelerator)


def told_steps(setting: Job, side: str, args: argparse.Namespace) -> Job:
    """The setting for one side, with the steps that it makes."""
    work = WORKLOADS[setting.model]
    wanted = (args.steps or work.steps) if SIDES[side].many else (args.other_steps or work.other_steps)
    return replace(setting, side=side).lasting(wanted)


def compare(setting: Job, sides: list[str], args: argparse.Namespace, notes: list[str]) -> report.Row:
    """All turns of one row. A side without a figure leaves the row, with a note."""
    found: dict[str, list[Result]] = {side: [] for side in sides}
    name = " ".join(report.Row(setting, {}).cells())
    with tempfile.TemporaryDirectory() as caches:
        for turn in range(args.repeats):
            for side in list(found):
                try:
                    result = measure(
                        told_steps(setting, side, args),
                        args.interpreters.get(side, sys.executable),
                        Path(caches, side),
                        args.timeout,
                    )
                except NoFigureError as error:
                    notes.append(f"{name}: {side} {error}")
                    print(notes[-1], flush=True)
                    del found[side]
                    continue
                found[side].append(result)
                print(
                    f"{name} {turn + 1}/{args.repeats} {side}: {result.speed:,.0f} steps/s,"
                    f" start {max(0.0, result.start):.1f} s, {result.peak_mib:,.0f} MiB, loss {result.loss:.4f}",
                    flush=True,
                )
            report.check_same_model(setting.model, {side: results[0].parameters for side, results in found.items()})
    return report.Row(setting, found)


def written(rows: list[report.Row], sides: list[str], notes: list[str], host: str, args: argparse.Namespace) -> str:
    """The whole report."""

    def steps(row: report.Row) -> str:
        many, others = (told_steps(row.setting, side, args).steps for side in ("sink", "plain"))
        return f"{many:,} / {others:,}"

    results = {side: [r for row in rows for r in row.found.get(side, [])] for side in sides}
    threads = [f"{side} {found[0].threads}" for side, found in results.items() if found]
    devices = sorted({r.device for found in results.values() for r in found})
    parts = [
        f"Steps per second after the warm-up; medians of {args.repeats}, each in a process of its own.",
        report.speeds(rows, sides, steps),
    ]
    if "sink" in sides and len(sides) > 1:
        parts += ["Speed of sinks over each other side: median and range.", report.ratios(rows, sides)]
    parts += [
        "Seconds of the start beyond its steps: with an empty compiler cache / with a filled one.",
        report.starts(rows, sides),
        "Peak memory of the process, MiB.",
        report.memory(rows, sides),
    ]
    lines = [
        f"* machine: {host}; trained on: {', '.join(devices) or 'nothing'}",
        f"* threads: {', '.join(threads)}",
        f"* versions: {versions(r.versions for found in results.values() for r in found)}",
        f"* command: `{command('suite.py')}`",
        *(f"* {note}" for note in notes),
    ]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def side_and_interpreter(text: str) -> tuple[str, str]:
    side, _, python = text.partition("=")
    if side not in SIDES or not python:
        raise argparse.ArgumentTypeError(f"expected PEER=INTERPRETER with a peer of {', '.join(SIDES)}, got {text!r}")
    return side, python


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Steps per second in sinks, beside other ways to train.")
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    others = [side for side in SIDES if side != "loop-reduce-overhead"]  # which differs from "loop-compile" on a GPU
    parser.add_argument("--peers", nargs="+", choices=SIDES, default=others, help="the sides that take turns")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["bare"])
    parser.add_argument("--data", nargs="+", choices=DATA, default=["memory"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, help="default: by model")
    parser.add_argument("--sink-sizes", nargs="+", type=int, help="steps per sink, and per epoch (default: by model)")
    parser.add_argument("--steps", type=int, help="of sides that make many steps in one call (default: by model)")
    parser.add_argument("--other-steps", type=int, help="of the other sides (default: by model)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--python", dest="interpreters", action="append", default=[], type=side_and_interpreter,
                        metavar="PEER=INTERPRETER", help="the interpreter of a side (default: this one)")  # fmt: skip
    parser.add_argument("--engine", default="auto", help="of sinks")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), default="cpu", help="of PyTorch's sides")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one measurement")
    parser.add_argument("--out", type=Path, metavar="TABLE.md", help="write the tables here too, as Markdown")
    parser.add_argument("--chart", type=Path, metavar="CHART.svg", help="draw the speeds beside plain Lightning's")
    args = parser.parse_args()
    args.interpreters = dict(args.interpreters)
    return args


def main() -> None:
    args = parsed()
    host = machine()
    sides = [side for side in SIDES if side in args.peers]
    notes = [note for side in sides if (note := absent(side, args.interpreters.get(side, sys.executable)))]
    print(*notes, sep="\n", flush=True)
    there = [side for side in sides if not any(note.startswith(f"{side}:") for note in notes)]
    rows = []
    for setting in settings(args):
        try:
            rows.append(compare(setting, there, args, notes))
        except ValueError as error:
            sys.exit(str(error))
        text = written(rows, sides, notes, host, args)
        if args.out:
            args.out.write_text(text)  # after each row: a run may take hours
    print(text)
    if args.chart:
        from chart import draw_speeds  # matplotlib is needed for this alone, and would count as memory of each side

        draw_speeds(rows, there, args.chart)


if __name__ == "__main__":
    main()
