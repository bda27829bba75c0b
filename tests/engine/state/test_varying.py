"""Attributes that change between sinks: those that no step uses cost nothing, and any use of another one counts."""

import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy as duplicate
from decimal import Decimal
from operator import attrgetter, methodcaller

import numpy as np
import pytest
import torch
from loop import Training, batches, both, loss_of, mlp, sgd
from torch import nn
from torch.distributions import Normal

import positions
from lightning_sink.engine.state.attribute_watch import AttributeWatch
from lightning_sink.engine.state.holders import class_state
from lightning_sink.engine.state.varying import Varying

SINKS = [batches(10) for _ in range(6)]
ATTRIBUTES = vars
UNDISTURBED = 57
"""Steps that programs run where nothing changes: the first makes the optimizer's state, and two more are recorded."""


class Net(nn.Module):
    """What a step may ask of the module that it trains."""

    default = 1.0

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.begun, self.scale = 0.0, 1.0
        self.epochs, self.best, self.scales, self.kept = [], {}, [], []
        self.flag = True

    def forward(self, x):
        return self.net(x)

    def scaled(self):
        return self.scale

    @property
    def same(self):
        return self.scale

    @property
    def twice(self):
        return self.scale


def training(change, use):
    """A step whose loss depends on `use`, of a module that `change` changes before each sink."""

    def make():
        module = Net()
        return Training(
            module,
            sgd(module),
            lambda batch, index: (1 + use(module, index)) * loss_of(module, batch),
            between=lambda training, sink: change(module, sink),
        )

    return make


def change_all(module, sink):
    module.begun = sink * 1.5
    module.epochs.append(sink)
    module.best["loss"] = 1 / (1 + sink)
    module.name = f"sink {sink}"


def test_what_no_step_uses_costs_two_steps_once():
    unused = training(change_all, lambda module, index: 0.0)
    _, undisturbed = both(training(lambda module, sink: None, lambda module, index: 0.0), SINKS, verify=0)
    _, sink = both(unused, SINKS, verify=0)
    assert sink.hazards == []
    assert undisturbed.compiled == UNDISTURBED
    assert sink.compiled == UNDISTURBED - 2  # recorded in the second sink, and in none after


@pytest.mark.parametrize("verify", [0, 2])
def test_control_what_is_not_watched_makes_a_difference(verify, monkeypatch):
    monkeypatch.setattr(Varying, "count", lambda self, name: None)
    with pytest.raises(AssertionError, match="loss"):
        both(training(rescale, USES["attrgetter"]), SINKS, verify=verify)


def rescale(module, sink):
    module.scale = 1.0 + sink


def from_a_method(module, index):
    return module.scaled()


def past_the_attribute(module, index):
    return vars(module)["scale"]


def by_a_name_in_a_constant(module, index):
    return getattr(module, "__dict__")["scale"]  # noqa: B009


def with_a_default(module, index):
    return getattr(module, "scale", 1.0)


def of_the_json(module, index):
    return float(len(json.dumps(module.scale)))


def of_the_pickle(module, index):
    state = pickle.loads(pickle.dumps(module))
    return state.scale


def by_a_variable_that_goes_elsewhere(module, index):
    scale = module.scale
    return scale * 0.5 + len(repr(scale))


def by_another_name(module, index):
    return ATTRIBUTES(module)["scale"]


def caught(module, index):
    try:
        return float(Decimal(module.scale))
    except TypeError:
        return 3.0


class Weight:
    def __mul__(self, other):
        return 2.0 if type(other) in (int, float) else 3.0

    __lt__ = __mul__


class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        factor = 2.0 if any(type(arg) is float for arg in args) else 1.0
        out = super().__torch_function__(func, types, args, kwargs or {})
        told = func in (torch.Tensor.mul, torch.Tensor.__rmul__, torch.Tensor.gt)
        return (factor * out.as_subclass(torch.Tensor)).as_subclass(cls) if told else out


def of_numpy(module, index):
    half, fifth = np.float64(0.5), np.float64(0.2)
    return float((module.scale > half) + (module.scale > fifth))


def of_a_subclass(module, index):
    ones = torch.ones(3).as_subclass(Told)
    return (ones * module.scale).as_subclass(torch.Tensor).mean()


def beside_a_subclass(module, index):
    ones = torch.ones(3).as_subclass(Told)
    return (module.scale * ones).as_subclass(torch.Tensor).mean()


def compared_with_a_subclass(module, index):
    ones = torch.ones(3).as_subclass(Told)
    return (module.scale < ones).as_subclass(torch.Tensor).float().mean()


def lengthens(module, index):
    kept = [0.25]
    same = kept
    kept *= int(module.scale)
    return sum(same)


def keeps(module, index):
    module.last = module.scale
    return module.last


def in_one_step_of_ten(module, index):
    if index % 10 == 9:
        return module.scale
    return 0.0


