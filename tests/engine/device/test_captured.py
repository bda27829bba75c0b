"""Steps that are captured and replayed are the same steps one by one, on a device whose graphs keep what CUDA's do."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import in_a_row, recording, repeat
from torch import fx

from fake_device import DEVICE
from fake_graphs import FakeGraphs
from lightning_sink.engine.compiler.copies import copy_of
from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.device import block
from lightning_sink.engine.device.block import Block, Turns
from lightning_sink.engine.device.blocks import Blocks
from lightning_sink.engine.device.captured import CapturedStep
from lightning_sink.engine.device.graphs import Graphs
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.tracing.draws import Draw
from lightning_sink.engine.tracing.recording import Recording

pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture(autouse=True, params=[False, True], ids=["unrolled", "in a loop"])
def repeats(request, monkeypatch):
    """Whether the device repeats by itself what was captured."""
    monkeypatch.setattr(FakeGraphs, "loops", request.param)
    return request.param


def refuse(error):
    raise error


class Parts:
    """A step, and the graphs that it has been given."""

    def __init__(self, recorded, placement=None, draws=(), refuse=refuse, unroll=refuse):
        self.graphs, placement = FakeGraphs(DEVICE), placement or Placement()
        function = graph_module(recorded).forward
        draws_there = len(placement.draws) < len(draws)
        graphs = Blocks(self.graphs, refuse, None if draws_there else unroll)
        self.step = CapturedStep(function, graphs, placement, draws)

    def __call__(self, *inputs):
        return self.step(*inputs)

    def repeat(self, *args):
        return repeat(self.step, *args)


def there(tensor):
    return tensor.to(DEVICE)


def zeros(count=4):
    return torch.zeros(count, device=DEVICE)


def adding(**options):
    """A step that has run once, on a total of its own."""
    parts = Parts(recording(), **options)
    parts(zeros(), zeros())
    return parts


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16, 21, 37, 150])
def test_every_step_counts_and_the_last_one_is_returned(count, on_host):
    parts, total = adding(), zeros()
    rows = torch.arange(4.0 * count).reshape(count, 4)
    given = [[row if on_host else there(row)] for row in rows]
    found = parts.repeat([total, None], [1], given, [0, 1])
    (sums, largest), outputs = found.kept, found.outputs
    assert (found.done, found.error) == (count, None)
    assert found.seconds > 0
    assert torch.equal(total.cpu(), rows.sum(0))
    assert torch.equal(sums.cpu(), rows.sum(1).cumsum(0))
    assert torch.equal(largest.cpu(), rows.amax(1))
    assert torch.equal(outputs[2].cpu(), rows[-1] * 2)
    assert parts.graphs.replays < 10


@pytest.mark.parametrize("gap", [0, 60])
@pytest.mark.parametrize("count", [1, 5, 16, 37, 128])
def test_inputs_that_lie_side_by_side_are_those_of_their_steps(count, gap):
    """Also where other things lie between those of two steps."""
    parts, total = adding(), zeros()
    rows = torch.randn(count + 3, 4 + gap)
    column = there(rows)[3:, :4]
    row = parts.step.row([Turn(parts.step, [total, None], [1], [column], [0, 2])], count)
    row.launch()
    found = row.wait()
    assert found.done == count
    assert torch.allclose(total.cpu(), rows[3:, :4].sum(0), atol=1e-5)
    assert torch.equal(found.kept[1].cpu(), rows[3:, :4] * 2)


def test_inputs_that_lie_side_by_side_are_as_good_where_rows_are_launched_one_by_one():
    parts, total = adding(refuse=None), zeros()
    rows = torch.randn(5, 4)
    row = parts.step.row([Turn(parts.step, [total, None], [1], [there(rows)], [2])], 5)
    row.launch()
    assert torch.equal(row.wait().kept[0].cpu(), rows * 2)


def test_control_a_graph_whose_inputs_are_not_filled_gives_something_else(monkeypatch):
    monkeypatch.setattr("lightning_sink.engine.device.block_memory.copy_all", lambda targets, sources: None)
    parts, total = adding(), zeros()
    rows = torch.arange(12.0).reshape(3, 4)
    parts.repeat([total, None], [1], [[there(row)] for row in rows], [0])
    assert not torch.equal(total.cpu(), rows.sum(0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(counts=st.lists(st.integers(1, 40) | st.just(200), min_size=1, max_size=5))
def test_rows_of_any_length_are_few_captures(counts):
    parts, total, sums = adding(), zeros(), []
    for count in counts:
        sums.append(parts.repeat([total, None], [1], [[there(torch.ones(4))]] * count, [0]).kept[0].cpu())
    assert torch.equal(torch.cat(sums), 4 * torch.arange(1.0, sum(counts) + 1))
    assert parts.graphs.captures <= 4


@pytest.mark.parametrize(("seconds", "launches"), [(1e-5, 3 + 2 + 1), (2e-4, 14 + 1), (2e-3, 228)])
def test_the_longer_steps_take_the_fewer_are_in_one_graph(monkeypatch, seconds, launches):
    monkeypatch.setattr(FakeGraphs, "loops", False)
    parts, total = Parts(recording()), zeros()
    parts.graphs.seconds = lambda begin, end: seconds
    parts(zeros(), zeros())
    parts.step.blocks.took(seconds)
    parts.repeat([total, None], [1], [[there(torch.ones(4))]] * 228, [0])
    assert parts.graphs.replays == launches
    assert torch.equal(total.cpu(), torch.full((4,), 228.0))


def test_a_large_graph_is_captured_where_it_is_launched_more_than_once(repeats):
    parts, total, captures = adding(), zeros(), []
    for count in (64, 127, 128):
        parts.repeat([total, None], [1], [[there(torch.ones(4))]] * count, [0])
        captures.append(parts.graphs.captures)
    assert captures == ([2, 3, 3] if repeats else [1, 3, 4])


def test_long_steps_are_captured_one_by_one():
    parts, total = Parts(recording()), zeros()
    parts.graphs.seconds = lambda begin, end: 1.0
    parts(zeros(), zeros())
    for _ in range(2):
        parts.repeat([total, None], [1], [[there(torch.ones(4))]] * 16, [0])
    assert (parts.graphs.captures, parts.graphs.replays) == (1, 32)
    assert torch.equal(total.cpu(), torch.full((4,), 32.0))


def test_a_capture_leaves_the_training_as_it_was():
    parts, total, row = adding(), zeros(), there(torch.ones(4))
    state = torch.get_rng_state(), torch.fake.get_rng_state()
    in_a_row(parts.step, [total, None], [1], [[row]] * 21, [0])
    assert torch.equal(total.cpu(), torch.zeros(4))
    assert torch.equal(row.cpu(), torch.ones(4))
    assert all(map(torch.equal, state, (torch.get_rng_state(), torch.fake.get_rng_state())))


def standing(copies):
    """Adds the row to a total, in place; gives the total itself, or a copy of it."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    added = graph.call_function(torch.ops.aten.add_.Tensor, (total, row))
    graph.output((graph.call_function(torch.ops.aten.clone.default, (added,)) if copies else added,))
    return Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_what_is_kept_of_a_step_is_what_it_was_then(count, copies):
    parts = Parts(standing(copies))
    parts(zeros(), zeros())
    rows = torch.arange(4.0 * count).reshape(count, 4)
    found = parts.repeat([zeros(), None], [1], [[there(row)] for row in rows], [0])
    assert torch.equal(found.kept[0].cpu(), rows.cumsum(0))


