"""Steps in a row are the same steps one by one, whoever goes round the loop."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from loop import Training, assert_same, batches, loss_of, mlp, sgd, train, with_layouts
from rows import in_a_row, recording, repeat
from torch import fx, nn, optim

import leaks
from lightning_sink.engine.compiler.inductor import compile_inductor, compile_traced
from lightning_sink.engine.compiler.loop import CompiledStep, NativeStep
from lightning_sink.engine.compiler.row import NativeRow
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


COMPILERS = [compile_traced, pytest.param(compile_inductor, marks=missing)]


@pytest.fixture(scope="module")
def native():
    return compile_inductor(recording())


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_step_counts_and_the_last_one_is_returned(compiler, count, native):
    step = native if compiler is compile_inductor else compiler(recording())
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


@missing
def test_inductors_loop_is_machine_code(native):
    assert isinstance(native, NativeStep)
    native(torch.zeros(4), torch.zeros(4))
    assert native.overlaps, "the generated step calls what `bare.cpp` has nothing for, or looks otherwise"


@missing
def test_nothing_is_needed_to_be_kept(native):
    found = repeat(native, [torch.zeros(4), None], [1], [[torch.ones(4)]] * 3, [])
    assert found.kept == []
    assert found.outputs[0] == 12


@missing
def test_a_wrong_number_of_inputs_is_an_error_and_the_process_lives(native):
    native(torch.zeros(4), torch.zeros(4))
    with pytest.raises(RuntimeError, match="wrong inputs"):
        repeat(native, [torch.zeros(4)], [1], [[torch.ones(4)]], [0])


def picks():
    """Adds to a total what the row's number picks, and counts: a wrong number fails in between."""
    graph = fx.Graph()
    total, count, table, row = (graph.placeholder(name) for name in ("total", "count", "table", "row"))
    graph.call_function(torch.ops.aten.add_.Tensor, (count, 1))
    picked = graph.call_function(torch.ops.aten.index.Tensor, (table, [row]))
    added = graph.call_function(torch.ops.aten.add.Tensor, (total, picked))
    graph.call_function(torch.ops.aten.copy_.default, (total, added))
    graph.output((graph.call_function(torch.ops.aten.sum.default, (added,)),))
    inputs = [torch.zeros(1), torch.zeros(()), torch.arange(5.0), torch.tensor([0])]
    return with_layouts(Recording(graph, inputs=inputs, largest=5))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("wrong", [0, 3, 5])
def test_a_step_that_fails_ends_the_row(compiler, wrong):
    step = compiler(picks())
    total, table = torch.zeros(1), torch.arange(5.0)
    step(torch.zeros(1), torch.zeros(()), table, torch.tensor([0]))
    rows = [[torch.tensor([4 if index != wrong else 50])] for index in range(6)]
    found = repeat(step, [total, torch.zeros(()), table, None], [3], rows, [0])
    assert found.done == wrong
    assert total == 4 * wrong
    assert isinstance(found.error, IndexError)
    assert [column.tolist() for column in found.kept if wrong] == [[4.0, 8.0, 12.0, 16.0, 20.0][:wrong]] * (wrong > 0)
    assert found.outputs == () or found.outputs[0] == 4 * wrong


def doubled(convolved):
    """Puts the same tensors out twice, of a step that needs torch's tensors or of one that does not."""
    graph = fx.Graph()
    weight, row = graph.placeholder("weight"), graph.placeholder("row")
    made = graph.call_function(torch.ops.aten.mul.Tensor, (row, weight))
    if convolved:
        arguments = (made, weight, None, [1], [0], [1], False, [0], 1)
        made = graph.call_function(torch.ops.aten.convolution.default, arguments)
    graph.call_function(torch.ops.aten.add_.Tensor, (weight, 0.5))
    total = graph.call_function(torch.ops.aten.sum.default, (made,))
    graph.output((total, made, total, made, total))
    return Recording(graph, inputs=[torch.ones(1, 1, 1), torch.ones(1, 1, 8)], largest=8)


@pytest.mark.narrow(11)
@missing
@pytest.mark.parametrize("convolved", [False, True])
def test_a_tensor_that_is_put_out_twice(convolved):
    step, traced, rows = (
        compile_inductor(doubled(convolved)),
        compile_traced(doubled(convolved)),
        torch.randn(6, 1, 1, 8),
    )
    step(torch.ones(1, 1, 1), rows[0])
    assert isinstance(step, NativeStep)
    assert step.overlaps is not convolved
    for _ in range(3):
        found, expected = (
            repeat(each, [torch.ones(1, 1, 1), None], [1], [[row] for row in rows], [0, 2, 4])
            for each in (step, traced)
        )
        assert found.done == 6
        torch.testing.assert_close((found.outputs, found.kept), (expected.outputs, expected.kept))


