"""What objects hold: changes have names, and a look that remembers finds what a new one would."""

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_sink.engine.state.holders import python_state
from lightning_sink.engine.state.slots import Parts


def changed(change, module=None, optimizer=None):
    module = module or nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizers = [optimizer or torch.optim.SGD(module.parameters(), 0.1)]
    before = python_state(Parts(module, optimizers))
    change(module, optimizers[0])
    after = python_state(Parts(module, optimizers))
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


CHANGES = {
    "1.__class__": lambda m, o: m.__setitem__(1, nn.Tanh()),
    "0.in_features": lambda m, o: setattr(m[0], "in_features", 3),
    "0._forward_hooks": lambda m, o: m[0].register_forward_hook(print),
    "hooks of 0.weight": lambda m, o: m[0].weight.register_hook(print),
    "optimizer 0._optimizer_step_post_hooks": lambda m, o: o.register_step_post_hook(print),
    "optimizer 0.calls": lambda m, o: setattr(o, "calls", 1),
    "optimizer 0 state 0": lambda m, o: o.state[m[0].weight].update(calls=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_have_the_names_that_users_know(name):
    assert name in changed(CHANGES[name])


def test_control_training_a_step_changes_nothing():
    def step(module, optimizer):
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert changed(step) == []


def test_ignored_are_attributes_of_the_root_only_and_no_hooks():
    module = nn.Sequential(nn.Linear(2, 2))
    module.noise = module[0].noise = 1
    state = python_state(Parts(module, ignore=frozenset(["noise", "_forward_hooks"])))
    assert "noise" not in state
    assert {"0.noise", "_forward_hooks"} <= state.keys()


OPERATIONS = {
    "a number": lambda m: setattr(m, "scale", m.scale + 1),
    "an equal number": lambda m: setattr(m, "ratio", float(str(m.ratio))),
    "a number becomes another kind": lambda m: setattr(m, "scale", float(m.scale)),
    "a new name": lambda m: setattr(m, f"new{len(vars(m))}", 1),
    "another name in its place": lambda m: vars(m).update(other=vars(m).pop("other", 0), renamed=1),
    "a name goes": lambda m: vars(m).pop("renamed", None),
    "an empty list is filled": lambda m: m.rows.append(len(m.rows)),
    "it is emptied": lambda m: m.rows.clear(),
    "another list": lambda m: setattr(m, "rows", []),
    "an item deep down": lambda m: m.table["a"].append(1),
    "an empty dictionary is filled": lambda m: m.names.update(a=len(m.names)),
    "a tensor": lambda m: setattr(m, "mask", torch.ones(2)),
    "a tensor goes": lambda m: setattr(m, "mask", None),
    "an attribute of a part": lambda m: setattr(m[0], "in_features", m[0].in_features + 1),
    "another part": lambda m: m.__setitem__(1, nn.Tanh()),
    "an attribute on an empty container": lambda m: vars(m.ordered).update(flag=len(vars(m.ordered))),
    "another name for one left out": lambda m: vars(m).update({f"new{len(vars(m))}": vars(m).pop("quiet", 0)}),
    "a hook": lambda m: m[0].register_forward_hook(print),
    "hooks go": lambda m: m[0]._forward_hooks.clear(),
    "what is left out": lambda m: setattr(m, "noise", m.noise + 1),
    "an object": lambda m: vars(m.options).update(depth=vars(m.options).get("depth", 0) + 1),
    "nothing": lambda m: None,
}


class Options:
    pass


@given(st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=8))
def test_a_look_finds_what_has_changed_and_nothing_else(operations):
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    module.scale, module.ratio, module.noise, module.rows, module.names = 1, 0.5, 0, [], {}
    module.ordered, module.quiet = OrderedDict(), 1
    module.table, module.mask, module.other, module.options = {"a": []}, None, 1, Options()
    parts = Parts(module, others=[Options()], ignore=frozenset(["noise", "quiet"]))
    before = python_state(parts)
    assert before == python_state(parts)
    for operation in operations:
        OPERATIONS[operation](module)
        found = python_state(parts)
        assert found == python_state(parts)
        if operation in ("a number", "an empty list is filled", "an item deep down", "a hook", "an object"):
            assert found != before, "the control: such a change is seen at all"
        before = found


def test_what_was_seen_is_not_kept():
    module = nn.Sequential(nn.Linear(2, 2))
    module.kept = torch.ones(2, requires_grad=True).exp()
    state = python_state(Parts(module))
    gone = [weakref.ref(module[0]), weakref.ref(module.kept)]
    module[0], module.kept = nn.Linear(2, 2), None
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert state != python_state(Parts(module))


class Ambiguous:
    """As a table of pandas's, which is neither true nor false."""

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")


def test_an_attribute_is_not_asked_whether_it_is_true():
    module = nn.Linear(2, 2)
    module.table = Ambiguous()
    assert "table" in python_state(Parts(module))
