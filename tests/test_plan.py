"""The plan against the same training counted batch by batch.

`train_plainly` is what plain Lightning does, one batch at a time, with a note at each batch after which the host must
be there; the last test here holds it against Lightning itself. `train_in_sinks` is the same training in the sinks of a
plan. `check_sinks` compares the two, and the controls show that it catches plans that are wrong in one way each.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_sink.plan import UNSIZED_SINK, Awaited, Limits, Position, batches_until, next_sink

Plan = Callable[[Limits, Position], int]


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a user asked for."""

    epoch_batches: int
    epochs: int = 1
    sized: bool = True
    sink_size: int = -1
    accumulate: int = 1
    max_steps: int = -1
    validate_every: int | None = None
    validate_over_epochs: bool = False
    save_every: tuple[int, ...] = ()
    judged: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(
            sink_size=self.sink_size,
            epoch_batches=self.epoch_batches if self.sized else None,
            accumulate=self.accumulate,
            max_steps=self.max_steps,
            validate_every=self.validate_every,
            validate_over_epochs=self.validate_over_epochs,
            save_every=self.save_every,
            judge_every=self.save_every if self.judged else (),
        )

    @property
    def longest_sink(self) -> int:
        if self.sink_size > 0:
            return self.sink_size
        return self.epoch_batches if self.sized else UNSIZED_SINK


@dataclass(frozen=True)
class Batch:
    """Where training stands after a batch, and what the host has to do there."""

    position: Position
    due: frozenset[str] = frozenset()


def train_plainly(training: Training) -> list[Batch]:
    batches: list[Batch] = []
    total = steps = 0
    for _ in range(training.epochs):
        window = 0  # batches whose gradients wait for a step
        for in_epoch in range(1, training.epoch_batches + 1):
            if steps == training.max_steps:
                return batches
            total += 1
            window += 1
            due = set()
            if in_epoch == training.epoch_batches:
                due.add("epoch end")
            if window == training.accumulate or "epoch end" in due:
                window = 0
                steps += 1
                if steps == training.max_steps:
                    due.add("max_steps")
                if any(steps in range(every, steps + 1, every) for every in training.save_every):
                    due.add("checkpoint")
            if training.judged and any(steps in range(0, steps + 1, every) for every in training.save_every):
                due.add("judged")
            counted = total if training.validate_over_epochs else in_epoch
            if training.validate_every and counted in range(0, counted + 1, training.validate_every):
                due.add("validation")
            batches.append(
                Batch(Position(epoch_batches=in_epoch, total_batches=total, optimizer_steps=steps), frozenset(due))
            )
    return batches


def train_in_sinks(training: Training, plan: Plan, begin: Position) -> Iterator[tuple[int, Position]]:
    """Yields the length of each sink and where training stands after it."""
    in_epoch, total, steps = begin.epoch_batches, begin.total_batches, begin.optimizer_steps
    while total < training.epochs * training.epoch_batches and steps != training.max_steps:
        if in_epoch == training.epoch_batches:
            in_epoch = 0
        position = Position(epoch_batches=in_epoch, total_batches=total, optimizer_steps=steps)
        length = plan(training.limits, position)
        assert length >= 1, "a sink has batches"
        if not training.sized:
            length = min(length, training.epoch_batches - in_epoch)  # the data ends; nobody could know
        for _ in range(length):
            total += 1
            in_epoch += 1
            steps += in_epoch % training.accumulate == 0 or in_epoch == training.epoch_batches
        yield length, Position(epoch_batches=in_epoch, total_batches=total, optimizer_steps=steps)