def silent():
    """Adds the row to a total, in place, and gives nothing."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    graph.call_function(torch.ops.aten.add_.Tensor, (total, row))
    graph.output(())
    return with_layouts(Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4))


@missing
def test_a_step_that_gives_nothing_goes_round_in_machine_code():
    step, total, rows = compile_inductor(silent()), torch.zeros(4), torch.randn(21, 4)
    step(torch.zeros(4), torch.zeros(4))
    assert isinstance(in_a_row(step, [total, None], [1], [[row] for row in rows], []), NativeRow)
    found = repeat(step, [total, None], [1], [[row] for row in rows], [])
    assert (found.done, found.error, found.kept, found.outputs) == (21, None, [], ())
    torch.testing.assert_close(total, rows.sum(0))


def owners(tensor):
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def convolves():
    """Calls the library: the generated step needs tensors of torch's."""
    graph = fx.Graph()
    weight, row = graph.placeholder("weight"), graph.placeholder("row")
    convolved = graph.call_function(
        torch.ops.aten.convolution.default, (row, weight, None, [1], [0], [1], False, [0], 1)
    )
    graph.call_function(torch.ops.aten.add_.Tensor, (weight, 0.5))
    graph.output((graph.call_function(torch.ops.aten.sum.default, (convolved,)), convolved))
    return Recording(graph, inputs=[torch.ones(2, 1, 3), torch.ones(1, 1, 8)], largest=12)


@missing
def test_a_step_that_calls_the_library_runs_in_the_loop_too():
    step, traced, rows = compile_inductor(convolves()), compile_traced(convolves()), torch.randn(5, 1, 1, 8)
    step(torch.ones(2, 1, 3), rows[0])
    assert not step.overlaps
    found, expected = (
        repeat(each, [torch.ones(2, 1, 3), None], [1], [[row] for row in rows], [0]) for each in (step, traced)
    )
    assert found.done == 5
    torch.testing.assert_close((found.outputs, found.kept), (expected.outputs, expected.kept))


