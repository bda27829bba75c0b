"""Products of small matrices: every size and layout, against products in double precision."""

import itertools

import pytest
import torch
import torch._inductor.config
from torch import fx

from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

SIZES = [(32, 64, 64), (7, 33, 19), (1, 1, 1), (3, 10, 64), (33, 100, 5), (2, 17, 130), (8, 48, 16), (9, 16, 1)]
DIVIDED = [(67, 65, 64), (5, 400, 130), (256, 64, 200)]  # large enough for two threads
OPERATIONS = torch.ops.aten


def operand(rows, columns, layout):
    if layout == "columns":
        return torch.randn(columns, rows).t()
    if layout == "part":  # rows further apart than they are long
        return torch.randn(rows, columns + 3)[:, :columns]
    return torch.randn(rows, columns)


def products(sizes):
    """Yields the operands of each product, and the operation."""
    for (m, n, k), left, right in itertools.product(sizes, ["rows", "columns"], ["rows", "columns", "part"]):
        yield OPERATIONS.mm.default, [operand(m, k, left), operand(k, n, right)]
        yield OPERATIONS.addmm.default, [torch.randn(n), operand(m, k, left), operand(k, n, right)]
        yield OPERATIONS.addmm.default, [operand(m, n, right), operand(m, k, left), operand(k, n, "rows")]
    for m, n, k in DIVIDED:
        yield OPERATIONS.mm.default, [operand(m, k, "columns"), operand(k, n, "rows")]
        yield OPERATIONS.addmm.default, [torch.randn(n), operand(m, k, "rows"), operand(k, n, "columns")]
    strided = torch.randn(2 * 5, 2 * 6)[::2, ::2]
    yield OPERATIONS.mm.default, [strided, operand(6, 4, "rows")]
    yield OPERATIONS.mm.default, [operand(4, 5, "rows"), strided]  # left to the library: no side is contiguous
    yield OPERATIONS.addmm.default, [operand(3, 4, "part"), operand(3, 5, "rows"), operand(5, 4, "columns")]
    for shape in ((1, 4), (3, 1), (1,), ()):
        yield OPERATIONS.addmm.default, [torch.randn(shape), operand(3, 5, "rows"), operand(5, 4, "rows")]
    yield OPERATIONS.addmm.default, [torch.randn(1), operand(3, 5, "rows"), operand(5, 40, "rows")]
    yield OPERATIONS.mm.default, [operand(3, 5, "rows").double(), operand(5, 4, "rows").double()]
    yield OPERATIONS.mm.default, [operand(200, 180, "rows"), operand(180, 190, "columns")]  # large


# Small ones are computed by one thread in either.
@pytest.mark.narrow
@pytest.mark.parametrize(("largest", "sizes"), [(10, SIZES), (1 << 20, SIZES[:2])], ids=["one thread", "two threads"])
def test_products_are_right(largest, sizes, two_threads):
    torch.manual_seed(1)
    graph, inputs, results = fx.Graph(), [], []
    made = list(products(sizes))
    nodes = [[graph.placeholder(f"input_{i}_{j}") for j in range(len(given))] for i, (_, given) in enumerate(made)]
    for (operation, given), placeholders in zip(made, nodes, strict=True):
        inputs += given
        results.append(graph.call_function(operation, tuple(placeholders)))
    graph.output(tuple(results))
    outputs = compile_inductor(Recording(graph, inputs=inputs, largest=largest))(*inputs)
    for (operation, given), found in zip(made, outputs, strict=True):
        expected = operation(*(tensor.double() for tensor in given))
        scale = expected.abs().max()
        shapes = [tuple(tensor.shape) for tensor in given]
        assert (found - expected).abs().max() <= 2e-6 * scale, (operation, shapes)


@pytest.mark.narrow
def test_a_processor_without_vectors():
    graph = fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    graph.output((graph.call_function(OPERATIONS.mm.default, (left, right)),))
    inputs = [torch.randn(5, 7), torch.randn(7, 11)]
    # Without headers that are compiled beforehand: for these options nobody else needs them.
    with torch._inductor.config.patch({"cpp.simdlen": 1, "cpp_cache_precompile_headers": False}):
        (found,) = compile_inductor(Recording(graph, inputs=inputs, largest=10))(*inputs)
    torch.testing.assert_close(found, inputs[0] @ inputs[1])


@pytest.mark.narrow
@pytest.mark.parametrize("largest", [10, 1 << 20], ids=["one thread", "two threads"])
def test_control_the_products_are_ours(largest, replaced):
    """With wrong arithmetic in the C++ of ours the result is wrong: so it is what runs."""
    replaced("at::vec::fmadd(left, right[v], sums[r][v])", "sums[r][v] + left")
    graph = fx.Graph()
    left, right = graph.placeholder("left"), graph.placeholder("right")
    graph.output((graph.call_function(OPERATIONS.mm.default, (left, right)),))
    inputs = [torch.full((5, 7), 2.0), torch.full((7, 11), 3.0)]
    (found,) = compile_inductor(Recording(graph, inputs=inputs, largest=largest))(*inputs)
    assert torch.equal(found, torch.full((5, 11), 14.0))
