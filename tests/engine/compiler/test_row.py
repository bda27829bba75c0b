"""Steps that take turns in a row: each gets what an earlier one of its round has left, whoever goes round the loop."""

import pytest
import torch
from loop import with_layouts
from rows import makes_and_adds, window_one_by_one
from torch import fx

from lightning_sink.engine.compiler.inductor import compile_inductor, compile_traced
from lightning_sink.engine.compiler.loop import TurnTaking
from lightning_sink.engine.compiler.row import NativeRow, Turn
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

ATEN = torch.ops.aten
COMPILERS = [compile_traced, pytest.param(compile_inductor, marks=missing)]


def recorded(names, *inputs):
    """Starts a graph with these inputs; returns it with what stands for them, and what makes a recording of it."""
    graph = fx.Graph()
    places = [graph.placeholder(name) for name in names]

    def end(*outputs):
        graph.output(outputs)
        return with_layouts(Recording(graph, inputs=[*inputs], largest=8))

    return graph, places, end


def makes():
    """Gives a new tensor, twice the row, and the row's sum."""
    graph, (row,), end = recorded(["row"], torch.zeros(4))
    double = graph.call_function(ATEN.mul.Tensor, (row, 2.0))
    return end(graph.call_function(ATEN.sum.default, (row,)), double)


def adds():
    """Adds the row to what it finds, in place, and gives the sum of that."""
    graph, (held, row), end = recorded(["held", "row"], torch.zeros(4), torch.zeros(4))
    graph.call_function(ATEN.add_.Tensor, (held, row))
    return end(graph.call_function(ATEN.sum.default, (held,)))


def takes():
    """Adds what it finds at an index to a total, and gives the total's sum: a wrong index fails."""
    inputs = torch.zeros(4), torch.zeros(1), torch.zeros(4), torch.tensor([0])
    graph, (held, total, row, index), end = recorded(["held", "total", "row", "index"], *inputs)
    picked = graph.call_function(ATEN.index.Tensor, (held, [index]))
    graph.call_function(ATEN.add_.Tensor, (total, picked))
    added = graph.call_function(ATEN.add.Tensor, (total, row))
    return end(graph.call_function(ATEN.sum.default, (added,)))


@pytest.fixture(scope="module", params=COMPILERS)
def steps(request):
    made = [request.param(recording()) for recording in (makes, adds, takes)]
    made[0](torch.zeros(4))
    made[1](torch.zeros(4), torch.zeros(4))
    made[2](torch.zeros(4), torch.zeros(1), torch.zeros(4), torch.tensor([0]))
    return made


def turns_of(steps, rows, indices, total):
    """A round of four: one makes what two add to and the last one takes."""
    make, add, take = steps
    return [
        *makes_and_adds(make, add, rows),
        Turn(take, [None, total, None, None], [2, 3], [rows[3::4], indices], [0], {0: (0, 1)}),
    ]


def run(steps, rounds, indices):
    rows, total = [torch.full((4,), float(number + 1)) for number in range(4 * rounds)], torch.zeros(1)
    turns = turns_of(steps, rows, [torch.tensor([index]) for index in indices], total)
    taking = TurnTaking([turn.run for turn in turns])
    row = taking.row(turns, 4 * rounds)
    row.launch()
    try:
        return row, row.wait(), total
    finally:
        taking.rest()


@pytest.mark.narrow(11)
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_each_finds_what_the_one_before_has_left(steps, rounds):
    row, found, total = run(steps, rounds, [0] * rounds)
    given, held, expected = window_one_by_one(rounds)
    assert (found.done, found.error) == (4 * rounds, None)
    assert [values.tolist() for values in found.kept] == [given[turn::4] for turn in range(4)]
    assert total.item() == expected
    first_sum, made, *sums = found.outputs
    assert made.tolist() == [held] * 4
    assert [first_sum.item(), *(each.item() for each in sums)] == given[-4:]
    assert isinstance(row, NativeRow) == (type(steps[0]).__name__ == "NativeStep")


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_that_fails_leaves_those_before_it(steps, at):
    """Also those of its own round, of which later ones have what they gave the last time, or nothing."""
    _, found, total = run(steps, 4, [99 if number == at else 0 for number in range(4)])
    given, _, _ = window_one_by_one(4)
    assert found.done == 4 * at + 3
    assert isinstance(found.error, IndexError)
    assert [values.tolist() for values in found.kept] == [given[turn : found.done : 4] for turn in range(3 + (at > 0))]
    assert len(found.outputs) == 4 + (at > 0)
    assert total.item() == window_one_by_one(at)[2]
    assert found.outputs[1].tolist() == [window_one_by_one(at + 1)[1]] * 4
