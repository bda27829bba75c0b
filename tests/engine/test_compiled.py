"""Any training loop on programs against the same loop run plainly: equal, or a report of why steps run plainly."""

import collections
import copy
import dataclasses
import datetime
import itertools
import json
import math
import os
import random
import time
import types
import uuid

import numpy as np
import pytest
import torch
from loop import LoopSink, Training, assert_same, batches, both, engine_for, loss_of, mlp, sgd, train
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import positions
from lightning_sink.engine.numbers.guards import Guard
from lightning_sink.engine.watch import Hazard

LONG = [float(index % 7) + 1 for index in range(100)]


def of(step, module=mlp, optimizer=sgd, **options):
    """A training whose step gets the module, the batch and its index."""

    def make():
        built = module()
        return Training(built, optimizer(built), lambda batch, index: step(built, batch, index), **options)

    return make


def scaled(factor):
    """A loss that depends on what is tried."""
    return of(lambda module, batch, index: loss_of(module, batch) * (1 + 0.01 * factor(batch, index)))


# -- what compiles, and what does not ----------------------------------------------------------------------------------


def test_an_ordinary_loop_compiles():
    _, sink = both(of(lambda module, batch, index: loss_of(module, batch)), verify=0)
    assert sink.compiled == 15
    assert sink.hazards == []
    assert sink.engine.active == "traced"


@pytest.mark.parametrize("verify", [0, 2])
def test_control_what_nobody_can_see_makes_a_difference(verify, monkeypatch):
    def change(training, sink):
        monkeypatch.setenv("SCALE", str(sink + 1))

    make = of(lambda module, batch, index: loss_of(module, batch) * float(os.environ["SCALE"]), between=change)
    with pytest.raises(AssertionError, match="loss"):
        both(make, verify=verify)


def test_a_batch_index_that_is_passed_on_and_not_used_is_no_hazard():
    _, sink = both(of(lambda module, batch, index: loss_of(module, batch) * (1 if isinstance(index, int) else 2)))
    assert sink.compiled
    assert sink.hazards == []


INDEX_USES = {
    "list": lambda batch, i: LONG[i],
    "modulo": lambda batch, i: i % 3,
    "text": lambda batch, i: len(f"{i}"),
    "percent": lambda batch, i: len("%d" % i),  # noqa: UP031
    "times tensor": lambda batch, i: torch.tensor(1.0) * i,
    "tensor times": lambda batch, i: i * batch[0].new_ones(()),
    "tensor": lambda batch, i: torch.tensor(i),
    "tensor of list": lambda batch, i: torch.tensor([i, 1.0]).sum(),
    "full": lambda batch, i: torch.full((), i, dtype=torch.float32),
    "sine": lambda batch, i: math.sin(i),
    "range": lambda batch, i: sum(1 for _ in range(i)),
    "dict": lambda batch, i: {key: key for key in range(100)}[i],
    "numpy": lambda batch, i: float(np.float32(i)),
    "numpy array": lambda batch, i: float(np.asarray([i, 2])[0]),
    "tensor index": lambda batch, i: torch.arange(100.0)[i],
    "slice": lambda batch, i: torch.arange(100.0)[:i].sum(),
    "roll": lambda batch, i: torch.roll(torch.arange(10.0), i)[0],
    "max": lambda batch, i: max(i, 3),
    "power": lambda batch, i: 0.9**i,
    "in a set": lambda batch, i: i in {1, 5, 9},
    "seed": lambda batch, i: torch.rand((), generator=torch.Generator().manual_seed(i)),
    "where": lambda batch, i: torch.where(batch[0] > 0, i, 0).float().mean(),
    "json": lambda batch, i: len(json.dumps({"index": i})),
    "copy": lambda batch, i: copy.deepcopy(i),
    "round": lambda batch, i: math.floor(i) + round(i),
    "method": lambda batch, i: i.bit_length(),
}


INDEX_ARITHMETIC = ("modulo", "times tensor", "tensor times", "tensor", "max", "power", "where", "sine")


@pytest.mark.narrow(11)
@pytest.mark.parametrize("use", INDEX_USES)
def test_a_batch_index_that_is_used(use):
    _, sink = both(scaled(INDEX_USES[use]), [batches(24)])
    if use in INDEX_ARITHMETIC:
        assert sink.compiled > 12
        assert sink.hazards == []
    else:
        assert sink.compiled == 0
        assert len(sink.hazards) == 1
        assert f"{__file__}:" in sink.reasons


def quotient(of):
    try:
        return of()
    except (ArithmeticError, ValueError):
        return 7


