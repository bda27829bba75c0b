"""Steps that a device repeats by itself are the steps that it is given, one launch for many of them."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import in_a_row, recording
from test_captured import Parts, adding, drawing, refuse, there, zeros

from fake_graphs import FakeGraphs
from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.device import blocks
from lightning_sink.engine.device.block import BlockLoop
from lightning_sink.engine.device.block_memory import fill
from lightning_sink.engine.device.placement import Placement
from lightning_sink.engine.tracing.draws import Draw

pytestmark = pytest.mark.usefixtures("fake")

MOST = 64 * 16
"""Steps of one launch."""

STEP = 4 * (4 + 1 + 4)
"""Bytes of a step: four numbers go in, and one and four are kept."""


@pytest.fixture(autouse=True)
def _repeats(monkeypatch):
    monkeypatch.setattr(FakeGraphs, "loops", True)


def run(parts, total, rows, kept=(0, 2), side_by_side=True):
    """Runs a row on what lies on the device; returns what became of it."""
    column = there(rows)
    turn = Turn(parts.step, [total, None], [1], [column if side_by_side else [*column]], [*kept])
    row = parts.step.row([turn], len(rows))
    row.launch()
    return row.wait()


@pytest.mark.narrow(13)
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 53, MOST - 1, MOST, MOST + 1, 2 * MOST + 37])
def test_each_step_has_its_own_inputs_and_counts_once(count, side_by_side):
    parts, total, rows = adding(), zeros(), torch.randn(count, 4)
    for number in range(1, 4):
        found = run(parts, total, rows, side_by_side=side_by_side)
        assert (found.done, found.error) == (count, None)
        assert torch.allclose(total.cpu(), number * rows.sum(0), atol=1e-3)
        assert torch.equal(found.kept[1].cpu(), rows * 2)
        assert torch.equal(found.outputs[2].cpu(), rows[-1] * 2)
    assert parts.graphs.turns == 3 * (count // 16)


@pytest.mark.narrow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(counts=st.lists(st.integers(1, MOST + 100), min_size=1, max_size=4))
def test_rows_of_any_length_behind_one_another(counts):
    parts, total, sums = adding(), zeros(), []
    for count in counts:
        sums.append(run(parts, total, torch.ones(count, 4)).kept[0].cpu())
    assert torch.equal(torch.cat(sums), 4 * torch.arange(1.0, sum(counts) + 1))
    assert parts.graphs.captures <= 3


def test_a_row_is_one_launch_however_long():
    parts, total, launches = adding(), zeros(), []
    for count in (MOST, 16, MOST):
        before = parts.graphs.replays
        run(parts, total, torch.ones(count, 4))
        launches.append(parts.graphs.replays - before)
    assert launches == [1, 1, 1]


def test_control_unrolled_it_is_one_for_some_steps(monkeypatch):
    monkeypatch.setattr(FakeGraphs, "loops", False)
    parts, total = adding(), zeros()
    run(parts, total, torch.ones(MOST, 4))
    assert parts.graphs.replays == MOST // 64


def test_control_a_loop_that_goes_on_where_the_last_row_ended_gives_something_else(monkeypatch):
    def repeat(self, columns, turns):
        fill(self._line, columns)
        self._left.fill_(turns)
        self.replay()

    monkeypatch.setattr(BlockLoop, "repeat", repeat)
    parts, total, rows = adding(), zeros(), torch.randn(32, 4)
    run(parts, total, rows)
    run(parts, total, rows)
    assert not torch.allclose(total.cpu(), 2 * rows.sum(0), atol=1e-3)


def test_what_lies_in_line_is_bounded(monkeypatch):
    monkeypatch.setattr(blocks, "_LINE", 3 * 16 * STEP)
    parts, total, rows = adding(), zeros(), torch.randn(16 * 7, 4)
    found = run(parts, total, rows)
    assert torch.equal(found.kept[1].cpu(), rows * 2)
    assert (parts.graphs.replays, parts.graphs.turns) == (3, 7)


def test_inputs_that_are_too_large_for_two_turns_are_unrolled(monkeypatch):
    monkeypatch.setattr(blocks, "_LINE", 2 * 16 * STEP - 1)
    parts, total, rows = adding(), zeros(), torch.randn(16 * 7, 4)
    assert torch.equal(run(parts, total, rows).kept[1].cpu(), rows * 2)
    assert (parts.graphs.replays, parts.graphs.turns) == (7, 0)


def test_where_there_is_no_loop_steps_are_unrolled_and_that_is_said_once():
    said, parts, total = [], adding(unroll=lambda why: said.append(why)), zeros()
    capture = parts.graphs.capture
    error = RuntimeError("no loops\nhere")
    parts.graphs.capture = lambda body, left=None: capture(body) if left is None else refuse(error)
    rows = torch.randn(53, 4)
    for _ in range(2):
        assert torch.equal(run(parts, total, rows).kept[1].cpu(), rows * 2)
    assert said == ["RuntimeError: no loops"]
    assert parts.graphs.turns == 0
    assert parts.graphs.replays == 2 * (3 + 1 + 1)


def test_where_nothing_can_be_captured_only_that_is_said():
    said = []
    parts, total, rows = adding(refuse=said.append, unroll=refuse), zeros(), torch.randn(33, 4)
    error = RuntimeError("no")
    parts.graphs.capture = lambda body, left=None: refuse(error)
    assert torch.equal(run(parts, total, rows).kept[1].cpu(), rows * 2)
    assert said == [error]


def test_no_loop_is_tried_before_a_step_has_been_captured():
    """Whether a step can be captured at all is found out where a failure does no harm."""
    parts, total, sizes = adding(), zeros(), []
    capture = parts.graphs.capture
    parts.graphs.capture = lambda body, left=None: (sizes.append(left is not None), capture(body, left))[1]
    run(parts, total, torch.randn(64, 4))
    assert sizes == [False, True]


def test_steps_that_draw_on_the_device_are_unrolled():
    """PyTorch refuses draws in a loop: each turn's would be the same."""
    draws = [Draw(torch.ops.aten.rand.default, ([4],), {"device": torch.device(where)}) for where in ("cpu", "fake:0")]
    parts, total = Parts(drawing(), Placement(draws=frozenset({0})), draws), zeros()
    parts(total, zeros())
    in_a_row(parts.step, [total, None], [1], [[there(torch.ones(4))]] * 33, []).launch()
    assert parts.graphs.turns == 0
    assert parts.graphs.replays == 3


