"""Schedules of the learning rate: all of torch's, at both intervals."""

from functools import partial

import torch
from torch import optim
from torch.optim import lr_scheduler as schedules

from gallery.case import add
from gallery.optimizers import Optimized


def sequence(optimizer):
    first, second = schedules.LinearLR(optimizer, 0.1, total_iters=3), schedules.ExponentialLR(optimizer, 0.9)
    return schedules.SequentialLR(optimizer, [first, second], [3])


def chain(optimizer):
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.5, 7), schedules.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULERS = {
    "LambdaLR": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda optimizer: schedules.MultiplicativeLR(optimizer, lambda step: 0.95),
    "StepLR": lambda optimizer: schedules.StepLR(optimizer, 5, gamma=0.5),
    "MultiStepLR": lambda optimizer: schedules.MultiStepLR(optimizer, [1, 9, 22], gamma=0.3),
    "ConstantLR": lambda optimizer: schedules.ConstantLR(optimizer, 0.1, 7),
    "LinearLR": lambda optimizer: schedules.LinearLR(optimizer, 0.1, total_iters=20),
    "ExponentialLR": lambda optimizer: schedules.ExponentialLR(optimizer, 0.9),
    "SequentialLR": sequence,
    "PolynomialLR": lambda optimizer: schedules.PolynomialLR(optimizer, 20, power=2.0),
    "CosineAnnealingLR": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 34),
    "ChainedScheduler": chain,
    "ReduceLROnPlateau": lambda optimizer: schedules.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0),
    "CyclicLR": lambda optimizer: schedules.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
    "CosineAnnealingWarmRestarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 6, 2),
    "OneCycleLR": lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=35),
    "SWALR": lambda optimizer: optim.swa_utils.SWALR(optimizer, 0.01, anneal_epochs=10),
}
WALKED = [
    name
    for name, kind in {**vars(schedules), **vars(optim.swa_utils)}.items()
    if isinstance(kind, type)
    and issubclass(kind, schedules.LRScheduler)
    and kind not in (schedules.LRScheduler, schedules._LRScheduler)
]
assert set(SCHEDULERS) == set(WALKED), "a scheduler is missing here"

descent, adam = partial(optim.SGD, lr=0.05, momentum=0.9), partial(optim.Adam, lr=0.01)
for name, make in SCHEDULERS.items():
    reads_metric = {"monitor": "loss"} if name == "ReduceLROnPlateau" else {}
    for interval in ("step", "epoch"):
        eager = "with interval 'step' reads a metric" if reads_metric and interval == "step" else None
        add(
            f"{name} at each {interval}",
            partial(Optimized, descent, make, interval=interval, **reads_metric),
            eager=eager,
        )
add("OneCycleLR cycles the betas of Adam", partial(Optimized, adam, SCHEDULERS["OneCycleLR"], interval="step"))
add("StepLR every third step", partial(Optimized, adam, SCHEDULERS["StepLR"], interval="step", frequency=3))


def with_a_tensor(parameters):
    return optim.Adam(parameters, lr=torch.tensor(0.01))


for name in ("ExponentialLR", "OneCycleLR"):
    make = partial(Optimized, with_a_tensor, SCHEDULERS[name], interval="step")
    add(f"a rate in a tensor, changed by {name}", make)
add("a rate that is an integer", partial(Optimized, partial(optim.SGD, lr=1), SCHEDULERS["StepLR"], interval="step"))
rising = partial(schedules.LambdaLR, lr_lambda=lambda step: step / 40)
add("a rate that is zero at first", partial(Optimized, adam, rising, interval="step"))
