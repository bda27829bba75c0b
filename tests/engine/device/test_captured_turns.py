"""Steps that take turns on a device are the same steps one by one: a round of them is captured as one."""

from dataclasses import replace

import pytest
import torch
from rows import makes_and_adds, window_one_by_one
from test_captured import DEVICE, ON_HOST, Parts, counting, drawing, refuse, there, zeros
from torch import fx

from fake_graphs import FakeGraphs
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.device.block import Block
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.tracing.draws import Draw
from lightning_sink.engine.tracing.recording import Recording

pytestmark = pytest.mark.usefixtures("fake")

ATEN = torch.ops.aten


def making():
    """Gives the row's sum, and a new tensor, twice the row."""
    graph = fx.Graph()
    row = graph.placeholder("row")
    double = graph.call_function(ATEN.mul.Tensor, (row, 2.0))
    graph.output((graph.call_function(ATEN.sum.default, (row,)), double))
    return Recording(graph, inputs=[torch.zeros(4)], largest=4)


def adding():
    """Adds the row to what it finds, in place, and gives the sum of that."""
    graph = fx.Graph()
    held, row = graph.placeholder("held"), graph.placeholder("row")
    graph.call_function(ATEN.add_.Tensor, (held, row))
    graph.output((graph.call_function(ATEN.sum.default, (held,)),))
    return Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


def taking():
    """Adds what it finds to a total, in place, and gives the sum of the total and the row."""
    graph = fx.Graph()
    held, total, row = (graph.placeholder(name) for name in ("held", "total", "row"))
    graph.call_function(ATEN.add_.Tensor, (total, held))
    added = graph.call_function(ATEN.add.Tensor, (total, row))
    graph.output((graph.call_function(ATEN.sum.default, (added,)),))
    return Recording(graph, inputs=[torch.zeros(4), torch.zeros(4), torch.zeros(4)], largest=4)


WRITTEN = [Placement(), Placement(written=frozenset({0})), Placement(written=frozenset({1}))]


def windows(**options):
    """The three steps of a window that adds two rows to what the first one makes, all called once."""
    made = [Parts(step(), place, **options) for step, place in zip((making, adding, taking), WRITTEN, strict=True)]
    for parts in made:
        parts.graphs = parts.step.graphs = made[0].graphs
        parts.step.blocks.graphs = made[0].graphs
    for parts, count in zip(made, (1, 2, 3), strict=True):
        parts(*(zeros() for _ in range(count)))
    return [parts.step for parts in made]


def turns_of(steps, rows, totals):
    make, add, take = steps
    return [*makes_and_adds(make, add, rows), Turn(take, [None, totals, None], [2], [rows[3::4]], [0], {0: (0, 1)})]


def run(taking, turns, steps):
    row = taking.row(turns, steps)
    row.launch()
    return row.wait()


def taking_of(turns):
    return turns[0].run.in_turns([turn.run for turn in turns])


def one_by_one(rounds):
    """What the steps give, in their order, and the total at the end."""
    given, _, total = window_one_by_one(rounds)
    return given, total


def rows_of(rounds, on_host=False):
    rows = [torch.full((4,), float(number + 1)) for number in range(4 * rounds)]
    return rows if on_host else [*map(there, rows)]


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("rounds", [1, 2, 5, 40])
def test_each_finds_what_the_one_before_has_left(rounds, on_host):
    total = zeros()
    turns = turns_of(windows(), rows_of(rounds, on_host), total)
    found = run(taking_of(turns), turns, 4 * rounds)
    given, expected = one_by_one(rounds)
    assert (found.done, found.error) == (4 * rounds, None)
    assert [values.tolist() for values in found.kept] == [given[turn::4] for turn in range(4)]
    assert total.tolist() == [expected] * 4
    first, made, *sums = found.outputs
    assert [float(first), *map(float, sums)] == given[-4:]
    assert 4 * float(made[0]) == given[-2]
    assert turns[0].run.graphs.replays < 10


def test_control_a_step_that_gets_something_else_leaves_something_else():
    total = zeros()
    turns = turns_of(windows(), rows_of(3), total)
    turns[3].links, turns[3].fixed[0] = {}, zeros()
    run(taking_of(turns), turns, 12)
    assert total.tolist() != [one_by_one(3)[1]] * 4


def test_rows_of_any_length_are_few_captures():
    steps, total = windows(), zeros()
    taking = taking_of(turns_of(steps, rows_of(1), total))
    for rounds in (1, 7, 16, 33, 8, 5):
        total.zero_()
        run(taking, turns_of(steps, rows_of(rounds), total), 4 * rounds)
        assert total.tolist() == [one_by_one(rounds)[1]] * 4
    assert steps[0].graphs.captures <= 3