def test_steps_that_draw_on_the_host_have_draws_of_their_own():
    totals = []
    rand = torch.ops.aten.rand.default
    draws = [Draw(rand, ([4],), {"device": torch.device("cpu")}) for _ in range(2)]
    for loops in (False, True):
        torch.manual_seed(3)
        FakeGraphs.loops = loops  # put back by the fixture
        parts, total = Parts(drawing(), Placement(draws=frozenset({0, 1})), draws), zeros()
        parts(total, zeros() + 1)
        in_a_row(parts.step, [total, None], [1], [[there(torch.ones(4))]] * 53, []).launch()
        totals.append(total.cpu())
        assert (parts.graphs.turns > 0) is loops
    assert torch.equal(*totals)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.float64])
def test_inputs_of_any_type(dtype):
    parts, total, found = Parts(recording()), zeros(), []
    function = parts.step._function
    parts.step._function = lambda total, row, other: (found.append(other.dtype), function(total, row * other))[1]
    rows, others = torch.randn(37, 4), torch.randint(0, 2, (37, 4)).to(dtype)
    parts(total, zeros(), there(others[0]))
    row = parts.step.row([Turn(parts.step, [total, None, None], [1, 2], [there(rows), there(others)], [2])], 37)
    row.launch()
    assert torch.allclose(row.wait().kept[0].cpu().float(), 2 * rows * others.float())
    assert set(found) == {dtype}
