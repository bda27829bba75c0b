"""Two recordings that agree make a program; where they do not, the reason is named."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.compiler.inductor import compile_traced
from lightning_sink.engine.programs.binding import bind
from lightning_sink.engine.programs.bystanders import Asked
from lightning_sink.engine.programs.observation import Observation
from lightning_sink.engine.programs.program import Program
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.step import Result, Step
from lightning_sink.engine.tracing.record import Recorder
from lightning_sink.engine.watch import Hazard


def observed(module, function, *leaves):
    before = Snapshot(Parts(module))
    recorder = Recorder(Hyperparameters([]), Counts({}), before)
    output = recorder.span(lambda: function(*leaves), lambda: None)
    step = Step(leaves, list(leaves), "signature", "kind")
    return Observation(recorder, before, Snapshot(Parts(module)), step, Result(output, []))


def two(module, step, leaves=None):
    first, second = leaves or [(torch.randn(3),), (torch.randn(3),)]
    one, other = observed(module, step, *first), observed(module, step, *second)
    known = one.recording.hazards or other.recording.hazards
    bindings, hazards = ([], known) if known else bind(one, other, set())
    return other, hazards or bindings


def program(module, step, **options):
    observation, bindings = two(module, step, **options)
    assert not isinstance(bindings[0], Hazard), bindings
    slots = [*observation.filled, *observation.cleared, *(slot for each in bindings for slot in each.slots)]
    bystanders = Asked(observation.before).of_others({slot.name for slot in slots}, bindings, observation.recorder)
    return Program(observation, bindings, compile_traced(observation.recording), bystanders, [], [])


def run(made, *leaves):
    assert made.refresh()
    outputs = made.function(*made.arguments(list(leaves)))
    made.store(outputs)
    return made.result(outputs).output


def test_inputs_come_from_the_batch_from_what_stays_and_from_slots():
    module = nn.Module()
    module.weight, module.hidden = torch.full((3,), 2.0), torch.zeros(3)

    def step(x):
        module.hidden = module.hidden + x * module.weight
        return {"loss": module.hidden.sum(), "name": "constant"}

    made = program(module, step)
    module.hidden = torch.zeros(3)
    output = run(made, torch.ones(3))
    assert output == {"loss": torch.tensor(6.0), "name": "constant"}
    assert torch.equal(module.hidden, torch.full((3,), 2.0))
    assert run(made, torch.ones(3))["loss"] == 12


def other_text(module):
    module.calls += 1
    return module.calls


REASONS = {
    "do not do the same": lambda module, x: x * float(other_text(module)),
    "do not do the same: first": lambda module, x: sum([x] * other_text(module)),
    "made anew in each step": lambda module, x: x + torch.tensor([float(other_text(module))] * 3),
    "other Python values": lambda module, x: {"loss": x.sum(), "calls": other_text(module)},
    "and no attribute holds it": lambda module, x: module.kept.append(x * 2) or x + module.kept[-2],
}


@pytest.mark.parametrize("reason", REASONS)
def test_steps_that_make_no_program(reason):
    module = nn.Module()
    module.calls = 0
    module.kept = type("Kept", (list,), {})([torch.zeros(3)])
    observed(module, lambda x: REASONS[reason](module, x), torch.ones(3))
    _, outcome = two(module, lambda x: REASONS[reason](module, x))
    assert reason in outcome[0].what


def test_memory_shared_with_what_is_written_makes_no_program():
    module = nn.Module()
    module.total = torch.zeros(3)
    view = module.total[:2]

    def step(x):
        module.total.add_(x)
        return view.sum()

    assert "shares its memory" in two(module, step)[1][0].what


def test_a_step_that_replaces_data_by_what_is_held_elsewhere_makes_no_program():
    module = nn.Linear(3, 3)
    others = iter(torch.rand(4, 3, 3))

    def step(x):
        module.weight.data = next(others)
        return x.sum()

    assert "`.data` of weight" in two(module, step)[1][0].what


def test_a_program_sees_that_what_stayed_has_been_replaced():
    module = nn.Module()
    module.weight = torch.ones(3)
    made = program(module, lambda x: (x * module.weight).sum())
    assert made.refresh()
    module.weight = torch.zeros(3)
    assert not made.refresh()


def adding_to_a_total():
    module = nn.Module()
    module.total, module.scale, module.last = torch.zeros(3), torch.ones(3), torch.zeros(3)

    def step(x):
        module.total.add_(x)
        loss = (x * module.scale * module.last).sum()
        module.last = module.last + 1
        return loss

    return module, program(module, step)


def by_data(module, tensor):
    module.scale.data = tensor


def by_set(module, tensor):
    module.scale.set_(tensor)


def by_name(module, tensor):
    module.last = tensor


@pytest.mark.parametrize("change", [by_data, by_set, by_name])
def test_a_program_sees_that_what_it_writes_to_shares_its_memory_by_now(change):
    module, made = adding_to_a_total()
    assert made.refresh()
    change(module, torch.full((3,), 2.0))
    assert made.refresh(), "another tensor shares nothing"
    change(module, module.total.view(3))
    assert not made.refresh()
    assert not made.refresh(), "nor later"


def test_what_is_only_read_may_share_its_memory():
    module, made = adding_to_a_total()
    assert made.refresh()
    module.last = module.scale.view(3)
    assert made.refresh()
    module.scale.data = module.scale.data[:0].expand(0)
    assert not made.refresh(), "of another shape"


@pytest.mark.parametrize(
    "write", [lambda tensor, value: tensor.fill_(value), lambda tensor, value: tensor.data.fill_(value)]
)
def test_what_decided_something_may_be_written_anew_with_the_same_value(write):
    module = nn.Module()
    module.scale = torch.ones(1)
    made = program(module, lambda x: x.sum() * module.scale if module.scale > 0.0 else x.sum())
    for _ in range(2):
        write(module.scale, 1.0)
        assert made.refresh()
    write(module.scale, 2.0)
    assert not made.refresh()


def test_a_program_sees_that_what_was_one_tensor_is_two():
    module = nn.Module()
    module.first = module.second = torch.ones(3)
    made = program(module, lambda x: (x * module.first + module.second).sum())
    assert made.refresh()
    module.second = torch.zeros(3)
    assert not made.refresh()


def test_a_slot_with_another_shape_is_seen():
    module = nn.Module()
    module.hidden = torch.zeros(3)

    def step(x):
        module.hidden = module.hidden + x
        return module.hidden.sum()

    made = program(module, step)
    assert made.refresh()
    module.hidden = torch.zeros(5)
    assert made.arguments([torch.ones(3)]) is None
    module.hidden = None
    assert made.arguments([torch.ones(3)]) is None