def by_a_variable(module, index):
    scale = module.scale
    rest = 1.0 - scale
    return rest / 2 * torch.ones(()) + scale * torch.ones(())


def by_a_variable_that_is_collected(module, index):
    scale = module.scale
    module.scales.append(scale)
    return scale * torch.ones(()) if scale > 0.5 else 0.0


def by_one_that_is_returned_beside(module, index):
    weight, scale = weighted(module)
    module.scales.append(scale)
    return weight


def weighted(module):
    scale = module.scale
    return scale * torch.ones(()), scale


class Sums:
    def __add__(self, other):
        return 1.0 if type(other) is float else 2.0


SUMS = Sums()


def added_to_an_object(module, index):
    scale = module.scale
    module.scales.append(SUMS + scale)
    return scale * torch.ones(())


def added_to_an_object_at_once(module, index):
    module.scales.append(SUMS + module.scale)
    return 0.0


def collected_by_two(module, index):
    by, scale = module.scales, module.scale
    by.append(scale)
    by = Kept(module)
    by.append(scale)
    return scale * torch.ones(())


class Kept:
    def __init__(self, module):
        self.module = module

    def append(self, value):
        self.module.kept.append(value if type(value) is float else -1.0)


def half_of(scale):
    return scale / 2 * torch.ones(())


def with_tensors(module, index):
    ones = torch.ones(3)
    ones *= module.scale
    return (ones - module.scale).mean() + (ones < module.scale).sum() / 3 + (ones / module.scale).sum()


COMPUTED_WITH = {
    "attribute": lambda module, index: module.scale,
    "method": from_a_method,
    "a variable": by_a_variable,
    "a variable that is collected, too": by_a_variable_that_is_collected,
    "a variable that is returned, too": by_one_that_is_returned_beside,
    "an inverse": lambda module, index: 1 / module.scale,
    "the rest": lambda module, index: (1 - module.scale) * torch.ones(()),
    "whether it is there": lambda module, index: module.scale * torch.ones(()) if module.scale is not None else 0.0,
    "with the batch's index": lambda module, index: 0.01 * module.scale * index,
    "with a tensor": with_tensors,
    "property": lambda module, index: 2 * module.twice,
    "with a default": with_a_default,
    "a made-up name": lambda module, index: getattr(module, "".join(["sc", "ale"])),
    "a cosine": lambda module, index: math.cos(module.scale),
    "a power": lambda module, index: 0.9**module.scale,
    "floored": lambda module, index: 1 // module.scale + module.scale // 0.1 / 100,
    "a tensor": lambda module, index: torch.tensor(module.scale),
    "put into an attribute that steps set": keeps,
    "a function's argument": lambda module, index: half_of(module.scale),
    "beside what a call gives": lambda module, index: torch.ones(()).mean() * module.scale,
}
DECIDE = {
    "comparison": lambda module, index: 1.0 if module.scale > 3 else 0.0,
    "minimum": lambda module, index: min(module.scale, 2.5),
    "truth": lambda module, index: 1.0 if module.scale - 2 else 0.5,
    "in one step of ten": in_one_step_of_ten,
}
NEEDED_PLAINLY = {
    "a variable that goes elsewhere": by_a_variable_that_goes_elsewhere,
    "attrgetter": lambda module, index: attrgetter("scale")(module),
    "methodcaller": lambda module, index: methodcaller("__getattribute__", "scale")(module),
    "object's own": lambda module, index: object.__getattribute__(module, "scale"),
    "hasattr": lambda module, index: float(hasattr(module, "scale")) + with_a_default(module, index),
    "past the attribute": past_the_attribute,
    "by another name": by_another_name,
    "a name in a constant": by_a_name_in_a_constant,
    "a copy": lambda module, index: duplicate(module).scale,
    "json": of_the_json,
    "pickle": of_the_pickle,
    "itself": lambda module, index: 1.0 if module.scale is module.same else 0.0,
    "a list made longer": lengthens,
    "an object of the user's": lambda module, index: Weight() * module.scale,
    "a comparison with such": lambda module, index: Weight() < module.scale,
    "a sum of an object's": added_to_an_object,
    "a sum of such at once": added_to_an_object_at_once,
    "a collector that is another later": collected_by_two,
    "a number of numpy's": of_numpy,
    "an array": lambda module, index: float((module.scale * np.arange(3)).sum()),
    "a subclass": of_a_subclass,
    "beside a subclass": beside_a_subclass,
    "compared with a subclass": compared_with_a_subclass,
    "type": lambda module, index: 1.0 * module.scale if type(module.scale) is float else 3.0,
    "its attributes": lambda module, index: 1.0 if hasattr(module.scale, "__torch_function__") else 2 * module.scale,
    "an error": caught,
    "float()": lambda module, index: float(module.scale),
    "int()": lambda module, index: int(module.scale),
    "round": lambda module, index: round(module.scale / 2),
    "a bound": lambda module, index: torch.ones(3).clamp(max=module.scale / 2).mean(),
    "a distribution": lambda module, index: Normal(torch.zeros(3), module.scale).log_prob(torch.ones(3)).mean(),
    "text": lambda module, index: float(len(f"{module.scale}")),
    "dropout": lambda module, index: nn.functional.dropout(torch.ones(4), module.scale / 10).mean(),
    "a key": lambda module, index: {module.scale: 0.5}[module.scale],
}
USES = COMPUTED_WITH | DECIDE | NEEDED_PLAINLY


