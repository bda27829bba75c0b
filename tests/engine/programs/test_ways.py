"""Several ways through a step, each with a program of its own: what one leaves is what the next one finds."""

import itertools
import random

import pytest
import torch
from loop import batches, both, loss_of, mlp
from test_compiled import of
from torch import nn

from lightning_sink.engine.compiler.inductor import compile_traced
from lightning_sink.engine.programs import maker
from lightning_sink.engine.programs.maker import ProgramMaker
from lightning_sink.engine.programs.program import Program


class Counting(nn.Module):
    """A net with a count that steps write to and look at."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.net(x)


def going(*turns):
    """Batches with the number of the way to go, each way as often as it says."""
    ways = [way for way, times in turns for _ in range(times)]
    return [(x, y, torch.tensor(way)) for way, (x, y) in zip(ways, batches(len(ways)), strict=True)]


def counts_or_looks(module, batch, index):
    """One way counts, another looks at the count, and others do neither."""
    way = int(batch[2])
    loss = loss_of(module, batch) * (1 + 0.1 * way)
    if way == 0:
        module.count.zero_()
    elif way == 1:
        module.count.add_(1)
    elif way == 3 and module.count > 20:
        loss = loss * 3
    return loss


COUNTED = going((3, 4), (2, 4), (1, 4), (0, 4), (3, 4), (1, 30), (2, 5), (3, 20))


ENGINES = pytest.mark.parametrize("engine", [{"verify": 0}, {"costly": True, "verify": 0}], ids=["at once", "patience"])


@ENGINES
def test_a_program_looks_again_at_what_another_one_has_written(engine):
    _, sink = both(of(counts_or_looks, module=Counting), [COUNTED], **engine)
    assert sink.compiled > (50 if "costly" not in engine else 20)


def test_control_a_program_that_does_not_look_again_is_wrong(monkeypatch):
    monkeypatch.setattr(Program, "is_kept_by", lambda self, other: True)
    with pytest.raises(AssertionError, match="loss"):
        both(of(counts_or_looks, module=Counting), [COUNTED], verify=0)


def test_programs_that_are_no_longer_right_after_a_few_steps_are_not_made_for_ever(monkeypatch):
    made, init = [], Program.__init__
    monkeypatch.setattr(Program, "__init__", lambda self, *args: made.append(self) or init(self, *args))

    def step(module, batch, index):
        loss = loss_of(module, batch)
        if index % 8 == 0:
            module.count.add_(1)
        elif module.count > 30:
            loss = loss * 1.1
        return loss

    _, sink = both(of(step, module=Counting), [batches(200)] * 3)
    assert len(made) < 25
    assert "whose values decide what Python does, keep changing" in sink.reasons


SHARES = {"late": 1.0}


def share():
    return SHARES["late"]


def calls_late(module, batch, index):
    """A function of its own is called at every third batch, from the 30th on; what it looks at is set in between."""
    loss = loss_of(module, batch)
    return loss * (2.0 + share()) if index >= 30 and index % 3 == 0 else loss


def sets_shares(training, sink):
    SHARES["late"] = 1.0 if sink < 2 else 0.25


@ENGINES
def test_a_function_that_is_met_later_is_no_change_and_its_changes_are_seen(engine, monkeypatch):
    forgotten, forget = [], ProgramMaker.forget
    monkeypatch.setattr(
        ProgramMaker,
        "forget",
        lambda self, changed=(), *rest: (forgotten.append(changed), forget(self, changed, *rest)),
    )
    sinks = [batches(80), batches(80), batches(80)]
    both(of(calls_late, module=mlp, between=sets_shares), sinks, **engine)
    assert [names for names in forgotten if names] == [["SHARES in share"]]


def leaves_out(module, batch, index):
    """Three parts, each of which is left out at every second batch, at random."""
    loss = loss_of(module, batch)
    for part in range(1, 4):
        if random.random() < 0.5:
            loss = loss * (1 + part / 10)
    return loss


def trained_while(step, batches, seconds, monkeypatch):
    """Trains where compiling takes so long, and a step a second; returns what came of it, and how many programs."""
    clock, made = itertools.count(), []
    monkeypatch.setattr(maker, "perf_counter", lambda: next(clock))

    def compiler(recording):
        made.append(recording)
        for _ in range(seconds):
            next(clock)
        return compile_traced(recording)

    _, sink = both(of(step), [batches], compiler=compiler, costly=True)
    return sink, len(made)


def made_for_ways_at_random(steps, *times):
    """Returns how many programs are made."""
    sink, made = trained_while(leaves_out, batches(steps), *times)
    assert sink.compiled > steps / 8
    return made


def test_ways_at_random_are_compiled_for_no_longer_than_steps_take_without(monkeypatch):
    assert made_for_ways_at_random(100, 100, monkeypatch) == 3
    assert made_for_ways_at_random(400, 100, monkeypatch) in (4, 5)
    assert made_for_ways_at_random(400, 0, monkeypatch) == 8


def of_many_lengths(count, lengths):
    """Batches padded to their longest, as collators of texts do."""
    drawn = random.Random(0)
    sizes = [1 + drawn.randrange(lengths) for _ in range(count)]
    return [(x.repeat(size, 1), y.repeat(size)) for size, (x, y) in zip(sizes, batches(count), strict=True)]


def step_of(module, batch, index):
    return loss_of(module, batch)


def test_shapes_are_compiled_for_no_longer_than_steps_take_without(monkeypatch):
    sink, made = trained_while(step_of, of_many_lengths(800, 30), 300, monkeypatch)
    assert 1 < made <= 1 + 800 / 300  # a step takes a second
    assert "too many kinds" in sink.reasons


def test_shapes_that_come_often_are_compiled_in_the_end(monkeypatch):
    sink, made = trained_while(step_of, of_many_lengths(800, 6), 50, monkeypatch)
    assert made == 6
    assert sink.reasons == ""


def test_shapes_that_wait_for_programs_are_told_of(monkeypatch):
    sink, made = trained_while(step_of, of_many_lengths(800, 8), 1_000, monkeypatch)
    assert made == 1
    assert "too many kinds" in sink.reasons


def test_a_smaller_batch_at_each_end_is_not_compiled_before_that_is_worth_it(monkeypatch):
    (x, y), *_ = batches(1)
    sinks = [[*batches(9), (x[:5], y[:5])]] * 60
    for seconds, programs in ((1_000, 1), (30, 2)):
        made = trained_while(step_of, [batch for sink in sinks for batch in sink], seconds, monkeypatch)
        assert made[1] == programs
        assert made[0].reasons == ""
