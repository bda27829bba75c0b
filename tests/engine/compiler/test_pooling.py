"""The largest number of each window: what eager finds, and where, to the last bit."""

import itertools
from operator import getitem

import pytest
import torch
from torch import fx

from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.toolchain import missing_compiler
from lightning_sink.engine.tracing.recording import Recording

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")

POOL = torch.ops.aten.max_pool2d_with_indices.default
SHAPES = [(2, 3, 28, 28), (3, 2, 9, 40), (5, 7, 66), (1, 2, 4, 4), (4, 6, 70, 5)]
WINDOWS = [((2, 2), (2, 2)), ((2, 2), ()), ((3, 3), (2, 2)), ((3, 2), (1, 3)), ((1, 1), (1, 1)), ((2, 4), (3, 1))]


def odd(shape):
    """Numbers with equals among them, and those that are none, or infinite."""
    numbers = torch.randint(-3, 4, shape).float()
    which = torch.rand(shape)
    numbers[which < 0.05] = float("nan")
    numbers[(which > 0.05) & (which < 0.3)] = float("-inf")
    numbers[which > 0.97] = float("inf")
    return numbers


def pools():
    """Yields the arguments of each."""
    for shape, (size, step) in itertools.product(SHAPES, WINDOWS):
        for image in (torch.randn(shape), odd(shape)):
            yield image, size, step
    image = torch.randn(2, 3, 12, 14)
    yield image, (2, 2), (2, 2), (1, 1)
    yield image, (3, 3), (2, 2), (0, 1)
    yield image, (2, 2), (2, 2), (0, 0), (2, 1)
    yield torch.randn(2, 3, 13, 13), (2, 2), (2, 2), (0, 0), (1, 1), True
    yield image.double(), (2, 2), (2, 2)
    yield image.to(memory_format=torch.channels_last), (2, 2), (2, 2)
    yield torch.randn(2, 1, 8, 8), (2, 2), (2, 2)
    yield torch.randn(2, 3, 12, 28)[..., ::2], (2, 2), (2, 2)
    yield torch.randn(2, 6, 8, 8)[:, 1:4], (2, 2), (2, 2)
    yield torch.randn(12, 3, 8).permute(1, 0, 2), (2, 2), (2, 2)


def compiled(largest):
    torch.manual_seed(4)
    made, graph, results = list(pools()), fx.Graph(), []
    for i, (_, *options) in enumerate(made):
        found = graph.call_function(POOL, (graph.placeholder(f"image_{i}"), *map(as_list, options)))
        results += [graph.call_function(getitem, (found, 0)), graph.call_function(getitem, (found, 1))]
    graph.output(tuple(results))
    images = [image for image, *_ in made]
    outputs = iter(compile_inductor(Recording(graph, inputs=images, largest=largest))(*images))
    return [(arguments, next(outputs), next(outputs)) for arguments in made]


def as_list(option):
    return list(option) if isinstance(option, tuple) else option


@pytest.mark.narrow
@pytest.mark.parametrize("largest", [10, 1 << 20], ids=["one thread", "two threads"])
def test_what_eager_finds(largest, two_threads):
    for (image, *options), values, places in compiled(largest):
        expected, where = POOL(image, *options)
        assert torch.equal(values.nan_to_num(7.5), expected.nan_to_num(7.5)), (image.shape, options)
        assert torch.equal(places, where), (image.shape, options)
        assert values.stride() == expected.stride()
        assert places.stride() == where.stride()


@pytest.mark.narrow
def test_control_the_windows_are_ours(replaced):
    """With the smallest number in the place of the largest the result is wrong: so it is what runs."""
    replaced("(value > present)", "(value < present)")
    found = compiled(10)
    alike = [torch.equal(places, POOL(*arguments)[1]) for arguments, _, places in found]
    assert not any(alike[0:8:2])  # images of random numbers, windows of more than one
    assert alike[-1]  # left to the library
