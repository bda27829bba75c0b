"""What steps on a device have of the host's tensors, and when that is brought over."""

import pytest
import torch

from fake_device import DEVICE
from fake_graphs import FakeGraphs
from lightning_sink.engine.device import counterparts
from lightning_sink.engine.device.counterparts import Counterparts
from lightning_sink.engine.device.placement import Placement

pytestmark = pytest.mark.usefixtures("fake")


class CountingGraphs(FakeGraphs):
    """Counts what is brought over."""

    brought_over = 0

    def bring(self, tensors):
        self.brought_over += len(tensors)
        return super().bring(tensors)


class Steps:
    """Steps that take some of the host's tensors, and may write to the first ones."""

    def __init__(self, *tensors, written=0):
        self.graphs = CountingGraphs(DEVICE)
        inputs, writes = frozenset(range(len(tensors))), frozenset(range(written))
        self.counterparts = Counterparts(self.graphs, Placement(inputs, written=writes))
        self.tensors = [*tensors]
        self.there = self.counterparts.instead(self.tensors)
        self.graphs.brought_over = 0

    def launch(self):
        """Begins steps; returns what they see."""
        self.counterparts.launch(self.tensors)
        return [tensor.cpu() for tensor in self.there]

    def run(self):
        """Makes steps, from beginning to end; returns what they saw."""
        seen = self.launch()
        for number in self.counterparts._placement.written:
            self.there[number].add_(1)
        self.counterparts.bring_back(self.tensors, ())
        return seen


def same_bits(one, other):
    return torch.equal(one.reshape(1).view(torch.uint8), other.reshape(1).view(torch.uint8))


@pytest.mark.parametrize("written", [0, 2])
def test_what_nobody_but_the_steps_has_changed_is_brought_once(written):
    steps = Steps(torch.tensor(1.5), torch.tensor(2.5), torch.tensor([1, 2]), written=written)
    for count in range(3):
        seen = steps.run()
        assert float(seen[0]) == 1.5 + count * bool(written)
    assert steps.graphs.brought_over == 3
    assert float(steps.tensors[1]) == 2.5 + 3 * bool(written)


VALUES = [(0.0, -0.0), (float("nan"), 1.0), (1.0, float("nan")), (1.0, 1.0 + 2**-23), (3.0, 4.0)]


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize(("before", "after"), VALUES)
@pytest.mark.parametrize("how", ["in place", "data", "numpy", "another tensor"])
def test_what_has_changed_on_the_host_is_brought_bit_by_bit(before, after, how, written):
    steps = Steps(torch.tensor(before), torch.tensor(7.0), written=written)
    steps.run()
    ways = {
        "in place": lambda tensor: tensor.fill_(after),
        "data": lambda tensor: tensor.data.fill_(after),
        "numpy": lambda tensor: tensor.numpy().fill(after),
        "another tensor": lambda tensor: steps.tensors.__setitem__(0, torch.tensor(after)),
    }
    ways[how](steps.tensors[0])
    assert same_bits(steps.launch()[0], torch.tensor(after))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.float64, torch.complex64]
)
def test_every_type_is_compared(dtype):
    steps = Steps(torch.ones((), dtype=dtype), torch.ones((2, 0), dtype=dtype), torch.ones((2, 3), dtype=dtype).t())
    steps.run()
    steps.run()
    assert steps.graphs.brought_over == 3
    steps.tensors[2][0, 1] = 0
    assert bool(steps.launch()[2][0, 1] == 0)


def test_a_number_of_another_type_with_the_same_bits_is_another():
    one = torch.tensor(1.0)
    steps = Steps(one)
    steps.run()
    steps.tensors[0] = one.view(torch.int32)
    steps.launch()
    assert steps.graphs.brought_over == 2


def test_what_only_says_that_it_is_negated_is_taken_by_its_value():
    steps = Steps(torch.tensor([1 + 2j]).conj().imag[0])
    steps.run()
    assert float(steps.launch()[0]) == -2


def test_what_steps_wrote_that_were_given_up_is_not_taken_for_the_hosts():
    steps = Steps(torch.tensor(1.0), written=1)
    steps.launch()
    steps.there[0].add_(5)
    steps.counterparts.give_up()
    assert float(steps.launch()[0]) == 1


def test_another_shape_and_the_first_one_again():
    tensor = torch.tensor(1.0)
    steps = Steps(tensor)
    steps.run()
    for other in (torch.zeros(2), torch.tensor(7.0)):
        steps.there = steps.counterparts.instead([other])
    assert float(steps.launch()[0]) == 1


def test_a_tensor_that_is_on_the_device_by_now_is_brought_each_time():
    steps = Steps(torch.tensor(1.0))
    steps.run()
    steps.tensors[0] = torch.tensor(2.0).to(DEVICE)
    waited = len(steps.graphs.waited)
    assert float(steps.launch()[0]) == 2
    assert len(steps.graphs.waited) == waited
    for value in (3.0, 4.0):
        steps.tensors[0] = torch.tensor(value)
        assert float(steps.launch()[0]) == value


def test_what_was_brought_half_is_brought_again(monkeypatch):
    tensor = torch.tensor(1.0)
    steps, copy_all = Steps(tensor), counterparts.copy_all
    steps.run()

    def fail_behind(targets, sources):
        copy_all(targets, sources)
        raise MemoryError

    monkeypatch.setattr(counterparts, "copy_all", fail_behind)
    tensor.fill_(2)
    with pytest.raises(MemoryError):
        steps.launch()
    monkeypatch.setattr(counterparts, "copy_all", copy_all)
    tensor.fill_(1)
    assert float(steps.launch()[0]) == 1
