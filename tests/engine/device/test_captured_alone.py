"""Steps that are run one at a time are replayed too, where that is often done; they are the same steps then."""

import pytest
import torch
from rows import recording, repeat
from test_captured import DEVICE, ON_HOST, Parts, adding, counting, drawing, refuse, there, zeros
from torch import fx

from lightning_sink.engine.device.block import Block
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.tracing.draws import Draw

pytestmark = pytest.mark.usefixtures("fake")

WRITTEN = Placement(written=frozenset({0}))


def alone(parts, count, inputs, positions=(1,), kept=(0,)):
    """Runs steps one at a time; returns what each gave."""
    return [parts.step.once(list(inputs(number)), [*positions], [*kept]) for number in range(count)]


@pytest.mark.parametrize("on_host", [False, True])
def test_steps_alone_are_replayed_and_leave_what_they_left(on_host):
    placement = Placement(inputs=frozenset({1} if on_host else ()), written=frozenset({0}))
    parts, total = adding(placement=placement), zeros()
    rows = torch.arange(84.0).reshape(21, 4)
    found = alone(parts, 21, lambda number: (total, rows[number] if on_host else there(rows[number])))
    assert parts.graphs.captures == 1
    assert parts.graphs.replays >= 10
    assert torch.equal(total.cpu(), rows.sum(0))
    assert torch.equal(torch.stack([sums.cpu() for sums, _, _ in found]), rows.sum(1).cumsum(0))
    assert torch.equal(torch.stack([twice.cpu() for _, _, twice in found]), rows * 2)  # later ones leave them alone


def test_a_few_are_not_worth_a_graph():
    parts, total = adding(), zeros()
    alone(parts, 6, lambda number: (total, zeros()))
    assert parts.graphs.captures == 0


def test_long_ones_are_not_either_and_are_waited_for_once():
    parts, total = Parts(recording()), zeros()
    parts.graphs.seconds = lambda begin, end: 1.0
    alone(parts, 21, lambda number: (total, there(torch.ones(4))))
    assert (parts.graphs.captures, len(parts.graphs.waited)) == (0, 1)
    assert torch.equal(total.cpu(), torch.full((4,), 21.0))


def test_what_takes_long_to_launch_may_take_little_to_replay():
    """Events around a step that is launched operation by operation see the host's time, too."""
    parts, total = Parts(recording()), zeros()
    parts.graphs.seconds = lambda begin, end: 5e-3
    alone(parts, 21, lambda number: (total, there(torch.ones(4))))
    assert parts.graphs.captures == 1
    assert torch.equal(total.cpu(), torch.full((4,), 21.0))


def test_replays_wait_for_nothing():
    parts, total = adding(), zeros()
    alone(parts, 21, lambda number: (total, zeros()))
    waited = len(parts.graphs.waited)
    alone(parts, 21, lambda number: (total, zeros()))
    assert len(parts.graphs.waited) == waited


def test_rows_and_steps_alone_share_a_graph():
    parts, total = adding(), zeros()
    repeat(parts.step, [total, None], [1], [[there(torch.ones(4))]], [0])
    assert parts.graphs.captures == 1
    alone(parts, 21, lambda number: (total, there(torch.ones(4))))
    assert parts.graphs.captures == 1
    assert torch.equal(total.cpu(), torch.full((4,), 22.0))


def test_what_differs_and_is_written_to_is_written_to_wherever_it_lies():
    """As gradients are, in the middle of an accumulation."""
    parts, totals = adding(placement=WRITTEN), [there(torch.full((4,), float(number))) for number in range(5)]
    rows = torch.arange(84.0).reshape(21, 4)
    alone(parts, 21, lambda number: (totals[number % 5], there(rows[number])), positions=(0, 1))
    assert parts.graphs.replays >= 10
    for number, total in enumerate(totals):
        assert torch.equal(total.cpu(), rows[number::5].sum(0) + number)


def test_control_without_being_written_back_it_is_not(monkeypatch):
    monkeypatch.setattr(Block, "write_back", lambda self, inputs: None)
    parts, total = adding(placement=WRITTEN), zeros()
    alone(parts, 21, lambda number: (total, there(torch.ones(4))), positions=(0, 1))
    assert float(total[0]) < 21.0


def test_what_is_written_to_between_other_numbers_leaves_these_alone():
    parts, around = adding(placement=WRITTEN), torch.zeros(4, 3)
    held = there(around)
    alone(parts, 21, lambda number: (held[:, 1], there(torch.ones(4))), positions=(0, 1))
    assert parts.graphs.replays >= 10
    assert torch.equal(held.cpu(), torch.tensor([0.0, 21.0, 0.0]).expand(4, 3))