BRANCHES = {
    "every third": lambda i: 2 if i % 3 == 0 else 1,
    "the first ones": lambda i: i / 10 if i < 10 else 1,
    "turns of four": lambda i: [1, 2, 3, 4][i % 4],
    "some": lambda i: 3 if i in (4, 5, 20) else 1,
    "one of two conditions": lambda i: 1 if i % 2 and i < 12 else 0.5,
    "a chain": lambda i: 1 if 3 < i < 9 else 2 if i == 11 else 3,
    "the least of two": lambda i: min(1.0, (i + 1) / 12),
    "a quotient that is an error once": lambda i: quotient(lambda: 3 / (i % 12 - 5)),
    "a remainder that is an error once": lambda i: quotient(lambda: 3 % (i % 12 - 5)),
    "a power that is whole or not": lambda i: 1 if isinstance(2 ** (5 - i % 12), int) else 0.5,
    "a root that is complex or not": lambda i: 1 if isinstance((i % 12 - 5) ** 0.5, float) else 0.5,
    "a root that is an error at first": lambda i: quotient(lambda: math.sqrt(i % 12 - 5)),
    "a logarithm that is an error in the end": lambda i: quotient(lambda: math.log(8 - i % 12)),
    "a power that is too large": lambda i: quotient(lambda: 10.0 ** (300 + i % 12)) * 0 + (1 if i % 2 else 2),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", [{}, {"costly": True}], ids=["at once", "with patience"])
@pytest.mark.parametrize("name", BRANCHES)
def test_each_way_through_a_step_has_a_program(name, engine):
    _, sink = both(scaled(lambda batch, i: BRANCHES[name](i)), [batches(24), batches(48), batches(48)], **engine)
    assert sink.compiled > (90 if not engine else 30)
    assert sink.hazards == []


def test_control_a_branch_that_nobody_guards_is_seen(monkeypatch):
    monkeypatch.setattr(Guard, "holds", lambda self: True)
    with pytest.raises(AssertionError, match="loss"):
        both(scaled(lambda batch, i: BRANCHES["every third"](i)), [batches(24)], verify=0)


def test_one_branch_that_cannot_be_compiled_leaves_the_others_compiled():
    def step(module, batch, index):
        if index % 10 == 0:
            print(end="")
        return loss_of(module, batch)

    _, sink = both(of(step), [batches(80)])
    assert sink.compiled > 60
    assert "print" in sink.reasons


BY_NAME = random.random
ESCAPES = {
    "float": lambda batch, i: float(batch[0][0, 0]),
    "float that decides": lambda batch, i: 2 if float(batch[0][0, 0] + torch.rand(())) > 0 else 1,
    "item as a text": lambda batch, i: len(f"{batch[0][0, 0].item()}"),
    "item in numpy": lambda batch, i: float(np.float32(batch[0][0, 0].item())),
    "item in a set": lambda batch, i: len({1.0, batch[0][0, 0].item()}),
    "item as an index": lambda batch, i: LONG[(batch[1][0] + 0 * torch.randint(2, ())).item()],
    "item of many digits": lambda batch, i: (batch[1].sum() + 2**60 + torch.randint(9, ())).item() % 7,
    "tolist": lambda batch, i: sum(batch[1].tolist()),
    "numpy": lambda batch, i: float(batch[0].numpy().sum()),
    "numpy function": lambda batch, i: 2 if np.asarray(batch[0]).sum() < 1e6 else 1,
    "numpy stack": lambda batch, i: 2 if np.stack([batch[0]]).sum() < 1e6 else 1,
    "repr": lambda batch, i: len(repr(batch[0])),
    "random": lambda batch, i: BY_NAME(),
    "random branch": lambda batch, i: 2 if BY_NAME() < 0.01 else 1,
    "random, plainly": lambda batch, i: float(random.random()),
    "numpy random": lambda batch, i: np.random.rand(1)[0],
    "seed": lambda batch, i: (torch.manual_seed(3), torch.rand(()))[1],
    "time": lambda batch, i: 0 * time.time(),
    "clock": lambda batch, i: 0 * time.process_time_ns(),
    "date": lambda batch, i: 0 * datetime.datetime.now().microsecond,
    "uuid": lambda batch, i: 0 * uuid.uuid4().int,
    "print": lambda batch, i: len(str(print(end=""))),
    "mask": lambda batch, i: batch[0][batch[0] > 0].sum(),
    "lengths": lambda batch, i: batch[0].repeat_interleave(batch[1], 0).sum(),
    "own generator": lambda batch, i: torch.rand((), generator=torch.Generator().manual_seed(3)),
    "from numpy": lambda batch, i: torch.from_numpy(np.asarray(batch[0]) * 2).sum(),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("escape", ESCAPES)
def test_values_that_leave_the_step_make_it_run_plainly(escape):
    _, sink = both(scaled(ESCAPES[escape]), [batches(8)])
    assert sink.compiled == 0
    assert sink.hazards


def test_reports_name_the_users_line():
    def step(module, batch, index):
        return loss_of(module, batch) * (1 + LONG[index])

    _, sink = both(of(step))
    (found,) = sink.hazards
    assert found.what.startswith("`batch_idx` is needed as a plain number")
    assert found.where == f"{__file__}:{step.__code__.co_firstlineno + 1}"


def sequences():
    generator = torch.Generator().manual_seed(0)
    return [
        [(torch.randn(3, 5, 4, generator=generator), torch.randint(1, 6, (3,), generator=generator)) for _ in range(6)]
        for _ in range(2)
    ]


def recurrent(kind):
    def build():
        module = nn.Module()
        module.rnn, module.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)
        return module

    return build


def packed(module, batch, index):
    sequence = nn.utils.rnn.pack_padded_sequence(batch[0], batch[1], batch_first=True, enforce_sorted=False)
    return module.head(module.rnn(sequence)[0].data).pow(2).mean()


def ctc(module, batch, index):
    scores = module.head(module.rnn(batch[0])[0]).log_softmax(-1).transpose(0, 1)
    targets = torch.ones(3, 2, dtype=torch.long)
    return nn.functional.ctc_loss(scores, targets, torch.full((3,), 5), batch[1].clamp(max=2))


def last_of_each(module, batch, index):
    hidden = module.rnn(batch[0])[0][torch.arange(3), batch[1] - 1]
    return module.head(hidden).pow(2).mean()


@pytest.mark.parametrize("step", [packed, ctc])
def test_lengths_in_a_tensor_run_plainly(step):
    _, sink = both(of(step, recurrent(nn.LSTM)), sequences())
    assert sink.compiled == 0
    assert sink.hazards


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_and_indexing_with_numbers_compile(kind):
    _, sink = both(of(last_of_each, recurrent(kind)), sequences())
    assert sink.compiled


def autocast(module, batch, index):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(module, batch)


def gradient_penalty(module, batch, index):
    inputs = batch[0].clone().requires_grad_()
    loss = loss_of(module, (inputs, batch[1]))
    return loss + torch.autograd.grad(loss, inputs, create_graph=True)[0].pow(2).sum()


def through_a_hook(module, batch, index):
    output = module(batch[0])
    output.register_hook(lambda gradient: gradient * 0.5)
    return nn.functional.cross_entropy(output, batch[1])


def dropout():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def normalized():
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[1].weight = module[0].weight
    return module


def scalar():
    module = mlp()
    module.scale = nn.Parameter(torch.tensor(1.0))
    module.none = nn.Parameter(torch.empty(0))
    module.unused = nn.Parameter(torch.ones(3))
    return module


def ordinary(module, batch, index):
    return loss_of(module, batch)


COMPILED = {
    "dropout": of(ordinary, dropout),
    "normalization": of(ordinary, normalized),
    "tied weights": of(ordinary, tied),
    "0-dim, empty and unused parameters": of(lambda m, b, i: loss_of(m, b) * m.scale + m.none.sum(), scalar),
    "float64": of(lambda m, b, i: loss_of(m, (b[0].double(), b[1])), lambda: mlp().double()),
    "autocast": of(autocast),
    "second derivatives": of(gradient_penalty),
    "tensor hook": of(through_a_hook),
    "in place on the batch": of(lambda m, b, i: loss_of(m, (b[0].mul_(2), b[1]))),
    "random draws": of(lambda m, b, i: loss_of(m, b) + torch.randn(3).sum() * 0.01 + torch.randperm(5)[0]),
    "gradients kept": of(ordinary, set_to_none=None, optimizer=lambda m: optim.SGD(m.parameters(), 0.01)),
    "gradients zeroed": of(ordinary, set_to_none=False),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_and_is_the_same(name):
    _, sink = both(COMPILED[name])
    assert sink.compiled, sink.reasons


def test_complex_parameters():
    def module():
        built = nn.Module()
        built.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        return built

    def step(built, batch, index):
        return nn.functional.cross_entropy((batch[0].to(torch.complex64) @ built.weight).abs(), batch[1])

    _, sink = both(of(step, module))
    assert sink.compiled


def test_activation_checkpointing_draws_the_same_dropout():
    def step(module, batch, index):
        return nn.functional.cross_entropy(checkpoint(module, batch[0], use_reentrant=False), batch[1])

    both(of(step, dropout))


def test_shapes_types_and_strides_have_programs_of_their_own():
    plain = batches(4)
    sink = [
        *plain,
        *[(x[:5], y[:5]) for x, y in plain],
        *[(x.double(), y) for x, y in plain],
        *[(x.t().contiguous().t(), y) for x, y in plain],
        *plain,
    ]
    _, done = both(of(lambda module, batch, index: loss_of(module, (batch[0].float(), batch[1]))), [sink, sink])
    assert done.compiled > 20


@pytest.mark.parametrize("costly", [False, True])
def test_batches_that_are_never_of_the_same_kind_are_reported(costly):
    sink = [(x, y, f"picture {number}.png") for number, (x, y) in enumerate(batches(70))]
    _, done = both(of(ordinary), [sink], costly=costly)
    assert "values that keep changing" in done.reasons
    assert "`batch[2]`" in done.reasons


def changing(module, batch, index):
    """Short batches change a number that every step looks at."""
    loss = loss_of(module, batch) * getattr(module, "scale", 1.0)
    if len(batch[0]) == 5:
        module.scale = 3.0
    return loss


@pytest.mark.parametrize("costly", [False, True])
@pytest.mark.parametrize("short", [1, 3, 10, 25])
def test_what_steps_of_one_kind_change_is_seen_by_those_of_another(short, costly):
    """Also where a program has been made of the first kind meanwhile."""
    plain = batches(40)
    between = [(x[:5], y[:5]) for x, y in plain[:short]]
    _, done = both(of(changing), [[*plain[:12], *between, *plain[12:]]], costly=costly)
    assert done.compiled > 20


class Incomparable:
    """Values of which nobody can say whether they are equal."""

    def __init__(self, answer):
        self.answer = answer

    __hash__ = object.__hash__
    __slots__ = ("answer",)

    def __eq__(self, other):
        return self.answer()


ANSWERS = {"one by one": lambda: np.array([True, False]), "an error": lambda: {}["unknown"]}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("costly", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_values_that_cannot_be_compared_are_reported(answer, costly):
    sink = [(x, y, Incomparable(ANSWERS[answer])) for x, y in batches(70)]
    _, done = both(of(ordinary), [sink], costly=costly)
    assert "`batch[2]`" in done.reasons


def turns(kinds, steps, size):
    """Sinks of so many steps in which kinds of batches take turns, by a number or by their shapes."""
    numbers = [index % kinds for index in range(steps)]
    by_number = [(x, y, number) for number, (x, y) in zip(numbers, batches(steps), strict=True)]
    by_shape = [(x.repeat(n + 1, 1), y.repeat(n + 1)) for x, y, n in by_number]
    return [[items[i : i + size] for i in range(0, steps, size)] for items in (by_number, by_shape)]


@pytest.mark.narrow
@pytest.mark.parametrize(("kinds", "size"), [(9, 4), (10, 10), (20, 100)])
def test_kinds_that_take_turns_have_programs_in_time(kinds, size):
    for sinks in turns(kinds, 400, size):
        _, done = both(of(ordinary), sinks, costly=True)
        assert done.hazards == []
        assert done.compiled


@pytest.mark.parametrize("size", [4, 8, 20])
def test_values_that_take_turns_for_long_are_reported(size):
    (sinks, _) = turns(20, 200, size)
    _, done = both(of(ordinary), sinks, costly=True)
    assert "`batch[2]`" in done.reasons


@pytest.mark.parametrize("costly", [False, True])
def test_shapes_that_never_come_again_are_reported(costly):
    sink = [(x.repeat(number + 1, 1), y.repeat(number + 1)) for number, (x, y) in enumerate(batches(70))]
    _, done = both(of(ordinary), [sink], costly=costly)
    assert "too many kinds" in done.reasons
    assert "would need" not in done.reasons


def test_values_in_a_batch_that_cannot_be_hashed():
    """Each lives for one step, and the next one may be at the same place in memory."""

    def make():
        module = mlp()
        return Training(module, sgd(module), lambda b, _: loss_of(module, b) * (2 if b[2][0] > 3 else 1))

    def run(compiled):
        torch.manual_seed(5)
        training = make()
        sink = [*batches(8)]
        engine = engine_for(training, [], verify=0)
        for number, (x, y) in enumerate(sink):
            batch = (x, y, np.array([number]))
            if compiled:
                engine.run(LoopSink(training, [batch]))
            else:
                training.run(batch, number)
        engine.close()
        return training

    plain, sink = run(False), run(True)
    for expected, found in zip(plain.module.parameters(), sink.module.parameters(), strict=True):
        assert torch.allclose(expected, found, rtol=1e-4)


def test_one_tensor_twice_in_a_batch_and_then_two():
    def step(module, batch, index):
        return (module(batch[0])[:, :3] - batch[1][:, :3]).pow(2).mean()

    sink = [*[(x, x) for x, _ in batches(4)], *[(x, x * 2) for x, _ in batches(4)]]
    both(of(step), [sink, sink])


# -- optimizers --------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05),
    "nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "dampening": lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "maximize": lambda p: optim.SGD(p, 0.001, maximize=True),
    "sgd fused": lambda p: optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam": lambda p: optim.Adam(p, 0.01),
    "amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True, maximize=True),
    "adam foreach": lambda p: optim.Adam(p, 0.01, foreach=True),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "nadam": lambda p: optim.NAdam(p, 0.01),
    "adamax": lambda p: optim.Adamax(p, 0.01),
    "adadelta": lambda p: optim.Adadelta(p, 1.0),
    "adagrad": lambda p: optim.Adagrad(p, 0.01, lr_decay=0.1, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "rprop": lambda p: optim.Rprop(p, 0.01),
    "tensor rate": lambda p: optim.Adam(p, torch.tensor(0.01)),
    "radam": lambda p: optim.RAdam(p, 0.01),
    "asgd": lambda p: optim.ASGD(p, 0.01, t0=4),
    "rate of zero": lambda p: optim.SGD(p, 0.0),
    "integer rate": lambda p: optim.SGD(p, 1),
    "numpy rate": lambda p: optim.SGD(p, np.float32(0.05)),
    "muon": lambda p: optim.Muon([q for q in p if q.dim() == 2], 0.01),
}
PLAIN_OPTIMIZERS = {
    "lbfgs": lambda p: optim.LBFGS(p, 0.1, max_iter=2),
    "adafactor": lambda p: optim.Adafactor(p, 0.01),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_compile(name):
    _, sink = both(of(ordinary, optimizer=lambda module: OPTIMIZERS[name](module.parameters())))
    assert sink.compiled, sink.reasons


@pytest.mark.parametrize("name", PLAIN_OPTIMIZERS)
def test_optimizers_that_look_at_parameters_run_plainly(name):
    sinks = [batches(6)]
    _, sink = both(of(ordinary, optimizer=lambda module: PLAIN_OPTIMIZERS[name](module.parameters())), sinks)
    assert sink.compiled == 0
    assert sink.hazards


@pytest.mark.parametrize("optimizer", [optim.SparseAdam, optim.SGD])
@pytest.mark.parametrize("verify", [0, 2])
def test_sparse_gradients_run_plainly(optimizer, verify):
    make = of(
        lambda module, batch, index: module(batch[1]).pow(2).sum(),
        lambda: nn.Embedding(10, 4, sparse=True),
        lambda module: optimizer(module.parameters(), 0.01),
    )
    _, sink = both(make, verify=verify)
    assert sink.compiled == 0
    assert sink.hazards


class Counting(optim.Optimizer):
    """Does something else in every fifth step, by a count that it keeps in `where`."""

    def __init__(self, parameters, where):
        super().__init__(parameters, {"lr": 0.05})
        self.where, self.calls = where, 0

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                rate = group["lr"] * (2 if self.count(group, parameter) % 5 == 0 else 1)
                parameter.data.add_(parameter.grad, alpha=-rate)
        return loss

    def count(self, group, parameter):
        if self.where == "attribute":
            self.calls += 1
            return self.calls
        holder = group if self.where == "group" else self.state[parameter]
        holder["calls"] = holder.get("calls", 0) + 1
        return holder["calls"]


@pytest.mark.parametrize("where", ["group", "state", pytest.param("attribute", marks=positions.needed)])
def test_an_optimizer_of_ones_own_that_counts_has_a_program_for_each_way(where):
    _, sink = both(of(ordinary, optimizer=lambda module: Counting(module.parameters(), where)), [batches(120)])
    assert sink.compiled > 0
    assert not sink.hazards


def scheduled(optimizer, change):
    def make():
        module = mlp()
        built = optimizer(module)
        return Training(
            module,
            built,
            lambda batch, _: loss_of(module, batch),
            after=lambda done: change(built.param_groups[0], done),
        )

    return make


def adam(module):
    return optim.Adam(module.parameters(), 0.1)


def tensor_adam(module):
    return optim.Adam(module.parameters(), torch.tensor(0.1), foreach=False)


SCHEDULES = {
    "lr": (sgd, lambda group, n: group.update(lr=0.1 / n)),
    "lr zero, then not": (sgd, lambda group, n: group.update(lr=0.0 if n < 9 else 0.1)),
    "lr integer or not": (sgd, lambda group, n: group.update(lr=1 if n % 2 else 0.1)),
    "lr from numpy": (sgd, lambda group, n: group.update(lr=np.float32(0.1 / n))),
    "lr tensor filled": (tensor_adam, lambda group, n: group["lr"].fill_(0.1 / n)),
    "lr tensor replaced": (tensor_adam, lambda group, n: group.update(lr=torch.tensor(0.1 / n))),
    "lr tensor, then number": (tensor_adam, lambda group, n: group.update(lr=0.1 / n)),
    "momentum": (sgd, lambda group, n: group.update(momentum=0.9 - 0.01 * n)),
    "betas": (adam, lambda group, n: group.update(betas=(0.9 - 0.01 * n, 0.999))),
    "weight decay": (adam, lambda group, n: group.update(weight_decay=0.01 * n)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_compile(name):
    _, sink = both(scheduled(*SCHEDULES[name]))
    assert sink.compiled, sink.reasons


def test_an_option_that_is_no_number_and_changes_at_every_step_is_reported():
    make = scheduled(sgd, lambda group, n: group.update(nesterov=n % 2 == 0))
    _, sink = both(make, [batches(40)])
    assert "keeps changing" in sink.reasons


def sets_rate(training_lr):
    def make():
        module = mlp()
        optimizer = sgd(module)

        def step(batch, index):
            group = optimizer.param_groups[0]
            group["lr"] = training_lr(group["lr"])
            return loss_of(module, batch)

        return Training(module, optimizer, step, extra=lambda: {"lr": torch.tensor(optimizer.param_groups[0]["lr"])})

    return make


@pytest.mark.parametrize("rate", [lambda lr: lr * 0.9, lambda lr: 0.07], ids=["decay", "constant"])
def test_a_step_that_sets_the_rate_keeps_it_set(rate):
    both(sets_rate(rate))


@pytest.mark.parametrize(
    "use", [lambda lr: lr, lambda lr: max(lr, 0.03), float, torch.tensor], ids=["itself", "max", "float", "tensor"]
)
def test_a_step_that_reads_the_rate(use):
    def make():
        module = mlp()
        optimizer = sgd(module)
        group = optimizer.param_groups[0]
        return Training(
            module,
            optimizer,
            lambda batch, index: loss_of(module, batch) * use(group["lr"]),
            after=lambda done: group.update(lr=0.1 / done),
        )

    _, sink = both(make, [batches(6)] * 5)
    assert sink.compiled or sink.hazards


# -- between sinks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    scale: float = 1.0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.alpha, self.options, self.slotted = 1.0, Options(), Slotted()
        self.space = types.SimpleNamespace(inner=types.SimpleNamespace(scale=1.0))
        self.tree = {"a": {"b": [1.0, (2.0,)]}}
        self.many = [1.0] * 200
        self.array, self.number = np.ones(3), np.float32(1.0)
        self.function = lambda x: x
        self.tensor, self.tensors = torch.ones(3), [torch.ones(3), torch.ones(3)]
        self.nested = {"a": [torch.ones(3)]}
        self.absent = float("nan")

    def forward(self, x):
        return self.net(x)


def replaced(module):
    module.options = None
    module.options = Options(2.0)


def halve(*arguments):
    return tuple(item * 0.5 for item in arguments[-1]) if isinstance(arguments[-1], tuple) else arguments[-1] * 0.5


CHANGES = {
    "attribute": (lambda m: m.alpha, lambda m: setattr(m, "alpha", 2.0)),
    "dataclass": (lambda m: m.options.scale, lambda m: setattr(m.options, "scale", 2.0)),
    "dataclass replaced": (lambda m: m.options.scale, replaced),
    "slots": (lambda m: m.slotted.scale, lambda m: setattr(m.slotted, "scale", 2.0)),
    "namespace": (lambda m: m.space.inner.scale, lambda m: setattr(m.space.inner, "scale", 2.0)),
    "dict": (lambda m: m.tree["a"]["b"][0], lambda m: m.tree["a"]["b"].__setitem__(0, 2.0)),
    "long list": (lambda m: m.many[150], lambda m: m.many.__setitem__(150, 2.0)),
    "array": (lambda m: float(m.array[0]), lambda m: m.array.fill(2.0)),
    "numpy number": (lambda m: float(m.number), lambda m: setattr(m, "number", np.float32(2.0))),
    "function": (lambda m: m.function(2.0), lambda m: setattr(m, "function", lambda x: 2 * x)),
    "tensor filled": (lambda m: m.tensor.sum(), lambda m: m.tensor.fill_(2.0)),
    "tensor replaced": (lambda m: m.tensor.sum(), lambda m: setattr(m, "tensor", torch.full((3,), 2.0))),
    "tensor of another shape": (lambda m: m.tensor.sum(), lambda m: setattr(m, "tensor", torch.ones(4))),
    "tensor in a list": (lambda m: m.tensors[0].sum(), lambda m: m.tensors.__setitem__(0, torch.zeros(3))),
    "list of tensors": (lambda m: m.tensors[0].sum(), lambda m: setattr(m, "tensors", [torch.zeros(3)])),
    "tensor in a list in a dict": (lambda m: m.nested["a"][0].sum(), lambda m: m.nested.update(a=[torch.zeros(3)])),
    "frozen": (lambda m: 1.0, lambda m: m.net[0].requires_grad_(False)),
    "data replaced": (lambda m: 1.0, lambda m: setattr(m.net[0].weight, "data", m.net[0].weight.data * 0.5)),
    "layer replaced": (lambda m: 1.0, lambda m: m.net.__setitem__(2, nn.Linear(8, 3))),
    "activation replaced": (lambda m: 1.0, lambda m: m.net.__setitem__(1, nn.Sigmoid())),
    "forward replaced": (lambda m: 1.0, lambda m: setattr(m.net[1], "forward", halve)),
    "forward hook": (lambda m: 1.0, lambda m: m.net[1].register_forward_hook(halve)),
    "forward pre-hook": (lambda m: 1.0, lambda m: m.net[1].register_forward_pre_hook(halve)),
    "backward hook": (lambda m: 1.0, lambda m: m.net[1].register_full_backward_pre_hook(halve)),
    "gradient hook": (lambda m: 1.0, lambda m: m.net[0].weight.register_hook(halve)),
    "weights loaded": (lambda m: 1.0, lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()})),
    "weights assigned": (
        lambda m: 1.0,
        lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    ),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_sinks_is_seen(name):
    factor, change = CHANGES[name]
    make = of(
        lambda module, batch, index: loss_of(module, batch) * factor(module),
        Holder,
        between=lambda training, sink: change(training.module) if sink == 2 else None,
    )
    _, sink = both(make, verify=0)
    assert sink.compiled, sink.reasons


def test_control_a_changed_attribute_changes_the_training():
    make = of(lambda module, batch, index: loss_of(module, batch) * module.alpha, Holder)
    other = of(lambda module, batch, index: loss_of(module, batch) * (module.alpha + 1), Holder)
    with pytest.raises(AssertionError):
        assert_same(train(make, [batches(6)], False), train(other, [batches(6)], False))


def load_optimizer(training, sink):
    if sink == 1:
        training.saved = copy.deepcopy(training.optimizer.state_dict())
    elif sink == 3:
        training.optimizer.load_state_dict(training.saved)


def decay(training, sink):
    training.optimizer.param_groups[0]["weight_decay"] = 0.1 * sink


def add_group(training, sink):
    if sink == 2:
        parameter = nn.Parameter(torch.ones(3))
        training.module.register_parameter("late", parameter)
        training.optimizer.add_param_group({"params": [parameter], "lr": 0.3})


def add_hook(training, sink):
    if sink == 2:
        training.optimizer.register_step_post_hook(lambda *_: training.module[0].weight.data.mul_(0.5) and None)


def clear(training, sink):
    if sink == 2:
        training.optimizer.state.clear()


def freeze_and_thaw(training, sink):
    training.module[0].requires_grad_(sink % 2 == 0)


def set_gradients(training, sink):
    if sink == 2:
        for parameter in training.module.parameters():
            parameter.grad = torch.ones_like(parameter)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("change", [load_optimizer, decay, add_group, clear, freeze_and_thaw, set_gradients])
def test_what_is_done_to_the_optimizer_between_sinks_is_seen(optimizer, change):
    make = of(ordinary, optimizer=optimizer, between=change, set_to_none=None if change is set_gradients else True)
    _, sink = both(make, [batches(5)] * 4, verify=0)
    assert sink.compiled, sink.reasons


# -- state that the step keeps -----------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "first second")


def start():
    return torch.zeros(8, 3)


HIDDEN = {
    "tensor": (start, lambda h: h, lambda h, o: 0.5 * h + o),
    "view": (start, lambda h: h, lambda h, o: o[:]),
    "tuple": (lambda: (start(), start()), lambda h: h[0] + h[1], lambda h, o: (o, h[0])),
    "list": (lambda: [start(), start()], lambda h: h[0] + h[1], lambda h, o: [o, h[0]]),
    "list in place": (lambda: [start(), start()], lambda h: h[0] + h[1], lambda h, o: (h.pop(0), h.append(o), h)[2]),
    "dict": (lambda: {"a": start(), "b": start()}, lambda h: h["a"] + h["b"], lambda h, o: {"a": o, "b": h["a"]}),
    "one tensor twice": (lambda: [start()] * 2, lambda h: h[0] + h[1], lambda h, o: [o, o]),
    "none at first": (lambda: None, lambda h: 0 if h is None else h, lambda h, o: o),
    "growing": (list, lambda h: sum(h) if h else 0, lambda h, o: [*h, o][-3:]),
    "nested": (lambda: [(start(),)], lambda h: h[0][0], lambda h, o: [(o,)]),
    "named tuple": (lambda: Pair(start(), start()), lambda h: h.first, lambda h, o: Pair(o, h.first)),
    "namespace": (lambda: types.SimpleNamespace(a=start()), lambda h: h.a, lambda h, o: types.SimpleNamespace(a=o)),
    "deque": (
        lambda: collections.deque([start()] * 2, maxlen=2),
        lambda h: h[0],
        lambda h, o: (h.append(o), h)[1],
    ),
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_state_in_an_attribute(name):
    initial, read, write = HIDDEN[name]

    def make():
        module = mlp()
        module.hidden = initial()

        def step(batch, index):
            output = module(batch[0])
            loss = nn.functional.cross_entropy(output + read(module.hidden), batch[1])
            module.hidden = write(module.hidden, output.detach())
            return loss

        def reset(training, sink):
            if sink == 2:
                module.hidden = initial()

        return Training(module, sgd(module), step, between=reset)

    _, sink = both(make)
    assert sink.compiled or sink.hazards


def averages(update, holds=list):
    def make():
        module = mlp()
        average = holds([p.detach().clone() for p in module.parameters()])

        def step(batch, index):
            loss = loss_of(module, batch)
            for position, parameter in enumerate(module.parameters()):
                update(average, position, parameter)
            return loss

        return Training(module, sgd(module), step, extra=lambda: dict(enumerate(average)))

    return make


def rebound(average, position, parameter):
    average[position] = 0.9 * average[position] + 0.1 * parameter.detach()


def in_place(average, position, parameter):
    average[position].mul_(0.9).add_(parameter.detach(), alpha=0.1)


def by_data(average, position, parameter):
    average[position].data.mul_(0.9).add_(parameter.data, alpha=0.1)


@pytest.mark.parametrize("update", [rebound, in_place, by_data])
def test_an_average_of_the_weights_kept_outside_the_module(update):
    _, sink = both(averages(update), verify=0)
    assert sink.compiled or sink.hazards


def test_an_average_that_is_held_by_data_alone():
    def make():
        module = mlp()
        module.teacher = copy.deepcopy(module).requires_grad_(False)

        def step(batch, index):
            loss = nn.functional.cross_entropy(module[2](module[1](module[0](batch[0]))), batch[1])
            loss = loss + nn.functional.mse_loss(module[0](batch[0]), module.teacher[0](batch[0]))
            for held, parameter in zip(module.teacher.parameters(), module.parameters(), strict=False):
                held.data = 0.9 * held.data + 0.1 * parameter.data
            return loss

        return Training(module, sgd(module), step)

    _, sink = both(make, verify=0)
    assert sink.compiled


CALLS = 0


class Calls:
    count = 0


def counting(name):
    """A step that does something else in every fifth call, by a count kept somewhere."""
    global CALLS
    CALLS = Calls.count = 0
    module, local, kept = mlp(), 0, {"calls": 0}
    module.calls, module.list, module.iterator = 0, [], iter(range(1000))
    module.generator, module.random, module.array = np.random.default_rng(0), random.Random(0), np.zeros(1)
    counter, lazy = itertools.count(1), (index for index in range(1, 1000))

    def on_global():
        global CALLS
        CALLS += 1
        return CALLS

    def on_local():
        nonlocal local
        local += 1
        return local

    def on_class():
        Calls.count += 1
        return Calls.count

    def on_function():
        on_function.calls += 1
        return on_function.calls

    def on_default(cache={"calls": 0}):  # noqa: B006
        cache["calls"] += 1
        return cache["calls"]

    def on_dict():
        kept["calls"] += 1
        return kept["calls"]

    def on_attribute():
        module.calls += 1
        return module.calls

    def on_array():
        module.array += 1
        return module.array[0]

    def on_list():
        module.list.append(1)
        return len(module.list)

    on_function.calls = 0
    counts = {
        "global": on_global, "local": on_local, "class": on_class, "function": on_function, "default": on_default,
        "dict": on_dict, "attribute": on_attribute, "array": on_array, "list": on_list,
        "counter": lambda: next(counter), "generator": lambda: next(lazy),
        "iterator": lambda: next(module.iterator) + 1,
        "numpy generator": lambda: module.generator.integers(0, 5),
        "random generator": lambda: module.random.randint(0, 5),
    }  # fmt: skip
    count = counts[name]
    return Training(
        module, sgd(module), lambda batch, _: loss_of(module, batch) * (2 if count() % 5 == 0 else 1)
    ), counts


COUNTS = list(counting("global")[1])


@pytest.mark.parametrize("name", COUNTS)
def test_a_step_that_counts_runs_plainly(name):
    def make():
        return counting(name)[0]

    _, sink = both(make, [batches(10)], verify=0)
    assert sink.compiled == 0
    assert "the step changes Python state" in sink.reasons


def outer_changes():
    values = {"tensor": torch.ones(3), "number": 1.0}
    outer = nn.Dropout(0.5)
    module = mlp()

    def between(training, sink):
        values.update(tensor=torch.full((3,), 1.0 + sink), number=1.0 + sink)
        outer.train(sink % 2 == 0)

    def step(batch, index):
        return nn.functional.cross_entropy(outer(module(batch[0])) * values["tensor"], batch[1]) * values["number"]

    return Training(module, sgd(module), step, between=between)


def test_what_a_step_closes_over_may_change_between_sinks():
    _, sink = both(outer_changes, verify=0)
    assert sink.compiled


def test_a_closed_over_tensor_that_is_filled_later():
    def make():
        module, mask = mlp(), torch.ones(3)

        def fill(training, sink):
            mask.fill_(1.0 + sink)

        return Training(
            module,
            sgd(module),
            lambda batch, _: nn.functional.cross_entropy(module(batch[0]) * mask, batch[1]),
            between=fill,
        )

    _, sink = both(make)
    assert sink.compiled == 13


def test_weights_that_are_tied_and_then_are_not():
    def untie(training, sink):
        if sink == 1:
            training.module[1].weight = nn.Parameter(training.module[0].weight.detach() * 2)

    both(of(ordinary, tied, between=untie), verify=0)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2, 9])
def test_the_users_error_surfaces_as_it_is(at):
    def step(module, batch, index):
        if batch[0].shape[0] == 5:
            raise KeyError("the user's")
        return loss_of(module, batch)

    sink = batches(12)
    sink[at] = (sink[at][0][:5], sink[at][1][:5])
    with pytest.raises(KeyError, match="the user's"):
        train(of(step), [sink], compiled=True)


def test_an_error_in_an_operation_surfaces_as_it_is():
    sink = [*batches(8), *[(x, y + 5) for x, y in batches(2)]]
    with pytest.raises(IndexError, match="out of bounds"):
        train(of(ordinary), [sink], compiled=True)


def test_a_step_whose_recording_fails_is_run_once():
    def make():
        module = mlp()
        module.calls, module.seen, module.total = 0, [], torch.zeros(())

        def step(batch, index):
            module.calls += 1
            module.seen.append(random.random() + np.random.rand())
            module.total += 1
            module.hidden = torch.rand(3)
            json.dumps(index)
            return loss_of(module, batch) * (1 + 0.1 * module.calls) * module.seen[-1]

        extra = lambda: {"calls": torch.tensor(float(module.calls)), "seen": torch.tensor(module.seen)}  # noqa: E731
        return Training(module, sgd(module), step, extra=lambda: {**extra(), "total": module.total})

    _, sink = both(make)
    assert sink.hazards


def test_a_sink_with_a_reason_runs_plainly_and_says_so():
    training, hazards = of(ordinary)(), []
    engine = engine_for(training, hazards)
    sink = LoopSink(training, batches(6))
    sink.eager_reason = Hazard("because")
    engine.run(sink)
    engine.run(sink)
    assert [hazard.what for hazard in hazards] == ["because"]
    assert engine.active == "eager"
    engine.close()


def test_a_compiler_that_fails_is_reported():
    def fails(recording):
        raise RuntimeError("no such instruction")

    _, sink = both(of(ordinary), compiler=fails)
    assert "no such instruction" in sink.reasons
    assert sink.engine.active == "eager"


def test_a_costly_compiler_waits_for_a_second_step_of_the_kind():
    compiled = []

    def compiler(recording):
        compiled.append(recording.inputs[0].shape)
        from lightning_sink.engine.compiler.inductor import compile_traced

        return compile_traced(recording)

    last = [(x[:3], y[:3]) for x, y in batches(1)]
    both(of(ordinary), [[*batches(6), *last]] * 3, compiler=compiler, costly=True)
    assert len(compiled) == 1