def check_sinks(training: Training, plan: Plan, start: int = 0) -> None:
    """Checks the sinks that follow `start` batches of a training, wherever in it that is."""
    batches = train_plainly(training)
    boundaries = [0, *(after.total_batches for _, after in train_in_sinks(training, plan, Position()))]
    begin = batches[start - 1].position if start else Position()
    ends = []
    for length, after in train_in_sinks(training, plan, begin):
        assert length <= training.longest_sink, "no sink is longer than asked for"
        assert after.total_batches <= len(batches), "training does not go on where plain training ends"
        last = batches[after.total_batches - 1]
        assert after == last.position, "the same batches and optimizer steps have been made"
        assert length == training.longest_sink or last.due, "no sink ends without a reason"
        ends.append(after.total_batches)

    assert (ends or [start])[-1] == len(batches), "training does not end before plain training"
    due = [batch.position.total_batches for batch in batches[start:] if batch.due]
    assert set(due) <= set(ends), "the host is there whenever it has something to do"
    if start in boundaries:
        assert ends == [end for end in boundaries if end > start], "a resumed training has the sinks that were left"
    elif due:
        rest = [end for end in ends if end >= due[0]]
        assert rest == [end for end in boundaries if end >= due[0]], "from the next visit on, so has any other"


def small_trainings() -> Iterator[Training]:
    """Yields every combination of small numbers."""
    for epoch_batches, sized, sink_size, accumulate, max_steps, validate, save in itertools.product(
        (1, 2, 3, 4, 5, 6),
        (True, False),
        (-1, 1, 2, 3, 4),
        (1, 2, 3, 4),
        (-1, 0, 1, 2, 5),
        ((None, False), (1, False), (2, False), (3, False), (5, False), (2, True), (4, True), (7, True)),
        (((), False), ((2,), False), ((2, 3), True)),
    ):
        yield Training(
            epoch_batches=epoch_batches,
            epochs=2,
            sized=sized,
            sink_size=sink_size,
            accumulate=accumulate,
            max_steps=max_steps,
            validate_every=validate[0],
            validate_over_epochs=validate[1],
            save_every=save[0],
            judged=save[1],
        )


def test_every_small_training():
    for training in small_trainings():
        check_sinks(training, next_sink)


def test_every_small_training_resumed_anywhere():
    for training in small_trainings():
        if training.epoch_batches in (3, 5) and training.sink_size in (-1, 2, 4):
            for start in range(1, len(train_plainly(training)) + 1):
                check_sinks(training, next_sink, start)


trainings = st.builds(
    Training,
    epoch_batches=st.integers(1, 60),
    epochs=st.integers(1, 4),
    sized=st.booleans(),
    sink_size=st.just(-1) | st.integers(1, 70),
    accumulate=st.integers(1, 12) | st.integers(1, 70),
    max_steps=st.just(-1) | st.integers(0, 100),
    validate_every=st.none() | st.integers(1, 130),
    validate_over_epochs=st.booleans(),
    save_every=st.lists(st.integers(1, 20), max_size=3).map(tuple),
    judged=st.booleans(),
)


@given(training=trainings, start=st.integers(0, 240))
def test_any_training_resumed_anywhere(training, start):
    check_sinks(training, next_sink, min(start, len(train_plainly(training))))


@pytest.mark.parametrize("training", [
    Training(epoch_batches=2 * UNSIZED_SINK + 5_000, sized=False),
    Training(epoch_batches=UNSIZED_SINK + 1, sized=False, epochs=2, validate_every=7_000, accumulate=3),
    Training(epoch_batches=UNSIZED_SINK + 1, sized=False, save_every=(4_000,), max_steps=9_000),
    Training(epoch_batches=UNSIZED_SINK + 1, sized=False, sink_size=2 * UNSIZED_SINK),
    Training(epoch_batches=2 * UNSIZED_SINK),
])  # fmt: skip
def test_long_data(training):
    check_sinks(training, next_sink)


def test_the_example_of_the_documentation():
    training = Training(epoch_batches=1875, epochs=2, sink_size=1000)
    assert [length for length, _ in train_in_sinks(training, next_sink, Position())] == [1000, 875, 1000, 875]


