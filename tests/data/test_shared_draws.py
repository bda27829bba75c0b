"""Generators that code names are found, however much there is beside them."""

import random

import pytest
import torch
from torch import nn

from lightning_sink.data.shared_draws import drawn_from, methods_of


class Neuron(nn.Module):
    """Knows all others, as snntorch's do."""

    instances = []

    def __init__(self, generator=None):
        super().__init__()
        self.state, self.lin = {"generator": generator}, nn.Linear(2, 2)
        self.instances.append(self)

    def forward(self, x):
        return self.lin(x)

    def draw(self):
        return self.state["generator"]

    def reset(self):
        for each in self.instances:
            each.state = {}

    def detach(self):
        for each in self.instances:
            each.state = {key: value for key, value in each.state.items() if self.instances}


def test_what_leads_to_each_other_many_times_is_gone_through_once():
    generator = torch.Generator()
    neurons = [Neuron(), *(Neuron() for _ in range(30)), Neuron(generator)]
    found = [*drawn_from(method for neuron in neurons for method in methods_of(neuron))]
    Neuron.instances.clear()
    assert {*map(id, found)} == {id(generator)}


def test_generators_in_closures_and_attributes_are_found():
    inner, held = random.Random(1), torch.Generator()

    class Owner:
        def __init__(self):
            self.generator = held

        def draws(self):
            return self.generator.initial_seed()

        def draws_not(self):
            return self

    owner = Owner()
    assert [*drawn_from([lambda: inner.random()])] == [inner]
    assert [*drawn_from([owner.draws])] == [held]
    assert not [*drawn_from([lambda: 1])]


class Noise:
    def __init__(self, generator):
        self.generator = generator

    def __call__(self, x):
        return x + torch.randn(x.shape, generator=self.generator)


class Augment:
    def __init__(self, generator):
        self.noise = Noise(generator)

    def __call__(self, x):
        return self.noise(x)


class Layer(nn.Module):
    def forward(self, x):
        return x


class Step(nn.Module):
    def __init__(self, generator, layers):
        super().__init__()
        self.layers, self.augment = nn.ModuleList(Layer() for _ in range(layers)), Augment(generator)

    def forward(self, x):
        return self.augment(self.layers(x))


@pytest.mark.parametrize("layers", [0, 1, 5, 20, 100])
def test_methods_that_are_gone_are_taken_for_no_others(layers):
    for _ in range(20):
        step = Step(generator := torch.Generator(), layers)
        found = [*drawn_from(method for part in step.modules() for method in methods_of(part))]
        assert any(item is generator for item in found)