@pytest.mark.narrow(13)
@pytest.mark.parametrize("use", USES)
def test_what_a_step_uses_counts(use):
    _, sink = both(training(rescale, USES[use]), SINKS, verify=0)
    if use in NEEDED_PLAINLY or not positions.KNOWN:
        assert sink.compiled <= UNDISTURBED - 10  # two steps in each sink are recorded
    else:
        # Recorded in the second sink, which has found another value; and for each way through the step.
        assert UNDISTURBED - sink.compiled == 2 if use in COMPUTED_WITH else 4 <= UNDISTURBED - sink.compiled <= 5


def trained(use):
    """The modules of a plain training and of one on programs, between whose sinks the scale has changed."""
    modules = []

    def rescaled(module, sink):
        modules.append(module)
        module.scale = 1.0 + sink

    both(training(rescaled, use), SINKS, verify=0)
    return modules[0], modules[-1]


@positions.needed
@pytest.mark.parametrize("use", [by_a_variable_that_is_collected, by_one_that_is_returned_beside])
def test_what_is_collected_beside_is_the_number_itself(use):
    plain, sink = (module.scales for module in trained(use))
    assert plain == [1.0 + number for number in range(6) for _ in range(10)]
    assert sink == plain
    assert {*map(type, sink)} == {float}


@pytest.mark.parametrize("use", [added_to_an_object, added_to_an_object_at_once, collected_by_two])
def test_what_others_make_of_it_is_made_of_the_number_itself(use):
    plain, sink = trained(use)
    assert plain.scales
    assert (sink.scales, sink.kept) == (plain.scales, plain.kept)


@pytest.mark.parametrize("values", [(1.0, 2.0, 3), (1.0, 2, 3.0), (0.0, -0.0, 0.0), (1.0, None, 2.0), (True, 1.0, 0.5)])
def test_values_of_several_types(values):
    def change(module, sink):
        module.scale = values[sink % len(values)]

    def use(module, index):
        scale = module.scale
        return math.copysign(0.5, scale) + type_of(scale) if scale is not None else 0.25

    both(training(change, use), SINKS, verify=0)


def type_of(value):
    return {int: 0.125, bool: 0.25}.get(value.__class__, 0.0)


@pytest.mark.parametrize("at", [0, 3])
def test_whole_numbers(at):
    """Those that are large float64 has not, and tensors of whole numbers are computed with otherwise: they count."""

    def change(module, sink):
        module.scale = sink if sink <= at else 2**53 + 1 + 2 * sink

    _, sink = both(training(change, lambda module, index: module.scale % 7 / 7), SINKS, verify=0)
    assert sink.compiled


@positions.needed
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_no_numbers(value):
    def change(module, sink):
        module.scale = 1.0 + sink if sink != 3 else value

    use = lambda module, index: (module.scale * torch.tensor(2.0)).nan_to_num(posinf=0.5)  # noqa: E731
    _, sink = both(training(change, use), SINKS, verify=0)
    assert sink.compiled == UNDISTURBED - 2


def test_what_a_step_reads_sets_and_reads_again():
    def change(module, sink):
        module.begun = sink
        if sink in (1, 3):
            module.scale = 1.0

    def use(module, index):
        module.scale = 0.9 * module.scale
        return module.scale

    both(training(change, use), SINKS, verify=0)


def test_a_thread_of_the_users_gets_the_number_itself():
    met = []

    def use(module, index):
        with ThreadPoolExecutor(1) as pool:
            scale = pool.submit(lambda: module.scale).result()
        met.append(type(scale))
        return scale

    both(training(rescale, use), SINKS, verify=0)
    assert {*met} == {float}


class Base(Net):
    shared = 1.0


class Own(Base):
    shared = 3.0

    def of_base(self):
        return super().shared


def test_what_a_class_is_asked_for_past_another_one():
    def make():
        first, other = Base(), Own()
        module = nn.ModuleList([first, other])

        def change(training, sink):
            first.shared, other.shared = 1.5 + sink, 2.5 + sink

        def step(batch, index):
            return (first.shared * loss_of(first, batch)) + other.of_base() * loss_of(other, batch)

        return Training(module, sgd(module), step, between=change)

    both(make, SINKS, verify=0)