def test_batches_until():
    for accumulate in range(1, 6):
        for done in range(12):
            stepping = [batch for batch in range(1, 60) if (done + batch) % accumulate == 0]
            for steps in range(1, 8):
                assert batches_until(steps, accumulate, done) == stepping[steps - 1]


everies = st.lists(st.integers(1, 20), max_size=3).map(tuple)


@given(
    most=st.just(-1) | st.integers(0, 60), save_every=everies, judge_every=everies,
    made=st.integers(0, 60), each=st.integers(0, 1),
)  # fmt: skip
def test_batches_before_one_that_is_awaited(most, save_every, judge_every, made, each):
    awaited = Awaited(max_steps=most, save_every=save_every, judge_every=judge_every)
    counts = [made + each * batch for batch in range(1, 200)]
    met = [batch for batch, count in enumerate(counts, start=1) if awaited.is_met(count, each)]
    assert awaited.rounds_before(made, [each]) == (met[0] - 1 if met else math.inf)


@given(
    most=st.just(-1) | st.integers(0, 60), save_every=everies, judge_every=everies,
    made=st.integers(0, 60), each=st.lists(st.integers(0, 8), min_size=1, max_size=6),
)  # fmt: skip
def test_rounds_before_one_in_which_a_batch_is_awaited(most, save_every, judge_every, made, each):
    awaited = Awaited(max_steps=most, save_every=save_every, judge_every=judge_every)
    rounds, count, met = awaited.rounds_before(made, each), made, math.inf
    for number in range(200):
        for by in each:
            count += by
            if awaited.is_met(count, by):
                met = min(met, number)
    assert rounds <= met
    if not save_every and not judge_every and any(each):
        assert rounds == (math.inf if most < 0 else max(0, most - made - 1) // sum(each))


def test_rounds_are_as_many_as_there_are():
    assert Awaited(save_every=(12,), judge_every=(12,)).rounds_before(0, [1, 0, 0]) == 0
    assert Awaited(save_every=(12,), judge_every=(12,)).rounds_before(1, [1, 0, 0]) == 10
    assert Awaited(save_every=(12,)).rounds_before(0, [1, 0, 0]) == 11
    assert Awaited(save_every=(12,)).rounds_before(0, [0, 0]) == math.inf
    assert Awaited(save_every=(12,), judge_every=(12,)).rounds_before(12, [2]) == 5


def test_what_is_awaited():
    awaited = Awaited(max_steps=9, save_every=(4,), judge_every=(4,))
    assert [made for made in range(1, 12) if awaited.is_met(made, by=1)] == [4, 8, 9, 10, 11]
    assert [made for made in range(12) if awaited.is_met(made, by=0)] == [0, 4, 8]
    assert not Awaited(max_steps=9, save_every=(4,)).is_met(4, by=0)


def without(**limits) -> Plan:
    """Returns the plan that overlooks some limits."""
    return lambda asked, position: next_sink(replace(asked, **limits), position)


def outside_windows(limits: Limits, position: Position) -> int:
    """Counts each accumulation window from the start of the sink."""
    done = position.epoch_batches
    return next_sink(limits, replace(position, epoch_batches=done - done % limits.accumulate))


def caught(plan: Plan, message: str) -> bool:
    """Whether the check refuses a plan for this reason in one of the small trainings."""
    for training in small_trainings():
        try:
            check_sinks(training, plan)
        except AssertionError as error:
            if str(error).startswith(message):
                return True
    return False


@pytest.mark.narrow(11)
@pytest.mark.parametrize(("plan", "message"), [
    pytest.param(without(validate_every=None), "the host is there", id="no validation"),
    pytest.param(without(validate_over_epochs=False), "the host is there", id="validation in each epoch"),
    pytest.param(without(validate_over_epochs=True), "the host is there", id="validation over epochs"),
    pytest.param(without(save_every=()), "the host is there", id="no checkpoints"),
    pytest.param(without(save_every=(2,), judge_every=()), "the host is there", id="one checkpoint of two"),
    pytest.param(without(judge_every=()), "the host is there", id="no metric is asked again"),
    pytest.param(without(judge_every=(1,)), "no sink ends without a reason", id="a metric is asked at each batch"),
    pytest.param(without(max_steps=-1), "training does not go on", id="no max_steps"),
    pytest.param(without(accumulate=1), "no sink ends without a reason", id="no accumulation"),
    pytest.param(outside_windows, "the host is there", id="windows begin with sinks"),
    pytest.param(without(epoch_batches=None), "the same batches and optimizer steps", id="no epochs"),
    pytest.param(without(sink_size=-1), "no sink is longer", id="no sink_size"),
    pytest.param(without(sink_size=1), "no sink ends without a reason", id="one batch at a time"),
    pytest.param(lambda *at: next_sink(*at) + 1, "no sink is longer", id="one batch too many"),
    pytest.param(lambda *at: max(1, next_sink(*at) - 1), "no sink ends without a reason", id="one batch too few"),
    pytest.param(lambda *at: next_sink(*at) - 1, "a sink has batches", id="no batch"),
])  # fmt: skip
def test_control_a_wrong_plan_is_caught(plan, message):
    assert caught(plan, message)


class Numbers(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1)


class Stream(IterableDataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.ones(1), self.length)


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Recorder(L.Callback):
    """Notes each batch of a training as `Batch`."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def note(self, due: str) -> None:
        self.batches[-1] = replace(self.batches[-1], due=self.batches[-1].due | {due})

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches.append(
            Batch(Position(
                epoch_batches=batch_idx + 1, total_batches=len(self.batches) + 1, optimizer_steps=trainer.global_step
            ))
        )  # fmt: skip

    def on_validation_start(self, trainer, pl_module):
        self.note("validation")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.note("checkpoint")


@pytest.mark.parametrize("training", [
    Training(epoch_batches=7, epochs=2),
    Training(epoch_batches=7, epochs=2, sized=False, accumulate=3),
    Training(epoch_batches=7, epochs=3, accumulate=3, validate_every=2),
    Training(epoch_batches=7, epochs=3, accumulate=2, validate_every=5, validate_over_epochs=True),
    Training(epoch_batches=3, epochs=4, validate_every=5, validate_over_epochs=True),
    Training(epoch_batches=5, epochs=4, sized=False, validate_every=4, validate_over_epochs=True, accumulate=2),
    Training(epoch_batches=7, epochs=3, accumulate=3, save_every=(2,)),
    Training(epoch_batches=7, epochs=3, accumulate=2, save_every=(2, 3), validate_every=3),
    Training(epoch_batches=7, epochs=3, accumulate=3, save_every=(4,), max_steps=5),
    Training(epoch_batches=7, epochs=3, sized=False, save_every=(2,), max_steps=10),
    Training(epoch_batches=4, epochs=2, accumulate=9, save_every=(1,), max_steps=2),
])  # fmt: skip
def test_the_plain_training_here_is_that_of_lightning(training):
    data = (Numbers if training.sized else Stream)(training.epoch_batches)
    recorder = Recorder()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=training.epochs,
        max_steps=training.max_steps,
        accumulate_grad_batches=training.accumulate,
        val_check_interval=training.validate_every,
        check_val_every_n_epoch=None if training.validate_over_epochs else 1,
        limit_val_batches=1 if training.validate_every else 0,
        num_sanity_val_steps=0,
        callbacks=[
            recorder,
            *(
                ModelCheckpoint("checkpoints", f"every-{every}-{{step}}", every_n_train_steps=every, save_top_k=-1)
                for every in training.save_every
            ),
        ],
        enable_checkpointing=bool(training.save_every),
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Line(), DataLoader(data), DataLoader(Numbers(1)))
    expected = [replace(batch, due=batch.due & {"validation", "checkpoint"}) for batch in train_plainly(training)]
    assert recorder.batches == expected
