"""Steps that are captured and replayed are the same steps one by one, over a device whose captures do nothing.

`Fake` computes on the CPU, at once. What it captures leaves everything as it was, and what a capture returned holds
garbage until it is replayed, and is filled again by each replay.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loop import Training, assert_same, batches, loss_of, mlp, sgd, train
from test_loop import recording, repeat
from torch import fx, nn, optim
from torch.utils._pytree import tree_leaves

from lightning_sink.engine.captured import CapturedStep, Graphs
from lightning_sink.engine.inductor import compile_traced
from lightning_sink.engine.private import TorchDispatchMode
from lightning_sink.engine.recording import Recording


def storage(item):
    return item.untyped_storage().data_ptr() if isinstance(item, torch.Tensor) else None


class Undone(TorchDispatchMode):
    """Puts back what operations wrote, and knows what they made."""

    def __init__(self):
        super().__init__()
        self.written, self.made = [], set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs))
        before = [(leaf, leaf.clone()) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        result = operation(*args, **(kwargs or {}))
        self.written += before  # the schema of batch normalization does not say what it writes
        self.made |= set(map(storage, tree_leaves(result))) - set(map(storage, leaves))
        return result

    def undo(self):
        for tensor, content in reversed(self.written):
            tensor.copy_(content)


class Fake(Graphs):
    """A device that captures."""

    def __init__(self):
        self.captures = self.replays = 0
        self.marks, self.waited = itertools.count(), []

    def capture(self, body):
        self.captures += 1
        mode, generator = Undone(), torch.get_rng_state()
        with mode:
            outputs = body()
        mode.undo()
        torch.set_rng_state(generator)
        for tensor in outputs:
            if storage(tensor) in mode.made:
                tensor.fill_(77)

        def replay():
            self.replays += 1
            for target, source in zip(outputs, body(), strict=True):
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source)

        return replay, outputs

    def bring(self, tensors):
        return [*tensors]

    def mark(self):
        return next(self.marks)

    def wait(self, mark):
        self.waited.append(mark)

    def seconds(self, begin, end):
        return (end - begin) * 1e-6


def captured(compiled, graphs=None):
    return CapturedStep(compiled._function, graphs or Fake(), compiled._draws)


def of(recorded, graphs=None):
    return captured(compile_traced(recorded), graphs)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16, 21, 37])
def test_every_step_counts_and_the_last_one_is_returned(count):
    graphs = Fake()
    step = of(recording(), graphs)
    total, rows = torch.zeros(4), torch.arange(4.0 * count).reshape(count, 4)
    step(torch.zeros(4), rows[0])
    found = repeat(step, [total, None], [1], [[row] for row in rows], [0, 1])
    (sums, largest), outputs = found.kept, found.outputs
    assert (found.done, found.error) == (count, None)
    assert found.seconds > 0
    assert torch.equal(total, rows.sum(0))
    assert torch.equal(sums, rows.sum(1).cumsum(0))
    assert torch.equal(largest, rows.amax(1))
    assert torch.equal(outputs[2], rows[-1] * 2)
    assert graphs.replays < 10


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_rows_of_any_length_are_few_captures(counts):
    graphs = Fake()
    step, total, sums = of(recording(), graphs), torch.zeros(4), []
    step(torch.zeros(4), torch.zeros(4))
    for count in counts:
        sums.append(repeat(step, [total, None], [1], [[torch.ones(4)]] * count, [0]).kept[0])
    assert torch.equal(torch.cat(sums), 4 * torch.arange(1.0, sum(counts) + 1))
    assert graphs.captures <= 3


def test_long_steps_are_captured_one_by_one():
    graphs = Fake()
    graphs.seconds = lambda begin, end: 1.0
    step, total = of(recording(), graphs), torch.zeros(4)
    step(torch.zeros(4), torch.zeros(4))
    for _ in range(2):
        repeat(step, [total, None], [1], [[torch.ones(4)]] * 16, [0])
    assert graphs.replays == 1 + 16
    assert torch.equal(total, torch.full((4,), 32.0))


def test_a_capture_leaves_the_training_as_it_was():
    step, total, row = of(recording()), torch.zeros(4), torch.ones(4)
    step(torch.zeros(4), row)
    state = torch.get_rng_state()
    step.row([total, None], [1], [[row]] * 21, [0])
    assert torch.equal(total, torch.zeros(4))
    assert torch.equal(row, torch.ones(4))
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_need_be_kept():
    step = of(recording())
    step(torch.zeros(4), torch.zeros(4))
    assert repeat(step, [torch.zeros(4), None], [1], [[torch.ones(4)]] * 3, []).kept == []


def test_what_is_kept_may_have_many_numbers():
    step = of(recording())
    step(torch.zeros(4), torch.zeros(4))
    rows = torch.randn(21, 4)
    (kept,) = repeat(step, [torch.zeros(4), None], [1], [[row] for row in rows], [2]).kept
    assert torch.equal(kept, rows * 2)


def test_outputs_stay_when_later_rows_run():
    step, total = of(recording()), torch.zeros(4)
    step(torch.zeros(4), torch.zeros(4))
    rows = [step.row([total, None], [1], [[torch.full((4,), float(value))]], [0]) for value in (1, 2)]
    first, second = rows
    graph = first._replayed[0]
    first.launch()
    outputs = first.wait().outputs
    before, own = [output.clone() for output in outputs], [output.clone() for output in graph._outputs]
    second.launch()
    second.wait()
    assert all(map(torch.equal, outputs, before))
    assert not all(map(torch.equal, graph._outputs, own))  # the control: the graph's own are others now


def sharing():
    """Gives a matrix, a row of it, the input that stays, and the one that differs."""
    graph = fx.Graph()
    weight, row = graph.placeholder("weight"), graph.placeholder("row")
    made = graph.call_function(torch.ops.aten.mul.Tensor, (weight, row))
    graph.output((made, graph.call_function(torch.ops.aten.select.int, (made, 0, 1)), weight, row))
    return Recording(graph, inputs=[torch.ones(2, 4), torch.ones(4)], largest=8)


def test_outputs_share_what_they_shared():
    step, weight, rows = of(sharing()), torch.ones(2, 4), torch.randn(5, 4)
    step(weight, rows[0])
    made, part, same, last = repeat(step, [weight, None], [1], [[row] for row in rows], []).outputs
    assert torch.equal(made, rows[-1].expand(2, 4))
    made[1] = 5
    assert torch.equal(part, torch.full((4,), 5.0))
    weight.fill_(3)
    assert torch.equal(same, weight)
    assert torch.equal(last, rows[-1])
    assert last.data_ptr() not in {row.data_ptr() for row in rows}
    assert not made._is_view()


def test_inputs_that_lie_elsewhere_are_captured_again():
    graphs = Fake()
    step, totals = of(recording(), graphs), [torch.zeros(4), torch.zeros(4)]
    step(torch.zeros(4), torch.zeros(4))
    for total in (*totals, totals[1]):
        repeat(step, [total, None], [1], [[torch.ones(4)]], [0])
    assert graphs.captures == 2
    assert [float(total[0]) for total in totals] == [1.0, 2.0]


def test_only_a_rows_own_end_is_waited_for():
    graphs = Fake()
    step, total = of(recording(), graphs), torch.zeros(4)
    step(torch.zeros(4), torch.zeros(4))
    rows = [step.row([total, None], [1], [[torch.ones(4)]] * 2, [0]) for _ in range(2)]
    for row in rows:
        row.launch()
    assert graphs.waited == []
    rows[0].wait()
    assert graphs.waited == [1]  # the marks 2 and 3 are the second row's
    with pytest.raises(AssertionError, match="launched"):
        step.row([total, None], [1], [[torch.ones(4)]], [0]).wait()


def test_graphs_have_to_say_how():
    with pytest.raises(TypeError, match="abstract"):
        Graphs()


# -- trainings --------------------------------------------------------------------------------------------------------


def plain():
    module = mlp()
    return Training(module, sgd(module), lambda batch, index: loss_of(module, batch))


def with_adam():
    module = mlp()
    return Training(module, optim.Adam(module.parameters(), 0.01), lambda batch, index: loss_of(module, batch))


def with_dropout():
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    return Training(module, sgd(module), lambda batch, index: loss_of(module, batch))


def with_buffers():
    module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return Training(module, sgd(module), lambda batch, index: loss_of(module, batch))


def with_kept_gradients():
    module = mlp()
    optimizer = optim.SGD(module.parameters(), 0.1)
    return Training(module, optimizer, lambda batch, index: loss_of(module, batch), set_to_none=False)


def with_a_schedule():
    training = with_adam()
    schedule = optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 60)
    training.after = lambda done: schedule.step()
    return training


def with_moved_weights():
    training = plain()

    def between(training, sink):
        for parameter in training.module.parameters():
            parameter.data = parameter.data.clone() + 0.01 * sink

    training.between = between
    return training


MAKERS = [plain, with_adam, with_dropout, with_buffers, with_kept_gradients, with_a_schedule, with_moved_weights]
ONE_BY_ONE = [with_kept_gradients, with_a_schedule]  # the host is needed between two steps

SINKS = [batches(30), batches(21), [*batches(5, size=6), *batches(30)]]


@pytest.mark.parametrize("make", MAKERS)
def test_a_training_is_the_same(make):
    graphs = Fake()
    expected = train(make, SINKS, False)
    found = train(make, SINKS, True, compiler=lambda recorded: of(recorded, graphs))
    assert_same(expected, found)
    assert found.compiled > 60
    assert found.reasons == ""
    assert graphs.replays or make in ONE_BY_ONE


def test_control_a_graph_whose_inputs_are_not_filled_trains_otherwise(monkeypatch):
    monkeypatch.setattr("lightning_sink.engine.captured.copy_all", lambda targets, sources: None)
    expected, found = train(plain, SINKS, False), train(plain, SINKS, True, compiler=of)
    with pytest.raises(AssertionError):
        assert_same(expected, found)
