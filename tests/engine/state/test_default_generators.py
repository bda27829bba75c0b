"""The generators of host and device are kept and put back together."""

import torch

from fake_device import DEVICE
from lightning_sink.engine.state.default_generators import Generators


def test_the_hosts_alone():
    generators = Generators(torch.device("cpu"))
    state = generators.state()
    assert not generators.drew_since(state)
    first = torch.rand(3)
    assert generators.drew_since(state)
    generators.restore(state)
    assert torch.equal(torch.rand(3), first)


def test_the_devices_too(fake):
    generators = Generators(torch.device(DEVICE))
    for place, other in ((DEVICE, "cpu"), ("cpu", DEVICE)):
        state = generators.state()
        first = torch.rand(3, device=place)
        assert generators.drew_since(state)
        torch.rand(3, device=other)
        generators.restore(state)
        assert not generators.drew_since(state)
        assert torch.equal(torch.rand(3, device=place).cpu(), first.cpu())


def test_looking_draws_nothing(fake):
    generators = Generators(torch.device(DEVICE))
    torch.manual_seed(3)
    expected = torch.rand(2, device=DEVICE).cpu(), torch.rand(2)
    torch.manual_seed(3)
    generators.restore(generators.state())
    found = torch.rand(2, device=DEVICE).cpu(), torch.rand(2)
    assert all(map(torch.equal, expected, found))