def test_a_graph_has_no_more_steps_than_one_of_steps_that_are_alike(monkeypatch):
    monkeypatch.setattr(FakeGraphs, "loops", False)
    steps, total, sizes = windows(), zeros(), []
    block = Block.__init__
    monkeypatch.setattr(Block, "__init__", lambda self, step, size: (sizes.append(size), block(self, step, size))[1])
    turns = turns_of(steps, rows_of(100), total)
    run(taking_of(turns), turns, 400)
    assert max(sizes) == 16


def test_a_tensor_that_lies_elsewhere_is_captured_again():
    steps, totals = windows(), [zeros(), zeros()]
    taking = taking_of(turns_of(steps, rows_of(1), totals[0]))
    for total in (*totals, totals[1]):
        run(taking, turns_of(steps, rows_of(2), total), 8)
    assert [float(total[0]) for total in totals] == [one_by_one(2)[1], 2 * one_by_one(2)[1]]
    assert steps[0].graphs.captures == 2


def counted(count, rates, rows, kept=(1,)):
    """Turns of a step that counts on the host; each has an alias of the count, as programs have."""
    parts = Parts(counting(), ON_HOST)
    parts(torch.zeros(()), torch.ones(()), zeros())
    turns = len(rates)
    return [
        Turn(parts.step, [count.detach(), rate, None], [2], [rows[turn::turns]], [*kept])
        for turn, rate in enumerate(rates)
    ]


def test_a_number_of_the_hosts_that_several_write_to_is_one():
    count, rates = torch.zeros(()), [torch.tensor(0.5), torch.tensor(2.0)]
    turns = counted(count, rates, [torch.ones(4)] * 10)
    taking = taking_of(turns)
    for expected in (10.0, 20.0):
        found = run(taking, turns, 10)
        assert float(count) == expected
        steps = torch.arange(expected - 9, expected + 1)
        assert torch.equal(found.kept[0][:, 0].cpu(), steps[0::2] * 0.5)
        assert torch.equal(found.kept[1][:, 0].cpu(), steps[1::2] * 2)
        assert [float(found.outputs[0]), float(found.outputs[2])] == [1.0, 4.0]
        assert found.outputs[0].is_cpu
        assert not found.outputs[1].is_cpu
    assert turns[0].run.graphs.replays


def test_tensors_that_are_one_no_longer_are_two():
    count, other, rate = torch.zeros(()), torch.zeros(()), torch.ones(())
    turns = counted(count, [rate, rate], [torch.ones(4)] * 10)
    taking = taking_of(turns)
    run(taking, turns, 10)
    turns[1].fixed[0] = other
    run(taking, turns, 10)
    assert (float(count), float(other)) == (15.0, 5.0)


def test_parts_of_one_memory_on_the_host_are_run_one_by_one():
    both, rate = torch.zeros(2), torch.ones(())
    turns = counted(both[0], [rate, rate], [there(torch.ones(4))] * 10)
    turns[1].fixed[0] = both[1]
    found = run(taking_of(turns), turns, 10)
    assert both.tolist() == [5.0, 5.0]
    assert found.done == 10
    assert turns[0].run.graphs.replays == 0


def test_what_overlapping_rows_leave_is_right_behind_the_last():
    count, rate = torch.zeros(()), torch.ones(())
    turns = counted(count, [rate, rate], [torch.ones(4)] * 10)
    taking = taking_of(turns)
    first, second = taking.row(turns, 10), taking.row(turns, 10)
    first.launch()
    second.launch()
    assert float(count) == 0.0
    one = first.wait()
    assert (one.done, one.outputs) == (10, None)
    assert torch.equal(one.kept[1][:, 0].cpu(), torch.arange(2.0, 11.0, 2))
    other = second.wait()
    assert torch.equal(other.kept[1][:, 0].cpu(), torch.arange(12.0, 21.0, 2))
    assert float(count) == 20.0


def test_draws_are_those_of_steps_one_by_one_wherever_they_are_made():
    rand = ATEN.rand.default
    draws = [Draw(rand, ([4],), {"device": torch.device(place)}) for place in ("cpu", DEVICE)]
    totals = []
    for in_rows in (False, True):
        torch.manual_seed(3)
        parts, total = Parts(drawing(), Placement(draws=frozenset({0})), draws), zeros()
        parts(total, there(torch.ones(4)))
        rows = [there(torch.full((4,), float(number))) for number in range(21)]
        if in_rows:
            turns = [Turn(parts.step, [total, None], [1], [rows[turn::3]], [0]) for turn in range(3)]
            kept = torch.stack(run(taking_of(turns), turns, 21).kept, 1).flatten(0, 1)
            assert parts.graphs.replays
        else:
            kept = torch.stack([parts(total, row)[0] for row in rows])
        totals.append((total.cpu(), kept.cpu(), torch.get_rng_state(), torch.fake.get_rng_state()))
    assert all(map(torch.equal, *totals))


