"""Places that hold tensors: found by name, read and filled where they are now."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.state.slots import Parts, Snapshot, find_slots


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(()))
        self.plain = torch.zeros(3)
        self.pair = (torch.zeros(1), 5)
        self.list = [torch.zeros(1), None]
        self.table = {"a": torch.zeros(1), 3: "x"}


@pytest.fixture
def training():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    net.layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return net, optimizer


def test_every_place_has_a_slot(training):
    net, optimizer = training
    found = set(find_slots(Parts(net, [optimizer])))
    assert {"layer.weight", "count", "plain", "pair[0]", "list[0]", "table['a']", "gradient of layer.weight"} <= found
    assert "optimizer 0 state 'exp_avg' of layer.weight" in found
    assert not {"pair[1]", "list[1]", "table[3]"} & found


def test_a_slot_reads_and_fills_its_place(training):
    net, optimizer = training
    slots = find_slots(Parts(net, [optimizer]))
    replaceable = [name for name in slots if name not in ("layer.weight", "layer.bias")]
    for name in replaceable:
        new = slots[name].get() * 0 + 7
        slots[name].set(new)
        assert slots[name].get() is new
    assert float(net.pair[0]) == float(net.list[0]) == float(net.table["a"]) == 7
    assert net.pair[1] == 5
    assert optimizer.state[net.layer.weight]["step"] == 7


def test_a_slot_follows_a_container_that_is_replaced(training):
    net, optimizer = training
    slots = find_slots(Parts(net, [optimizer]))
    net.list, net.table, net.pair = [torch.ones(1)], {"a": torch.ones(1)}, (torch.ones(1),)
    assert [float(slots[name].get()) for name in ("list[0]", "table['a']", "pair[0]")] == [1, 1, 1]
    slots["list[0]"].set(torch.full((1,), 2.0))
    assert float(net.list[0]) == 2


def test_a_slot_is_empty_where_its_place_is_gone(training):
    net, optimizer = training
    slots = find_slots(Parts(net, [optimizer]))
    net.list, net.table, net.pair, net.plain = [], None, 3, None
    optimizer.state.clear()
    names = ["list[0]", "table['a']", "pair[0]", "plain", "optimizer 0 state 'exp_avg' of layer.weight"]
    assert [slots[name].get() for name in names] == [None] * 5


def test_gradients_of_parameters_that_only_an_optimizer_knows():
    loose = nn.Parameter(torch.ones(2))
    slots = find_slots(Parts(nn.Linear(1, 1), [torch.optim.SGD([loose], 0.1)]))
    assert "gradient of optimizer 0 group 0 parameter 0" in slots


def test_going_back_puts_every_tensor_where_it_was(training):
    net, optimizer = training
    before = Snapshot(Parts(net, [optimizer]))
    held = dict(before.tensors)
    net.layer.weight.grad = None
    net.plain, net.list[0], net.pair = torch.ones(3), torch.ones(1), (torch.ones(1), 5)
    optimizer.state[net.layer.weight]["extra"] = torch.ones(1)
    before.restore()
    after = Snapshot(Parts(net, [optimizer]))
    assert after.tensors.keys() == held.keys()
    assert all(after.tensors[name] is tensor for name, tensor in held.items())


def test_state_made_since_is_forgotten():
    net = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    before = Snapshot(Parts(net, [optimizer]))
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before.restore()
    assert not optimizer.state
    assert net.weight.grad is None


def test_optimizer_state_is_told_apart(training):
    net, optimizer = training
    snapshot = Snapshot(Parts(net, [optimizer]))
    weight = net.layer.weight
    assert snapshot.keeper_of(optimizer.state[weight]["step"]) == (optimizer, (0, id(weight), "step"))
    assert snapshot.keeper_of(net.layer.weight) is None
