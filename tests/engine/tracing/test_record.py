"""A recording is one real step that leaves its graph behind."""

import pytest
import torch
from torch import nn

from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.state.counts import Counts
from lightning_sink.engine.state.holders import python_state
from lightning_sink.engine.state.hyper import Hyperparameters
from lightning_sink.engine.state.slots import Parts, Snapshot
from lightning_sink.engine.tracing.record import Recorder


def record(body, module=None, outputs=True, rewind=lambda: None, batch=()):
    module = module or nn.Module()
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(module)), batch)
    result = recorder.span(body, rewind)
    return recorder, result, recorder.finish([result] if outputs else [])


def test_the_step_really_runs_and_its_graph_gives_the_same():
    weight, x = torch.randn(3, 2), torch.randn(4, 3)
    _, result, recording = record(lambda: (x @ weight).relu().sum())
    assert torch.equal(result, (x @ weight).relu().sum())
    assert [id(tensor) for tensor in recording.inputs] == [id(x), id(weight)]
    assert torch.equal(graph_module(recording)(*recording.inputs)[0], result)
    assert recording.hazards == []


def test_the_backward_pass_and_writes_in_place_are_recorded():
    weight, total = nn.Parameter(torch.ones(3)), torch.zeros(())

    def body():
        loss = (weight * 2).sum()
        loss.backward()
        total.add_(loss.detach())
        return loss.detach()

    _, _, recording = record(body)
    assert torch.equal(weight.grad, torch.full((3,), 2.0))
    graph_module(recording)(*[tensor.detach() for tensor in recording.inputs])
    assert total == 12


def told(body, module):
    parts = Parts(module)
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(parts), look=lambda: python_state(parts))
    recorder.span(body, lambda: None)
    return [(hazard.what, hazard.where) for hazard in recorder.recording.hazards]


def test_the_line_that_sets_an_attribute_is_named():
    module, other = nn.Module(), nn.Module()
    module.seen, module.mode = [], "begin"

    def body():
        module.seen.append(len)
        other.seen = []  # of another object, which is none of the training's
        module.mode = "end"
        return torch.ones(3)

    (found,) = told(body, module)
    assert found == (
        "the step changes Python state: `mode`, `seen`",  # first the one whose line it is
        f"{__file__}:{body.__code__.co_firstlineno + 3}",
    )


def test_no_line_is_named_where_two_set_the_attribute_or_none_does():
    module = nn.Module()
    module.mode, module.seen = "begin", []

    def twice():
        module.mode = "midst"
        module.mode += "end"
        return torch.ones(3)

    def in_place():
        module.seen.append(len)
        return torch.ones(3)

    for body, name in ((twice, "mode"), (in_place, "seen")):
        ((what, where),) = told(body, module)
        assert what.startswith(f"the step changes Python state: `{name}`")
        lines, first = body.__code__.co_lines(), body.__code__.co_firstlineno
        assert where not in {f"{__file__}:{line}" for *_, line in lines if line is not None and line > first}


def test_equal_steps_have_equal_texts_and_others_do_not():
    x = torch.ones(3)
    texts = [record(lambda factor=factor: x * factor)[2].text for factor in (2.0, 2.0, 3.0)]
    assert texts[0] == texts[1] != texts[2]


def test_each_input_knows_the_users_line():
    weight = torch.ones(3)
    _, _, recording = record(lambda: weight * 2)
    assert __file__ in recording.first_use[0]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (lambda x: x * float(x.sum()), "a value of a tensor"),
        (lambda x: x * int((x + torch.rand(3)).sum()), "a value of a tensor"),
        (lambda x: x[x > torch.rand(3) - 1], "shape that depends on the data"),
        (lambda x: torch.rand(3, generator=torch.Generator()), "a generator of its own"),
        (lambda x: x.to_sparse().to_dense(), "layout"),
    ],
)
def test_hazards(body, word):
    x = torch.ones(3)
    _, _, recording = record(lambda: body(x), batch=[x])
    assert word in recording.hazards[0].what
    assert __file__ in recording.hazards[0].where