def reading_what_it_wrote():
    """Adds a row to a total, in place, and gives another tensor as it is then."""
    graph = fx.Graph()
    other, total, row = (graph.placeholder(name) for name in ("other", "total", "row"))
    graph.call_function(torch.ops.aten.add_.Tensor, (total, row))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (other, 1.0)),))
    return type(recording())(graph, inputs=[torch.zeros(4), torch.zeros(4), torch.zeros(4)], largest=4)


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_is_written_to_is_seen_through_an_input_that_stays(is_shared):
    parts, totals = Parts(reading_what_it_wrote(), Placement(written=frozenset({1}))), [zeros(), zeros()]
    other = totals[0].view(4) if is_shared else zeros()
    found = alone(parts, 40, lambda n: (other, totals[n // 20], there(torch.ones(4))), positions=(1, 2))
    assert [float(values[0]) for (values,) in found[:20]] == [is_shared * (number + 1.0) for number in range(20)]
    assert parts.graphs.replays >= (10 if is_shared else 30)  # nothing is shared with the second total


def test_inputs_that_are_only_read_may_share_memory():
    """Two views of one tensor, as a batch may be."""
    parts, totals = Parts(reading_what_it_wrote(), Placement(written=frozenset({1}))), [zeros() for _ in range(3)]
    rows = there(torch.ones(8))
    found = alone(parts, 21, lambda n: (rows[:4], totals[n % 3], rows[4:]), positions=(0, 1, 2))
    assert parts.graphs.replays >= 10
    assert [float(total[0]) for total in totals] == [7.0] * 3
    assert all(torch.equal(values.cpu(), torch.ones(4)) for (values,) in found)


def test_nothing_is_said_of_memory_where_there_is_none():
    parts, empty = Parts(reading_what_it_wrote(), Placement(written=frozenset({1}))), zeros(0)
    alone(parts, 21, lambda n: (empty[:0], zeros(0), empty[:0]), positions=(0, 1, 2))
    assert parts.graphs.replays >= 10


def test_inputs_that_share_memory_are_given_as_they_are():
    parts, total = adding(placement=WRITTEN), there(torch.ones(4))
    alone(parts, 10, lambda number: (total, total), positions=(0, 1))  # each adds the total to itself
    alone(parts, 10, lambda number: (total, total))
    assert torch.equal(total.cpu(), torch.full((4,), 2.0**20))
    assert parts.graphs.replays == 0


def test_inputs_that_move_at_each_step_are_not_captured_each_time():
    parts, totals = adding(placement=WRITTEN), [zeros(), zeros()]
    alone(parts, 40, lambda number: (totals[number % 2], there(torch.ones(4))))
    assert parts.graphs.captures == 0
    assert [float(total[0]) for total in totals] == [20.0, 20.0]
    alone(parts, 40, lambda number: (totals[number // 20], there(torch.ones(4))))
    assert parts.graphs.captures == 2
    assert [float(total[0]) for total in totals] == [40.0, 40.0]


def test_tensors_of_the_hosts_are_there_when_a_step_begins_and_here_when_it_ends():
    parts, count, rate = Parts(counting(), ON_HOST), torch.zeros(()), torch.tensor(0.5)
    for number in range(21):
        rate.fill_(float(number))
        twice, product = parts.step.once([count, rate, there(torch.ones(4))], [2], [0])
        assert (float(count), float(twice), twice.is_cpu) == (number + 1.0, 2.0 * number, True)
        assert torch.equal(product.cpu(), torch.full((4,), number * (number + 1.0)))
    assert parts.graphs.replays >= 10
    count.zero_()  # somebody sets it back
    parts.step.once([count, rate, there(torch.ones(4))], [2], [0])
    assert float(count) == 1.0


def test_what_differs_and_is_written_to_on_the_host_is_given_as_it_is():
    parts, counts = Parts(counting(), ON_HOST), [torch.zeros(()), torch.zeros(())]
    alone(parts, 20, lambda n: (counts[n % 2], torch.tensor(0.5), there(torch.ones(4))), positions=(0, 2))
    assert [float(count) for count in counts] == [10.0, 10.0]


def test_draws_are_those_of_steps_that_are_launched_wherever_they_are_made():
    rand, totals = torch.ops.aten.rand.default, []
    draws = [Draw(rand, ([4],), {"device": torch.device(place)}) for place in ("cpu", DEVICE)]
    for replayed in (False, True):
        torch.manual_seed(3)
        parts = Parts(drawing(), Placement(draws=frozenset({0}), written=frozenset({0})), draws)
        total, row = zeros(), there(torch.ones(4))
        for _ in range(21):
            parts.step.once([total, row], [1], []) if replayed else parts(total, row)
        assert (parts.graphs.replays > 0) == replayed
        totals += [total.cpu(), torch.get_rng_state(), torch.fake.get_rng_state()]
    assert all(map(torch.equal, totals[:3], totals[3:]))


def test_where_they_cannot_be_captured_that_is_said_once_and_they_are_launched(monkeypatch):
    said, runs, run = [], [], Block.run
    parts, total = adding(refuse=said.append), zeros()
    parts.graphs.capture = lambda body, left=None: refuse(RuntimeError("no"))
    monkeypatch.setattr(Block, "run", lambda block, columns: (runs.append(block), run(block, columns)))
    alone(parts, 21, lambda number: (total, there(torch.ones(4))))
    assert [str(error) for error in said] == ["no"]
    assert torch.equal(total.cpu(), torch.full((4,), 21.0))
    assert len(runs) == 1  # the others are not put elsewhere first


def giving_one_tensor_twice(negated):
    """Gives the sum of two numbers, which may lie on the host, twice, and one that is as large beside them."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    added = graph.call_function(torch.ops.aten.add.Tensor, (total, row))
    once = graph.call_function(torch.ops.aten._neg_view.default, (added,)) if negated else added
    graph.output((once, graph.call_function(torch.ops.aten.add.Tensor, (total, row)), once))
    return type(recording())(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


@pytest.mark.parametrize("is_row", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("negated", [False, True])
def test_an_output_that_occurs_twice_is_one_tensor(negated, on_host, is_row):
    """As where a step keeps a tensor under two names."""
    placement = Placement(outputs=frozenset({0, 2} if on_host else ()))
    parts, total = Parts(giving_one_tensor_twice(negated), placement), zeros()
    if is_row:
        parts(total, zeros())
        outputs = repeat(parts.step, [total, None], [1], [[there(torch.ones(4))]] * 5, []).outputs
    else:
        outputs = alone(parts, 21, lambda number: (total, there(torch.ones(4))))[-1]
    assert parts.graphs.replays
    assert outputs[0] is outputs[2]
    assert outputs[0] is not outputs[1]
    assert outputs[0].is_cpu == on_host
    assert torch.equal(outputs[0].resolve_neg().cpu(), torch.full((4,), -1.0 if negated else 1.0))


def test_graphs_are_for_the_inputs_that_differ_and_not_for_as_many_others():
    parts, total = adding(placement=WRITTEN), zeros()
    rows = there(torch.arange(4.0))
    alone(parts, 20, lambda number: (total, there(torch.ones(4))))
    alone(parts, 20, lambda number: (zeros(), rows), positions=(0,))
    alone(parts, 20, lambda number: (total, there(torch.ones(4))))
    assert torch.equal(total.cpu(), torch.full((4,), 40.0))
    assert parts.graphs.captures <= 3


def test_nothing_is_waited_for_behind_one_that_had_to_be_launched():
    parts, total = adding(placement=WRITTEN), zeros()
    alone(parts, 21, lambda number: (total, zeros()))
    waited, replays = len(parts.graphs.waited), parts.graphs.replays
    alone(parts, 21, lambda number: (total, total if number % 7 == 0 else zeros()))
    repeat(parts.step, [total, None], [1], [[zeros()]] * 3, [])
    assert parts.graphs.replays > replays
    assert len(parts.graphs.waited) == waited + 1  # for the row, by whoever wants what it gave


def failing(monkeypatch, method, error=RuntimeError):
    """Has the twentieth step fail there; returns what the host's count was behind it, and behind the next one."""
    parts, count, fails = Parts(counting(), ON_HOST), torch.zeros(()), getattr(Block, method)

    def step():
        parts.step.once([count, torch.tensor(0.5), there(torch.ones(4))], [2], [0])

    for _ in range(19):
        step()
    monkeypatch.setattr(Block, method, lambda *args: refuse(error("no memory")))
    with pytest.raises(error, match="no memory"):
        step()
    monkeypatch.setattr(Block, method, fails)
    behind = float(count)
    step()
    return behind, float(count)


def test_a_step_that_cannot_be_launched_counts_for_nothing(monkeypatch):
    assert failing(monkeypatch, "run") == (19.0, 20.0)


def test_where_there_is_no_room_for_outputs_the_step_counts(monkeypatch):
    assert failing(monkeypatch, "outputs") == (20.0, 21.0)


@pytest.mark.parametrize(("method", "count"), [("run", 19.0), ("write_back", 20.0), ("outputs", 20.0)])
def test_where_a_step_is_interrupted_it_counts_if_it_ran(monkeypatch, method, count):
    assert failing(monkeypatch, method, KeyboardInterrupt) == (count, count + 1)


def test_where_a_step_that_is_launched_is_interrupted_behind_its_end_it_counts(monkeypatch):
    parts, count = Parts(counting(), ON_HOST), torch.zeros(())
    given = torch.tensor(0.5), there(torch.ones(4))
    monkeypatch.setattr(parts.step.blocks, "ran", lambda *marks: refuse(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        parts(count, *given)
    monkeypatch.undo()
    assert float(count) == 1.0
    parts(count, *given)
    assert float(count) == 2.0
