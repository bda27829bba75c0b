"""Training in sinks against plain Lightning: the first promise."""

import itertools

import pytest
import torch

from lightning_sink import SinkStrategy
from parity import Net, assert_parity, both, loader, train

FACTORS = {
    "sink_size": [1, 3, 7, -1, 100],
    "epoch": ["sink", "dataset"],
    "optimizer": ["sgd", "adam", "adamw", "foreach", "fused"],
    "schedule": ["none", "onecycle", "step", "plateau"],
    "accumulate": [1, 2, 4],
    "clip": [None, "norm", "value"],
}


def all_pairs(factors):
    """Few combinations in which every value of every factor meets every value of every other one."""
    names = list(factors)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    candidates = [dict(zip(names, values, strict=True)) for values in itertools.product(*factors.values())]
    chosen = []
    while missing:

        def gain(case, missing=missing):
            return sum(pair in missing for pair in itertools.combinations(case.items(), 2))

        best = max(candidates, key=gain)
        chosen.append(best)
        missing -= set(itertools.combinations(best.items(), 2))
    return chosen


CASES = all_pairs(FACTORS)


def name(case):
    return "-".join(str(value) for value in case.values())


def options(case, epochs):
    chosen = {"max_epochs": epochs, "accumulate_grad_batches": case["accumulate"]}
    if case["clip"]:
        chosen |= {"gradient_clip_val": 0.1, "gradient_clip_algorithm": case["clip"]}
    return chosen


def run_case(case, engine):
    strategy = SinkStrategy(case["sink_size"], epoch=case["epoch"], engine=engine)
    epochs = max(3, -(-51 // case["sink_size"])) if strategy.is_endless else 3
    if case["sink_size"] == 100 and strategy.is_endless:
        epochs = 2
    total = max(1, epochs * (case["sink_size"] if strategy.is_endless else 17)) + 1
    return both(
        lambda: Net(case["optimizer"], case["schedule"], total),
        lambda: loader(shuffle=True),
        strategy,
        **options(case, epochs),
    )


def test_all_pairs_are_there():
    seen = {pair for case in CASES for pair in itertools.combinations(case.items(), 2)}
    assert len(CASES) < 40
    for a, b in itertools.combinations(FACTORS, 2):
        assert all(((a, x), (b, y)) in seen for x in FACTORS[a] for y in FACTORS[b])


def test_control_plain_equals_plain_and_a_changed_training_does_not():
    runs = []
    for momentum in ("sgd", "sgd", "adam"):
        torch.manual_seed(7)
        runs.append(train(Net(momentum), loader(shuffle=True), max_epochs=2))
    assert_parity(runs[0], runs[1], exact=True)
    with pytest.raises(AssertionError):
        assert_parity(runs[0], runs[2])


@pytest.mark.narrow(11)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_eager_is_plain_lightning_bit_for_bit(case):
    plain, sink = run_case(case, "eager")
    assert_parity(plain, sink, exact=True)


@pytest.mark.narrow(13)
@pytest.mark.parametrize("case", CASES, ids=name)
def test_traced_is_plain_lightning(case):
    plain, sink = run_case(case, "traced")
    assert sink.engine == "traced", sink.warned
    assert_parity(plain, sink)


# One case for each optimizer; between them each value of every other factor. Programs are compiled for each kind of
# step (the first, middle and last of a window of accumulation), which is what bounds the number of cases.
INDUCTOR_CASES = [
    {"sink_size": 7, "epoch": "dataset", "optimizer": "sgd", "schedule": "onecycle", "accumulate": 1, "clip": "norm"},
    {"sink_size": -1, "epoch": "sink", "optimizer": "adam", "schedule": "plateau", "accumulate": 2, "clip": None},
    {"sink_size": 3, "epoch": "sink", "optimizer": "adamw", "schedule": "step", "accumulate": 1, "clip": "value"},
    {"sink_size": 100, "epoch": "sink", "optimizer": "foreach", "schedule": "onecycle", "accumulate": 4, "clip": None},
    {"sink_size": 1, "epoch": "sink", "optimizer": "fused", "schedule": "none", "accumulate": 1, "clip": "norm"},
]


@pytest.mark.narrow(13)
@pytest.mark.parametrize("case", INDUCTOR_CASES, ids=name)
def test_inductor_is_plain_lightning(case):
    plain, sink = run_case(case, "inductor")
    assert sink.engine == "inductor", sink.warned
    assert_parity(plain, sink)


def test_the_optimizers_flags_are_put_back():
    _, sink = run_case({**CASES[0], "sink_size": -1, "optimizer": "fused", "accumulate": 1}, "traced")
    assert sink.trainer.optimizers[0].param_groups[0]["fused"] is True
    assert type(sink.trainer.optimizers[0].param_groups[0]["lr"]) is float
