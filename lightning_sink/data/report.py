"""What a queue did: counted while it works, at the cost of a few additions a batch, and shown as one table."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, kw_only=True)
class QueueReport:
    """What the queue of a training did since it began.

    Attributes:
        batches_produced: Batches fetched.
        batches_consumed: Batches that the training took.
        bytes_produced: Bytes of tensors in the batches fetched.
        bytes_consumed: Bytes of tensors in the batches taken.
        batches_ahead: Batches of these that were fetched on the queue's thread while the training ran.
        fetch_seconds: Time spent in the loader, and in the transfer hooks where these run ahead.
        consumer_wait_seconds: Time in which batches were fetched or waited for, at most as much as no step ran.
        producer_wait_seconds: Time that the queue's thread had work and no room for it.
        slowest_fetch_seconds: Time of the slowest fetch.
        slowest_fetch_batch: Its number, counted from 0 over the whole training; -1 before the first.
        depths: How often a take found so many batches ready, by their number.
        in_step_because: Why batches are fetched when they are due and not ahead; "" where they are fetched ahead.
    """

    batches_produced: int = 0
    batches_consumed: int = 0
    bytes_produced: int = 0
    bytes_consumed: int = 0
    batches_ahead: int = 0
    fetch_seconds: float = 0.0
    consumer_wait_seconds: float = 0.0
    producer_wait_seconds: float = 0.0
    slowest_fetch_seconds: float = 0.0
    slowest_fetch_batch: int = -1
    depths: dict[int, int] = field(default_factory=dict)
    in_step_because: str = ""

    @property
    def mean_depth(self) -> float:
        """Batches ready at a take, on average."""
        return sum(depth * count for depth, count in self.depths.items()) / max(1, sum(self.depths.values()))

    def __str__(self) -> str:
        per_batch = self.fetch_seconds / max(1, self.batches_produced)
        wait = self.consumer_wait_seconds / max(1, self.batches_consumed)
        rows = [
            ("batches", f"{self.batches_produced:,} produced", f"{self.batches_consumed:,} consumed"),
            ("bytes", f"{self.bytes_produced:,} produced", f"{self.bytes_consumed:,} consumed"),
            ("fetched ahead", f"{self.batches_ahead:,} batches", self.in_step_because),
            ("fetching", f"{self.fetch_seconds:.3f} s", f"{per_batch * 1e3:.3f} ms a batch"),
            (
                "slowest fetch",
                f"{self.slowest_fetch_seconds * 1e3:.3f} ms",
                f"batch {self.slowest_fetch_batch}" if self.slowest_fetch_batch >= 0 else "",
            ),
            ("training waited", f"{self.consumer_wait_seconds:.3f} s", f"{wait * 1e3:.3f} ms a batch"),
            ("queue waited", f"{self.producer_wait_seconds:.3f} s", "for room"),
            ("depth at a take", f"{self.mean_depth:.1f} on average", f"{max(self.depths, default=0)} at most"),
        ]
        return "\n".join(f"{name:<16} {first:>24}   {second}".rstrip() for name, first, second in rows)


class Telemetry:
    """Counts for a `QueueReport`, taken without a lock.

    What `fetched` counts is written by the thread that fetches, of which there is one at a time; the time without room
    by the queue's thread; everything else by the trainer's.
    """

    def __init__(self) -> None:
        self.batches_produced = self.batches_consumed = self.bytes_produced = self.bytes_consumed = 0
        self.batches_ahead = 0
        self.fetch_seconds = self.consumer_wait_seconds = self.producer_wait_seconds = 0.0
        self.slowest_fetch_seconds, self.slowest_fetch_batch = 0.0, -1
        self.in_step_because = ""
        self.depths: Counter[int] = Counter()
        self.last_depths: deque[int] = deque(maxlen=5)

    def fetched(self, seconds: float, size: int, batches: int = 1) -> None:
        """Batches were fetched, of so many bytes in all."""
        if seconds > self.slowest_fetch_seconds * batches:
            self.slowest_fetch_seconds, self.slowest_fetch_batch = seconds / batches, self.batches_produced
        self.fetch_seconds += seconds
        self.batches_produced += batches
        self.bytes_produced += size

    def taken(self, seconds: float, size: int, depth: int, batches: int = 1) -> None:
        """Batches were taken, for which the training stood still so long; `depth` were ready, these included."""
        self.consumer_wait_seconds += seconds
        self.batches_consumed += batches
        self.bytes_consumed += size
        self.depths[depth] += batches
        self.last_depths.append(depth)

    def report(self) -> QueueReport:
        """Returns the counts so far."""
        names = [item.name for item in fields(QueueReport) if item.name != "depths"]
        return QueueReport(**{name: getattr(self, name) for name in names}, depths=dict(sorted(self.depths.items())))
