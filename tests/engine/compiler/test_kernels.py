"""Errors of generated kernels: on several threads too they are raised, and none ends the process."""

import re

import pytest
import torch
from loop import record
from torch import fx

from lightning_sink.engine.compiler import prepared
from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.kernels import hand_out_errors
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


def looked_up(rows, columns):
    """A graph that looks rows up in a table, and its inputs."""
    graph = fx.Graph()
    table, indices = graph.placeholder("table"), graph.placeholder("indices")
    found = graph.call_function(torch.ops.aten.embedding.default, (table, indices))
    graph.output((graph.call_function(torch.ops.aten.tanh.default, (found,)),))
    return graph, [torch.randn(30, columns), torch.randint(30, (rows,))]


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("columns", [65, 130])
def test_a_wrong_index_is_raised_from_any_thread(columns, two_threads, monkeypatch):
    """By the kernel itself, whatever else looks at it."""
    monkeypatch.setattr(prepared, "keep_value_checks", lambda graph, on_host: None)
    graph, (table, indices) = looked_up(512, columns)
    step = compile_inductor(Recording(graph, inputs=[table, indices], largest=1 << 20))
    (found,) = step(table, indices)
    assert torch.allclose(found, table[indices].tanh())
    for place in (0, 300, 511):
        wrong = indices.clone()
        wrong[place] = 30
        with pytest.raises(RuntimeError, match="index out of bounds"):
            step(table, wrong)
    assert torch.equal(step(table, indices)[0], found), "a failed call leaves nothing behind"


@pytest.mark.narrow
@missing
@pytest.mark.parametrize("rows", [300, 512])
def test_a_wrong_value_is_raised_from_any_thread(rows, two_threads):
    given = [torch.rand(rows, 130), torch.rand(rows, 130)]
    recording = record(torch.nn.functional.binary_cross_entropy, *given)
    recording.largest = 1 << 20
    step = compile_inductor(recording)
    expected = torch.nn.functional.binary_cross_entropy(*given)
    assert torch.allclose(step(*given)[0], expected)
    for place in (0, rows // 2, rows - 1):
        wrong = given[1].clone()
        wrong[place, 7] = 1.7
        with pytest.raises(RuntimeError, match="all elements of target should be between 0 and 1"):
            step(given[0], wrong)
    assert torch.allclose(step(*given)[0], expected), "a failed call leaves nothing behind"


@missing
def test_an_error_that_a_call_hands_out_is_not_dropped(monkeypatch):
    """Inductor does not look at what its calls of scattering operations return (torch 2.13)."""
    monkeypatch.setattr(prepared, "keep_value_checks", lambda graph, on_host: None)
    table, index, rows = torch.zeros(8, 4), torch.zeros(8, 4, dtype=torch.int64), torch.ones(8, 4)
    step = compile_inductor(record(lambda *given: given[0].scatter_reduce(1, *given[1:], "amax"), table, index, rows))
    assert step(table, index, rows)[0].sum() == 8
    with pytest.raises(RuntimeError, match="scatter_reduce"):
        step(table, index + 4, rows)


KERNEL = """extern "C"  void  cpp_fused_x_0(const float* in_ptr0,
                       float* out_ptr0);
extern "C"  void  cpp_fused_x_0(const float* in_ptr0,
                       float* out_ptr0)
{
    #pragma omp parallel
    {
        int tid = omp_get_thread_num();
        {
            #pragma omp for collapse(2)
            for(int64_t x0=f(0L); x0<f(5L); x0+=f(1L))
            {
                for(int64_t x1=f(0L); x1<f(5L); x1+=f(1L))
                {
                    { INNER TORCH_CHECK(x0 < 3L, "index out of bounds: x0 < 3L"); }
                }
            }
        }
        #pragma omp single
        {
            { SINGLE }
        }
    }
}
void after() { AFTER }
"""


def test_what_runs_on_several_threads_is_caught_where_it_is_thrown():
    code = hand_out_errors(KERNEL)
    assert code.count("{") == code.count("}")
    assert code.count("catch (...) { caught.keep(); }") == 2
    flat = re.sub(r"\s+", " ", code)
    assert "x1+=f(1L)) { try { { INNER" in flat
    assert '3L"); } } catch (...) { caught.keep(); } } } }' in flat
    assert "#pragma omp single { try { { SINGLE } } catch (...) { caught.keep(); } }" in flat
    assert "{ lightning_sink::Caught caught; #pragma omp parallel" in flat
    assert "caught.rethrow(); } void after() { AFTER }" in flat


def test_kernels_that_cannot_throw_or_have_one_thread_stay_as_they_are():
    for word in ("#pragma omp", "TORCH_CHECK("):
        code = KERNEL.replace(word, "something(")
        assert hand_out_errors(code) == code