@pytest.mark.parametrize("refused", [False, True])
def test_draws_where_rounds_cannot_be_captured(refused):
    """The row in which that is found out has drawn already."""
    rand, results = ATEN.rand.default, []
    draws = [Draw(rand, ([4],), {"device": torch.device(place)}) for place in ("cpu", DEVICE)]
    rows = [there(torch.full((4,), float(number))) for number in range(42)]
    for in_rows in (False, True):
        torch.manual_seed(3)
        said, kept = [], []
        parts, total = Parts(drawing(), Placement(draws=frozenset({0})), draws, refuse=said.append), zeros()
        parts(total, there(torch.ones(4)))
        if refused:
            parts.graphs.capture = lambda body, left=None: refuse(RuntimeError("no"))
        halves = [
            [Turn(parts.step, [total, None], [1], [half[turn::3]], [0]) for turn in range(3)]
            for half in (rows[:21], rows[21:])
        ]
        taking = taking_of(halves[0])
        for turns in halves if in_rows else ():
            kept.append(torch.stack(run(taking, turns, 21).kept, 1).flatten(0, 1))
        kept = torch.cat(kept) if in_rows else torch.stack([parts(total, row)[0] for row in rows])
        assert [str(error) for error in said] == ["no"] * (refused and in_rows)
        results.append((total.cpu(), kept.cpu(), torch.get_rng_state(), torch.fake.get_rng_state()))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("refused", [False, True])
def test_a_row_beside_one_that_has_not_been_waited_for(refused):
    """It takes from the host what that one will have left there, also where it cannot be captured."""
    count, rates, said = torch.zeros(()), [torch.tensor(0.5), torch.tensor(2.0)], []
    turns = counted(count, rates, [there(torch.ones(4))] * 10)
    for turn in turns:
        turn.run.blocks._refuse = said.append
    taking = taking_of(turns)
    first = taking.row(turns, 10)
    first.launch()
    if refused:
        turns[0].run.graphs.capture = lambda body, left=None: refuse(RuntimeError("no memory"))
    more = [replace(turn, columns=[[there(torch.ones(4))] * 20]) for turn in turns]
    second = taking.row(more, 40)
    second.launch()
    assert first.wait().done == 10
    found = second.wait()
    assert (found.done, float(count)) == (40, 50.0)
    assert torch.equal(found.kept[1][:, 0].cpu(), torch.arange(12.0, 51.0, 2) * 2)
    assert len(said) == refused
    assert taking.overlaps is not refused  # from now on those before it are waited for
    run(taking, turns, 10)
    assert float(count) == 60.0


def standing():
    """Adds the row to a total, in place, and gives the total itself."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    graph.output((graph.call_function(ATEN.add_.Tensor, (total, row)),))
    return Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


def test_what_is_kept_of_a_step_is_what_it_was_then():
    parts = Parts(standing(), Placement(written=frozenset({0})))
    parts(zeros(), zeros())
    total, rows = zeros(), [there(torch.ones(4))] * 12
    turns = [Turn(parts.step, [total, None], [1], [rows[turn::3]], [0]) for turn in range(3)]
    found = run(taking_of(turns), turns, 12)
    assert [values[:, 0].tolist() for values in found.kept] == [[1.0 + t + 3 * i for i in range(4)] for t in range(3)]
    assert parts.graphs.replays


def test_what_cannot_be_captured_is_launched_one_by_one_and_that_is_said_once():
    said, total = [], zeros()
    steps = windows(refuse=said.append)
    steps[0].graphs.capture = lambda body, left=None: refuse(RuntimeError("no"))
    taking = taking_of(turns_of(steps, rows_of(1), total))
    for _ in range(2):
        total.zero_()
        found = run(taking, turns_of(steps, rows_of(5), total), 20)
        given, expected = one_by_one(5)
        assert [values.tolist() for values in found.kept] == [given[turn::4] for turn in range(4)]
        assert total.tolist() == [expected] * 4
    assert [str(error) for error in said] == ["no"]


def test_what_is_not_to_be_captured_is_launched_one_by_one():
    steps, total = windows(refuse=None), zeros()
    turns = turns_of(steps, rows_of(5), total)
    assert run(taking_of(turns), turns, 20).done == 20
    assert total.tolist() == [one_by_one(5)[1]] * 4
    assert steps[0].graphs.captures == 0


def test_rounds_that_fail_are_not_counted():
    """The first launch succeeds, the second does not."""
    steps, total = windows(), zeros()
    taking = taking_of(turns_of(steps, rows_of(1), total))
    run(taking, turns_of(steps, rows_of(17), total), 4 * 17)
    total.zero_()
    row = taking.row(turns_of(steps, rows_of(17), total), 4 * 17)
    row._row._blocks[1].run = lambda columns: refuse(RuntimeError("no memory"))
    row.launch()
    assert row.failed
    found = row.wait()
    assert (found.done, str(found.error)) == (64, "no memory")
    assert total.tolist() == [one_by_one(16)[1]] * 4
    assert [len(values) for values in found.kept] == [16] * 4