def test_two_objects_of_one_class():
    def make():
        first, other = Net(), Net()
        module = nn.ModuleList([first, other])
        return Training(
            module,
            sgd(module),
            lambda batch, index: loss_of(first, batch) * first.scale + loss_of(other, batch),
            between=lambda training, sink: (rescale(first, sink), rescale(other, 2 * sink)),
        )

    _, sink = both(make, SINKS, verify=0)
    assert sink.compiled


def test_what_a_step_uses_from_some_sink_on_counts():
    def change(module, sink):
        module.scale, module.uses = 1.0 + sink, sink > 2

    both(training(change, lambda module, index: module.scale if module.uses else 0.0), SINKS, verify=0)


def test_another_kind_of_step_may_use_it():
    sinks = [[*batches(8), *batches(8, size=6)] for _ in range(6)]

    def make():
        module = Net()
        return Training(
            module,
            sgd(module),
            lambda batch, index: loss_of(module, batch) * (1 + (module.scale if len(batch[0]) == 6 else 0.0)),
            between=lambda training, sink: rescale(module, sink),
        )

    _, sink = both(make, sinks, verify=0)
    assert sink.compiled


def test_what_a_step_sets_to_what_it_is_counts():
    """Or it would stay what it was set to between sinks."""

    def change(module, sink):
        module.flag = False

    def use(module, index):
        module.flag = True
        return 0.0

    plain, sink = both(training(change, use), SINKS, verify=0)
    assert [outcome.training.module.flag for outcome in (plain, sink)] == [True, True]


def test_what_a_step_deletes_counts():
    def change(module, sink):
        module.late = 1.0 + sink

    def use(module, index):
        if hasattr(module, "late"):
            scale = module.late
            del module.late
            return scale
        return 0.0

    both(training(change, use), SINKS, verify=0)


@pytest.mark.parametrize("first", [1, 2, 4])
def test_what_comes_later_or_goes_counts(first):
    def change(module, sink):
        module.begun = sink
        if sink >= first and sink % 2:
            module.late = 1.0 + sink
        elif hasattr(module, "late"):
            del module.late

    both(training(change, lambda module, index: module.late if hasattr(module, "late") else 0.0), SINKS, verify=0)


def test_two_names_of_one_list():
    def make():
        module = Net()
        module.kept = module.epochs
        return Training(
            module,
            sgd(module),
            lambda batch, index: loss_of(module, batch) * (1.0 + len(module.kept)),
            between=lambda training, sink: module.epochs.append(sink),
        )

    both(make, SINKS, verify=0)


def test_a_tensor_that_is_kept_under_two_names():
    """In a list that no step uses, and in an attribute that each does."""

    def change(module, sink):
        module.mean = torch.full((), 1.0 + sink)
        module.epochs = [module.mean] if sink % 2 else [0.5]

    both(training(change, lambda module, index: module.mean), SINKS, verify=0)


def test_the_default_of_a_class():
    def change(module, sink):
        module.begun = sink
        if sink > 2:
            module.default = 2.0 + sink

    both(training(change, lambda module, index: module.default), SINKS, verify=0)
    assert vars(Net)["default"] == 1.0
    assert "begun" not in vars(Net)


def test_what_a_step_sets_on_the_class():
    def make():
        Net.shared = 1.0
        module = Net()

        def step(batch, index):
            type(module).shared = 0.99 * type(module).shared
            return loss_of(module, batch) * module.shared

        def change(training, sink):
            if sink % 3:
                module.shared = 1.0 + sink
            elif "shared" in vars(module):
                del module.shared

        return Training(module, sgd(module), step, between=change, extra=lambda: {"shared": torch.tensor(Net.shared)})

    both(make, SINKS, verify=0)
    del Net.shared


def test_who_looks_at_the_class():
    def use(module, index):
        return float(len([name for name in dir(type(module)) if name in ("begun", "scale")]))

    both(training(change_all, use), SINKS, verify=0)


def test_another_thread_that_records_sees_the_class_as_it_is():
    module = Net()
    before = class_state(Net)
    watch = AttributeWatch(Net, "begun")
    try:
        assert class_state(Net) == before
    finally:
        watch.end()
    assert module.begun == 0.0


def test_what_steps_add_to_and_what_is_set_between_sinks():
    """A sum is watched in another way, on the same class."""

    def make():
        module = Net()
        module.seen = 0

        def step(batch, index):
            module.seen += len(batch[0])
            return loss_of(module, batch)

        def change(training, sink):
            module.begun = sink
            if sink == 3:
                module.seen = 0

        return Training(module, sgd(module), step, between=change, extra=lambda: {"seen": torch.tensor(module.seen)})

    _, sink = both(make, SINKS, verify=0)
    assert sink.compiled