@pytest.mark.parametrize("index", [torch.tensor([0, 2]), torch.tensor([True, False, True])], ids=["numbers", "mask"])
@pytest.mark.parametrize("of_batch", [True, False])
def test_a_batch_is_asked_how_many_elements_a_mask_of_it_picks(index, of_batch):
    x = torch.arange(3.0)
    _, out, recording = record(lambda: x[index], batch=[index] if of_batch else [])
    assert out.tolist() == [0, 2]
    assert not recording.hazards
    assert [question.value for question in recording.questions] == [2] * (index.dtype is torch.bool and of_batch)


@pytest.mark.parametrize("of_batch", [True, False])
def test_a_mask_of_another_size_is_the_error_that_it_is(of_batch):
    x, mask = torch.arange(6.0).view(3, 2), torch.tensor([True, False])
    for body in (lambda: x[mask], lambda: x.index_put((mask,), torch.ones(1, 2)), lambda: x[:, torch.ones(3) > 0]):
        with pytest.raises(IndexError, match="shape of the mask"):
            record(body, batch=[mask] if of_batch else [])


def test_what_a_mask_gives_lies_as_it_does():
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    for batch in ([mask], []):
        _, found, _ = record(lambda: mask.nonzero(), batch=batch)
        assert found.tolist() == mask.nonzero().tolist()
        assert found.stride() == mask.nonzero().stride()


def test_a_program_with_a_mask_of_the_batchs_is_for_batches_that_pick_as_many():
    x, mask = torch.arange(3.0), torch.tensor([True, False, True])
    _, _, recording = record(lambda: x[mask], batch=[mask])
    (question,) = recording.questions
    other = torch.tensor([False, True, True])
    assert question.holds([other])
    assert not question.holds([torch.tensor([False, True, False])])
    inputs = [x if tensor is x else other for tensor in recording.inputs]
    assert graph_module(recording)(*inputs)[0].tolist() == [1, 2]


def test_an_error_of_the_recording_is_undone_and_the_step_run_again():
    module = nn.Linear(2, 2)
    module.total, module.hidden, module.calls = torch.zeros(2), torch.zeros(1), [0]
    weight, rewound, drawn = module.weight.detach().clone(), [], []

    def body():
        module.calls.append(1)
        module.total.add_(1)
        module.hidden = torch.ones(1)
        drawn.append(torch.rand(2))
        with torch.no_grad():
            module.weight.mul_(2)
        if len(drawn) == 1:
            torch.ones(2) + torch.ones(3)  # as what torch refuses only while it is recorded
        return module.total.sum()

    recorder, result, recording = record(body, module, outputs=False, rewind=lambda: rewound.append(1))
    assert result == 2
    assert torch.equal(module.weight, weight * 2)
    assert torch.equal(*drawn)
    assert module.calls == [0, 1]
    assert rewound == [1]
    assert "recording it failed: RuntimeError: The size of tensor a (2)" in recording.hazards[0].what
    assert recorder.watched("batch_idx", 3) == 3
    assert type(recorder.watched("batch_idx", 3)) is int


def test_an_error_of_the_users_surfaces():
    def body():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(body)


def test_what_is_paused_is_not_recorded():
    x = torch.ones(3)
    recorder = Recorder(Hyperparameters([]), Counts({}), Snapshot(Parts(nn.Module())))

    def body():
        with recorder.paused():
            x.sum().item()
        return x * 2

    recording = recorder.finish([recorder.span(body, lambda: None)])
    assert recording.hazards == []
    assert len(recording.text.splitlines()) == 3


def test_half_precision_and_the_largest_tensor_are_noted():
    x = torch.ones(3)
    assert record(lambda: x * 2)[2].dtypes == {torch.float32}
    recording = record(lambda: x.bfloat16().expand(5, 3) * 2)[2]
    assert torch.bfloat16 in recording.dtypes
    assert recording.largest == 15


def test_an_interrupt_in_the_step_leaves_plain_numbers():
    module = nn.Module()
    recorder = Recorder(Hyperparameters([]), Counts({"batch_idx": lambda: 3}), Snapshot(Parts(module)))

    def body():
        module.seen = recorder.watched("batch_idx", 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.span(body, lambda: None)
    assert type(module.seen) is int