def test_control_what_is_put_there_at_the_end_would_not_be_if_a_later_step_wrote_to_it(monkeypatch):
    monkeypatch.setattr(block, "memory_places", lambda tensors: [0 for _ in tensors])
    monkeypatch.setattr(Block, "_memory", property(lambda self: (), lambda self, found: None), raising=False)
    parts = Parts(standing(copies=False))
    parts(zeros(), zeros())
    rows = torch.ones(5, 4)
    found = parts.repeat([zeros(), None], [1], [[there(row)] for row in rows], [0])
    assert not torch.equal(found.kept[0].cpu(), rows.cumsum(0))


def test_what_has_much_memory_is_put_there_at_once(monkeypatch):
    """Else a graph would keep it for each step."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    large = graph.call_function(torch.ops.aten.repeat.default, (row, [1 << 10]))
    graph.call_function(torch.ops.aten.add_.Tensor, (total, row))
    graph.output((graph.call_function(torch.ops.aten.select.int, (large, 0, 5)),))
    parts, waiting = Parts(Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4096)), []
    copy_all = block.copy_all
    monkeypatch.setattr(block, "copy_all", lambda to, given: (waiting.append(len(given)), copy_all(to, given)))
    parts(zeros(), zeros())
    rows = torch.arange(20.0).reshape(5, 4)
    found = parts.repeat([zeros(), None], [1], [[there(row)] for row in rows], [0])
    assert torch.equal(found.kept[0].cpu(), rows[:, 1])
    assert max(waiting) == 1


def test_a_step_that_gives_nothing_is_captured():
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    graph.call_function(torch.ops.aten.add_.Tensor, (total, row))
    graph.output(())
    parts, total = Parts(Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)), zeros()
    parts(zeros(), zeros())
    found = parts.repeat([total, None], [1], [[there(torch.ones(4))]] * 21, [])
    assert (found.done, found.kept, found.outputs) == (21, [], ())
    assert torch.equal(total.cpu(), torch.full((4,), 21.0))
    assert parts.graphs.replays


def test_nothing_need_be_kept():
    assert adding().repeat([zeros(), None], [1], [[zeros()]] * 3, []).kept == []


def test_what_is_kept_may_have_many_numbers():
    rows = torch.randn(21, 4)
    (kept,) = adding().repeat([zeros(), None], [1], [[row] for row in rows], [2]).kept
    assert torch.equal(kept.cpu(), rows * 2)


def test_outputs_stay_when_later_rows_run():
    parts, total = adding(), zeros()
    rows = [in_a_row(parts.step, [total, None], [1], [[torch.full((4,), float(value))]], [0]) for value in (1, 2)]
    block = rows[0]._blocks[0]
    rows[0].launch()
    outputs = rows[0].wait().outputs
    before, own = [output.cpu() for output in outputs], [output.cpu() for output in block._outputs]
    rows[1].launch()
    rows[1].wait()
    assert all(map(torch.equal, [output.cpu() for output in outputs], before))
    assert not all(map(torch.equal, [output.cpu() for output in block._outputs], own))  # the control


def sharing():
    """Gives a matrix, a row of it, the input that stays, and the one that differs."""
    graph = fx.Graph()
    weight, row = graph.placeholder("weight"), graph.placeholder("row")
    made = graph.call_function(torch.ops.aten.mul.Tensor, (weight, row))
    graph.output((made, graph.call_function(torch.ops.aten.select.int, (made, 0, 1)), weight, row))
    return type(recording())(graph, inputs=[torch.ones(2, 4), torch.ones(4)], largest=8)


def test_outputs_share_what_they_shared():
    parts, weight, rows = Parts(sharing()), there(torch.ones(2, 4)), torch.randn(5, 4)
    parts(weight, there(rows[0]))
    made, part, same, last = parts.repeat([weight, None], [1], [[row] for row in rows], []).outputs
    assert torch.equal(made.cpu(), rows[-1].expand(2, 4))
    made[1] = 5
    assert torch.equal(part.cpu(), torch.full((4,), 5.0))
    weight.fill_(3)
    assert torch.equal(same.cpu(), weight.cpu())
    assert torch.equal(last.cpu(), rows[-1])
    assert not made._is_view()


def test_inputs_that_lie_elsewhere_are_captured_again():
    parts, totals = adding(), [zeros(), zeros()]
    for total in (*totals, totals[1]):
        parts.repeat([total, None], [1], [[there(torch.ones(4))]], [0])
    assert parts.graphs.captures == 2
    assert [float(total[0]) for total in totals] == [1.0, 2.0]


def test_only_a_rows_own_end_is_waited_for():
    parts, total = adding(), zeros()
    rows = [in_a_row(parts.step, [total, None], [1], [[torch.ones(4)]] * 2, [0]) for _ in range(2)]
    parts.graphs.waited.clear()
    for row in rows:
        row.launch()
    assert parts.graphs.waited == []
    rows[0].wait()
    assert parts.graphs.waited == [parts.graphs.marks - 2]  # the last two are the second row's
    rows[1].wait()
    with pytest.raises(AssertionError, match="launched"):
        in_a_row(parts.step, [total, None], [1], [[torch.ones(4)]], [0]).wait()


LAYOUTS = {
    "columns": torch.arange(12.0).reshape(4, 3).t(),
    "a slice": torch.arange(12.0).reshape(4, 3)[:, 1],
    "one number for all": torch.ones(1).expand(4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_are_laid_as_they_were(name):
    like, found = LAYOUTS[name], []
    parts = adding()
    function = parts.step._function
    parts.step._function = lambda total, row: (found.append(row.stride()), function(total, row))[1]
    total = there(torch.zeros_like(like.contiguous()))
    given = [[copy_of(like)] for _ in range(3)]
    result = parts.repeat([total, None], [1], given, [])
    assert result.done == 3
    assert found == [like.stride()] * len(found)
    assert torch.equal(total.cpu(), sum(row for (row,) in given))


def test_what_is_written_to_or_overlaps_is_given_step_by_step_as_it_is():
    parts = adding(placement=Placement(written=frozenset({0})))
    total = there(torch.ones(4))
    parts.repeat([total, None], [1], [[total]] * 3, [])  # each step adds the total to itself
    assert torch.equal(total.cpu(), torch.full((4,), 8.0))
    row = there(torch.ones(4))
    parts.repeat([None, row], [0], [[total]] * 3, [])  # the input that differs is the one that is written to
    assert torch.equal(total.cpu(), torch.full((4,), 11.0))
    assert parts.graphs.replays == 0


def test_steps_that_cannot_be_captured_are_launched_one_by_one_and_that_is_said_once():
    said = []
    parts = adding(refuse=said.append)
    parts.graphs.capture = lambda body, left=None: refuse(RuntimeError("no"))
    total, rows = zeros(), torch.arange(84.0).reshape(21, 4)
    for _ in range(2):
        found = parts.repeat([total, None], [1], [[row] for row in rows], [0])
    assert [str(error) for error in said] == ["no"]
    assert torch.equal(total.cpu(), rows.sum(0) * 2)
    assert torch.equal(found.kept[0].cpu(), rows.sum() + rows.sum(1).cumsum(0))


@pytest.mark.parametrize("what", ["item", "crossing"])
def test_what_waits_for_the_device_cannot_be_captured(what):
    def function(total, row):
        return (row * (total.sum().item() if what == "item" else total.cpu().to(DEVICE)),)

    said, graphs = [], FakeGraphs(DEVICE)
    step = CapturedStep(function, Blocks(graphs, said.append, None), Placement())
    step(zeros(), zeros())
    in_a_row(step, [zeros(), None], [1], [[zeros()]], [])
    assert [str(error) for error in said] == ["operation not permitted when stream is capturing"]


# -- on the host ------------------------------------------------------------------------------------------------------


def counting():
    """Counts its steps on the host, as optimizers do; scales by the count and a rate; gives both and the product."""
    graph = fx.Graph()
    count, rate, row = (graph.placeholder(name) for name in ("count", "rate", "row"))
    added = graph.call_function(torch.ops.aten.add_.Tensor, (count, 1.0))
    scaled = graph.call_function(torch.ops.aten.mul.Tensor, (row, added))
    product = graph.call_function(torch.ops.aten.mul.Tensor, (scaled, rate))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (rate, 2.0)), product))
    return type(recording())(graph, inputs=[torch.zeros(()), torch.ones(()), torch.ones(4)], largest=4)


ON_HOST = Placement(inputs=frozenset({0, 1}), outputs=frozenset({0}), written=frozenset({0}))


def test_tensors_of_the_hosts_are_there_when_steps_begin_and_here_when_they_end():
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    twice, product = parts(count, rate, zeros())
    assert (float(count), float(twice), twice.is_cpu, product.is_cpu) == (1.0, 1.0, True, False)
    for expected in (22.0, 43.0):
        rate.fill_(expected)
        found = parts.repeat([count, rate, None], [2], [[torch.ones(4)]] * 21, [0, 1])
        assert float(count) == expected
        assert torch.equal(found.outputs[1].cpu(), torch.full((4,), expected * expected))
        assert found.kept[0].is_cpu
        assert torch.equal(found.kept[0], torch.full((21,), 2 * expected))
        steps = torch.arange(expected - 20, expected + 1)
        assert torch.equal(found.kept[1][:, 0].cpu(), steps * expected)
    count.zero_()  # somebody sets it back
    parts.repeat([count, rate, None], [2], [[torch.ones(4)]] * 3, [])
    assert float(count) == 3.0


def test_what_overlapping_rows_leave_is_right_behind_the_last():
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    first = in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * 3, [1])
    first.launch()
    rate.fill_(2.0)
    second = in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * 4, [1])
    second.launch()
    assert float(count) == 1.0
    one = first.wait()
    assert torch.equal(one.kept[0][:, 0].cpu(), torch.tensor([1.0, 1.5, 2.0]))
    assert one.outputs is None  # those of the second row take their place
    other = second.wait()
    assert torch.equal(other.kept[0][:, 0].cpu(), torch.tensor([10.0, 12.0, 14.0, 16.0]))
    assert (float(other.outputs[0]), other.outputs[0].is_cpu) == (4.0, True)
    assert torch.equal(other.outputs[1].cpu(), torch.full((4,), 16.0))
    assert float(count) == 8.0
    rate.fill_(0.5)  # a row that begins behind both is given what the host has again
    found = parts.repeat([count, rate, None], [2], [[torch.ones(4)]] * 2, [1])
    assert torch.equal(found.kept[0][:, 0].cpu(), torch.tensor([4.5, 5.0]))
    assert float(count) == 10.0


def test_a_row_before_one_that_is_not_captured_leaves_what_it_gave():
    """The later one may fail before its first step."""
    parts, total = adding(refuse=None), zeros()
    rows = [
        in_a_row(parts.step, [total, None], [1], [[there(torch.full((4,), value))]] * 2, []) for value in (1.0, 2.0)
    ]
    for row in rows:
        row.launch()
    outputs = [row.wait().outputs for row in rows]
    assert torch.equal(outputs[0][2].cpu(), torch.full((4,), 2.0))
    assert torch.equal(outputs[1][2].cpu(), torch.full((4,), 4.0))


def test_a_row_that_nobody_waits_for_counts():
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    row = in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * 3, [])
    row.launch()
    del row
    assert float(count) == 4.0


def test_numbers_that_differ_from_step_to_step_may_be_the_hosts():
    parts = Parts(counting(), ON_HOST)
    count = torch.zeros(())
    parts(count, torch.tensor(0.5), zeros())
    rows = [[torch.ones(4), torch.tensor(float(number))] for number in range(5)]
    (kept,) = parts.repeat([count, None, None], [2, 1], rows, [1]).kept
    assert torch.equal(kept[:, 0].cpu(), torch.arange(5.0) * torch.arange(2.0, 7.0))


def drawing():
    """Adds a number that is drawn on the host and one that is drawn on the device."""
    graph = fx.Graph()
    total, row, here, drawn = (graph.placeholder(name) for name in ("total", "row", "here", "there"))
    both = graph.call_function(torch.ops.aten.add.Tensor, (here, drawn))
    added = graph.call_function(torch.ops.aten.add_.Tensor, (total, both))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (added, row)),))
    return type(recording())(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


def test_draws_are_those_of_steps_one_by_one_wherever_they_are_made():
    rand = torch.ops.aten.rand.default
    draws = [Draw(rand, ([4],), {"device": torch.device(place)}) for place in ("cpu", DEVICE)]
    totals = []
    for in_rows in (False, True):
        torch.manual_seed(3)
        parts, total = Parts(drawing(), Placement(draws=frozenset({0})), draws), zeros()
        parts(total, there(torch.ones(4)))
        if in_rows:
            parts.repeat([total, None], [1], [[torch.ones(4)]] * 21, [])
            assert parts.graphs.replays
        else:
            for _ in range(21):
                parts(total, there(torch.ones(4)))
        totals += [total.cpu(), torch.get_rng_state(), torch.fake.get_rng_state()]
    assert all(map(torch.equal, totals[:3], totals[3:]))


def test_graphs_have_to_say_how():
    with pytest.raises(TypeError, match="abstract"):
        Graphs()


# -- failures ---------------------------------------------------------------------------------------------------------


def failing_at(third):
    """A step that is launched each time, and fails when a row begins with that number."""
    parts = adding(refuse=None)
    function = parts.step._function

    def fails(total, row):
        if float(row[0]) == third:
            raise IndexError("no such row")
        return function(total, row)

    parts.step._function = fails
    return parts


def test_steps_before_one_that_fails_count():
    parts, total, rows = failing_at(3.0), zeros(), torch.arange(6.0)[:, None].expand(6, 4)
    row = in_a_row(parts.step, [total, None], [1], [[row.contiguous()] for row in rows], [0])
    row.launch()
    assert row.failed
    found = row.wait()
    assert found.done == 3
    assert isinstance(found.error, IndexError)
    assert torch.equal(total.cpu(), rows[:3].sum(0))
    assert torch.equal(found.kept[0].cpu(), rows[:3].sum(1).cumsum(0))
    assert torch.equal(found.outputs[2].cpu(), rows[2] * 2)


def test_a_first_step_that_fails_leaves_nothing():
    found = failing_at(0.0).repeat([zeros(), None], [1], [[torch.zeros(4)]] * 2, [0])
    assert (found.done, found.outputs, [len(kept) for kept in found.kept]) == (0, (), [0])
    assert isinstance(found.error, IndexError)


def test_behind_a_step_that_failed_the_hosts_tensors_are_brought_again():
    parts = Parts(counting(), ON_HOST)
    function, count, rate = parts.step._function, torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    parts.step._function = lambda *given: refuse(IndexError("no such row"))
    with pytest.raises(IndexError):
        parts(count, rate, zeros())
    parts.step._function = function
    count.fill_(100.0)  # as loading a checkpoint does
    parts(count, rate, zeros())
    assert float(count) == 101.0


def failing_in(monkeypatch, name, number, error):
    """Has a block's method, or that of a loop's turns, raise from that call on."""
    calls = itertools.count(1)

    def limited(method):
        return lambda *args: method(*args) if next(calls) < number else refuse(error)

    for kind in {Block, Turns} if name == "run" else {Block}:
        monkeypatch.setattr(kind, name, limited(getattr(kind, name)))


@pytest.mark.parametrize("graphs", [0, 1])
def test_where_a_graph_cannot_be_launched_every_step_before_it_counts(monkeypatch, graphs):
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    first, second = (
        in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * steps, [1]) for steps in (4, 20)
    )
    first.launch()
    failing_in(monkeypatch, "run", 1 + graphs, MemoryError("no room for a graph"))
    second.launch()
    assert second.failed
    one, other = first.wait(), second.wait()
    assert float(count) == 5.0 + 16 * graphs
    assert (one.done, other.done, str(other.error)) == (4, 16 * graphs, "no room for a graph")
    outputs = (one, other)[graphs].outputs
    assert (float(outputs[0]), outputs[0].is_cpu) == (1.0, True)
    assert torch.equal(outputs[1].cpu(), torch.full((4,), 0.5 * float(count)))
    assert torch.equal(other.kept[0][:, 0].cpu(), torch.arange(6.0, 6.0 + 16 * graphs) / 2)


def test_where_a_row_is_interrupted_the_hosts_tensors_are_those_of_the_steps_that_ran(monkeypatch):
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    first, second = (
        in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * steps, [1]) for steps in (4, 20)
    )
    first.launch()
    failing_in(monkeypatch, "run", 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        second.launch()
    found = first.wait()
    assert (found.done, found.outputs) == (4, None)  # graphs of the second one may have filled their memory
    assert float(count) == 21.0


@pytest.mark.parametrize("is_captured", [True, False])
def test_where_a_launch_fails_behind_its_steps_the_hosts_tensors_are_those_of_the_steps_that_ran(
    monkeypatch, is_captured
):
    parts = Parts(counting(), ON_HOST, refuse=refuse if is_captured else None)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    before, row = (in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * 4, [0]) for _ in range(2))
    before.launch()
    monkeypatch.setattr(parts.step.counterparts, "fetch", lambda columns: refuse(MemoryError("no pinned memory")))
    with pytest.raises(MemoryError):
        row.launch()
    assert float(count) == 9.0
    found = before.wait()
    assert float(count) == 9.0
    if is_captured:
        assert found.outputs is None
    else:
        assert torch.equal(found.outputs[1].cpu(), torch.full((4,), 2.5))


def test_a_row_of_which_nothing_ran_takes_no_others_place(monkeypatch):
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    rows = [in_a_row(parts.step, [count, rate, None], [2], [[torch.ones(4)]] * 4, [0]) for _ in range(3)]
    rows[0].launch()
    with monkeypatch.context() as patched:
        failing_in(patched, "run", 1, MemoryError("no room for a graph"))
        rows[1].launch()
    rows[2].launch()
    found = [row.wait() for row in rows]
    assert [(each.done, each.outputs is None) for each in found] == [(4, True), (0, False), (4, False)]
    assert float(count) == 9.0
    assert torch.equal(found[2].outputs[1].cpu(), torch.full((4,), 4.5))


def test_where_there_is_no_room_for_outputs_the_hosts_tensors_are_those_of_the_steps_that_ran(monkeypatch):
    parts = Parts(counting(), ON_HOST)
    count, rate = torch.zeros(()), torch.tensor(0.5)
    parts(count, rate, zeros())
    failing_in(monkeypatch, "outputs", 1, MemoryError("no room for outputs"))
    with pytest.raises(MemoryError):
        parts.repeat([count, rate, None], [2], [[torch.ones(4)]] * 4, [])
    assert float(count) == 5.0
    count.zero_()  # and is what the next row begins with
    monkeypatch.undo()
    parts.repeat([count, rate, None], [2], [[torch.ones(4)]] * 4, [])
    assert float(count) == 4.0


def test_where_the_largest_graph_cannot_be_captured_smaller_ones_take_its_place(monkeypatch):
    monkeypatch.setattr(FakeGraphs, "loops", False)
    parts, total, tried = adding(), zeros(), []
    capture = parts.graphs.capture

    def refused(body, left=None):
        tried.append(left)
        if len(tried) == 1:
            raise RuntimeError("no memory")
        return capture(body, left)

    parts.graphs.capture = refused
    rows = torch.arange(800.0).reshape(200, 4)
    for number in (1, 2):
        found = parts.repeat([total, None], [1], [[row] for row in rows], [0])
        assert torch.equal(total.cpu(), number * rows.sum(0))
        assert found.done == 200
    assert parts.graphs.captures == len(tried) - 1 == 2  # of 16 steps and of 4
    assert parts.graphs.replays == 2 * (12 + 2)


def test_where_a_larger_graph_cannot_be_captured_all_steps_are_launched():
    said = []
    parts = adding(refuse=said.append, unroll=lambda why: None)
    capture = parts.graphs.capture
    parts.graphs.capture = lambda *args: capture(*args) if parts.graphs.captures == 0 else refuse(RuntimeError("no"))
    total, rows = zeros(), torch.arange(84.0).reshape(21, 4)
    found = parts.repeat([total, None], [1], [[row] for row in rows], [0])
    assert [str(error) for error in said] == ["no"]
    assert torch.equal(total.cpu(), rows.sum(0))
    assert torch.equal(found.kept[0].cpu(), rows.sum(1).cumsum(0))
