"""What the queue says: lines for the user, texts of errors, and the note that tells where an error came from."""

from __future__ import annotations

import time

from lightning_sink.data.options import QueueOptions
from lightning_sink.data.report import Telemetry
from lightning_sink.errors import add_note

DRAWS = (
    "batches are fetched when they are due and not ahead: each fetch touches {}, and its draws keep plain Lightning's"
    " order. Workers (`num_workers=1` or more) draw from generators of their own."
)
"""Why nothing is fetched ahead, for the name of what each fetch touches."""

BOUND = (
    "batches are fetched when they are due and not ahead: on another thread one could not be fetched ({})."
    " `SinkDataModule(..., buffer_size=0)` does not try."
)
"""Why nothing is fetched ahead, for the error of a fetch."""

LATE = (
    "A fetch drew random numbers up to a few steps early; none of the first ones drew any. If the steps draw too"
    " (dropout), these draws came in another order than in plain Lightning. From here on each batch is fetched when it"
    " is due; `SinkDataModule(..., buffer_size=0)` does so from the beginning, and workers (`num_workers=1` or more)"
    " draw from generators of their own."
)
"""What a fetch that was looked ahead of turned out to do."""

HANGS = "{} does not return; the thread that it runs on ends when it does, or with the process"
"""What is left behind at the end, for the name of the stage."""

EMPTY = (
    "The training data gave no batch: a traversal of the loader ended before its first one. Sinks need at least one"
    " batch; check the dataset's length, `batch_size` with `drop_last=True`, and that the loader can be iterated again."
)
"""Why an endless traversal cannot begin."""

ONCE = (
    "The training data gave no batch in traversal {}, and did before: an iterator or a generator cannot be iterated"
    " again. Give something that begins anew, a loader or an object whose `__iter__` is the generator function."
)
"""The same, for the number of a traversal that is not the first."""

_NOTE = "[lightning_sink]"
_ON_THREAD = ", on the queue's thread (`SinkDataModule(..., buffer_size=0)` fetches on the trainer's)"


def lateness(telemetry: Telemetry, options: QueueOptions, stage: str, place: str, since: float) -> str:
    """Returns the text of a timeout: which stage does not return, at which batch, since when on `time.perf_counter`."""
    count = telemetry.batches_produced
    mean = telemetry.fetch_seconds / max(1, count)
    slowest = f", the slowest {telemetry.slowest_fetch_seconds:.3f} s (fetch {telemetry.slowest_fetch_batch})"
    return (
        f"No batch came for {options.timeout:g} s. Late is {stage}, at {place},"
        f" since {time.perf_counter() - since:.1f} s. Before it {count} batches were fetched,"
        f" {mean:.3f} s each on average{slowest if count else ''}; the last takes found"
        f" {[*telemetry.last_depths, 0]} batches ready, of at most {options.batches}. If one sample"
        " takes that long, raise `SinkDataModule(timeout=...)` or make it cheaper; if all do, use more workers"
        " (`DataLoader(num_workers=...)`); if a worker hangs, look for locks and open files that it shares with"
        " the process that forked it, or try `SinkStrategy(dataset_sink_mode=False)`."
    )


def note_place(error: BaseException, place: str, on_thread: bool) -> None:
    """Adds to an error which batch was being fetched, unless it says so already."""
    if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", [])):
        add_note(error, f"{_NOTE} while fetching {place}{_ON_THREAD if on_thread else ''}")