@missing
def test_a_large_product_is_the_librarys():
    graph = fx.Graph()
    left, row = graph.placeholder("left"), graph.placeholder("row")
    product = graph.call_function(torch.ops.aten.mm.default, (left, row))
    graph.call_function(torch.ops.aten.add_.Tensor, (left, 0.5))
    graph.output((graph.call_function(torch.ops.aten.sum.default, (product,)), product))
    square = torch.ones(181, 181)
    step = compile_inductor(Recording(graph, inputs=[square, square], largest=181 * 181))
    rows = torch.randn(4, 181, 181)
    step(square.clone(), square)
    assert step.overlaps
    found = repeat(step, [square.clone(), None], [1], [[row] for row in rows], [0])
    outputs, (sums,) = found.outputs, found.kept
    products = [(square + number / 2) @ row for number, row in enumerate(rows)]
    torch.testing.assert_close(outputs[1], products[-1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(sums, torch.stack([product.sum() for product in products]), rtol=1e-3, atol=1.0)


@missing
def test_rows_of_two_trainings_may_run_at_a_time(native):
    other = compile_inductor(recording())  # the same text, and so the same library
    totals = [torch.zeros(4), torch.zeros(4)]
    rows = []
    for step, total in zip((native, other), totals, strict=True):
        step(torch.zeros(4), torch.zeros(4))
        assert step.overlaps
        rows.append(in_a_row(step, [total, None], [1], [[torch.ones(4)]] * 20_000, [0]))
    for row in rows:
        row.launch()
    native.rest()
    assert [row.wait().done for row in reversed(rows)] == [20_000, 20_000]
    other.rest()
    assert all(torch.equal(total, torch.full((4,), 20_000.0)) for total in totals)


@missing
def test_rows_wait_for_those_before_them(native):
    native(torch.zeros(4), torch.zeros(4))
    total = torch.zeros(4)
    rows = [in_a_row(native, [total, None], [1], [[torch.ones(4)]] * count, [0]) for count in (20_000, 1, 10)]
    for row in rows:
        row.launch()
    found = [row.wait() for row in reversed(rows)][::-1]
    native.rest()
    assert [each.done for each in found] == [20_000, 1, 10]
    assert found[1].kept[0] == 80_004
    assert torch.equal(total, torch.full((4,), 20_011.0))


@missing
def test_rows_behind_one_that_fails_are_not_run():
    step = compile_inductor(picks())
    total, count, table = torch.zeros(1), torch.zeros(()), torch.arange(5.0)
    step(torch.zeros(1), torch.zeros(()), table, torch.tensor([0]))
    assert step.overlaps
    picked = [[1] * 5_000 + [50], [2] * 3, [3] * 3]
    rows = [in_a_row(step, [total, count, table, None], [3], [[torch.tensor([i])] for i in row], [0]) for row in picked]
    for row in rows:
        row.launch()
    found = [row.wait() for row in rows]
    step.rest()
    assert [each.done for each in found] == [5_000, 0, 0]
    assert type(found[0].error) is IndexError
    assert all(isinstance(each.error, Exception) for each in found)
    assert total == 5_000
    again = repeat(step, [total, count, table, None], [3], [[torch.tensor([4])]], [0])
    assert (again.done, again.error, total) == (1, None, 5_004)


@missing
def test_a_row_that_nobody_waits_for_ends_before_its_memory_does(native):
    native(torch.zeros(4), torch.zeros(4))
    total = torch.zeros(4)
    row = in_a_row(native, [total, None], [1], [[torch.ones(4)]] * 20_000, [0])
    row.launch()
    del row
    native.rest()
    assert torch.equal(total, torch.full((4,), 20_000.0))


@missing
@pytest.mark.skipif(sys.platform != "linux", reason="nothing else lists the threads of a process")
def test_one_thread_stays_until_rest(native):
    before = leaks.running()
    native(torch.zeros(4), torch.zeros(4))
    for _ in range(3):
        row = in_a_row(native, [torch.zeros(4), None], [1], [[torch.ones(4)]] * 20, [0])
        row.launch()
        assert row.wait().done == 20
        (found,) = leaks.left_behind(before, seconds=0.0)
        assert found.endswith("for rows")
    native.rest()
    assert leaks.left_behind(before) == []


FORKS = """
import os, signal, sys
sys.path[:0] = sys.argv[1:]
import torch
from rows import in_a_row, recording, repeat

from lightning_sink.engine.compiler.inductor import compile_inductor

step = compile_inductor(recording())
step(torch.zeros(4), torch.zeros(4))
row = in_a_row(step, [torch.zeros(4), None], [1], [[torch.ones(4)]] * 1_000_000, [0])
row.launch()
child = os.fork()
if child == 0:
    signal.alarm(60)
    done = repeat(step, [torch.zeros(4), None], [1], [[torch.ones(4)]] * 5, [0]).done
    os._exit(0 if done == 5 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child hung, or ran something else"
assert row.wait().done == 1_000_000
step.rest()
"""


@pytest.mark.narrow
@missing
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_wait_for_the_thread_that_it_has_not():
    engine = Path(__file__).parents[1]
    command = [sys.executable, "-c", FORKS, str(engine.parent), str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@missing
def test_tensors_are_let_go_of(native):
    total, row = torch.zeros(4), torch.ones(4)
    native(total, row)
    counts = [owners(tensor) for tensor in (total, row)]
    for _ in range(3):
        repeat(native, [total, None], [1], [[row]] * 5, [0, 1])
    assert [owners(tensor) for tensor in (total, row)] == counts


@missing
def test_other_threads_run_meanwhile(native):
    """The loop holds no lock of the interpreter's: a thread gets its turn however long the loop is."""
    rows, done = [[torch.ones(4)]] * 20_000, threading.Event()
    thread = threading.Thread(target=done.set)
    native(torch.zeros(4), torch.zeros(4))
    thread.start()
    repeat(native, [torch.zeros(4), None], [1], rows, [0])
    thread.join()
    assert done.is_set()


def test_draws_are_made_for_each_step_in_its_order():
    step = CompiledStep(lambda x, noise: (x + noise,), [lambda: torch.rand(())])
    torch.manual_seed(3)
    (values,) = repeat(step, [None], [0], [[torch.zeros(())]] * 4, [0]).kept
    torch.manual_seed(3)
    assert torch.equal(values, torch.stack([torch.rand(()) for _ in range(4)]))


def noisy():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    return Training(module, optim.SGD(module.parameters(), 0.1, momentum=0.9), lambda b, i: loss_of(module, b))


def plain():
    module = mlp()
    return Training(module, sgd(module), lambda batch, index: loss_of(module, batch))


class Counting(CompiledStep):
    """Counts what it is asked for."""

    rows = 0

    def row(self, turns, steps):
        type(self).rows += steps
        return super().row(turns, steps)


@pytest.mark.parametrize("make", [plain, noisy])
def test_a_training_in_chunks_is_the_same(make, monkeypatch):
    monkeypatch.setattr(Counting, "rows", 0)
    sinks = [batches(20), batches(20)]

    def compiler(recording):
        return Counting(compile_traced(recording))

    expected, found = train(make, sinks, False), train(make, sinks, True, compiler=compiler)
    assert_same(expected, found)
    assert Counting.rows > 20


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("make", [plain, noisy])
def test_a_training_in_compiled_chunks_is_the_same(make):
    sinks = [batches(20), batches(20)]
    expected, found = train(make, sinks, False), train(make, sinks, True, compiler=compile_inductor, costly=True)
    assert found.compiled > 30, found.reasons
    assert_same(expected, found)
