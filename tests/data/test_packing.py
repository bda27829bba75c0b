"""Batches that are alike, put into their places side by side: what is compiled, and what stands in for it."""

import gc
import sys
import sysconfig
import weakref

import pytest
import torch

from lightning_sink.data import packing
from lightning_sink.data.batch import flatten
from lightning_sink.data.packing import Column, packer

PLACES = 5


def images(number):
    return torch.arange(12, dtype=torch.float32).reshape(4, 3) + number


def labels(number):
    return torch.full((4,), number)


KINDS = {
    "a tuple": lambda number: (images(number), labels(number)),
    "a list": lambda number: [images(number), labels(number)],
    "a dict": lambda number: {"x": images(number), "y": labels(number)},
    "one tensor": lambda number: (images(number),),
    "no elements": lambda number: (images(number)[:0], labels(number)),
    "complex": lambda number: (torch.complex(images(number), images(-number)),),
    "a dict by numbers": lambda number: {0: images(number), 1: labels(number)},
    "a dict in a tuple": lambda number: ({"x": images(number)}, labels(number)),
    "a number beside": lambda number: (images(number), 3),
    "a column": lambda number: (images(number).t(), labels(number)),
    "every other": lambda number: (images(number)[::2], labels(number)),
}


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    """Which of the two packs."""
    if request.param == "python":
        monkeypatch.setattr(packing, "compiled", lambda: None)
    return request.param


class Packed:
    """Batches like one, packed side by side."""

    def __init__(self, batch):
        leaves, signature = flatten(batch)
        self.memory = [torch.full((PLACES, *leaf.shape), 77, dtype=leaf.dtype) for leaf in leaves]
        columns = [self._column(leaf, memory) for leaf, memory in zip(leaves, self.memory, strict=True)]
        self.pack = packer(batch, leaves, signature, columns)

    @staticmethod
    def _column(leaf, memory):
        step = memory[0].nbytes
        return Column(memory.data_ptr(), step, step, None if leaf.is_contiguous() else memory.unbind())

    def at(self, number):
        return [memory[number] for memory in self.memory]

    def assert_untouched(self, numbers):
        assert all(bool((tensor == 77).all()) for number in numbers for tensor in self.at(number))


@pytest.mark.parametrize("kind", KINDS)
def test_each_batch_lies_in_its_place(kind, way):
    packed = Packed(KINDS[kind](1))
    for number in (0, 3):
        assert packed.pack(KINDS[kind](number + 1), number)
    for number in (0, 3):
        for found, expected in zip(packed.at(number), flatten(KINDS[kind](number + 1))[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    packed.assert_untouched([1, 2, 4])


def test_what_loaders_give_is_packed_by_the_compiled_one():
    if not sysconfig.get_config_var("CC") or packing.compiled() is None:
        pytest.skip("needs a C compiler, and there is none here")
    for kind in ("a tuple", "a list", "a dict", "one tensor"):
        assert isinstance(Packed(KINDS[kind](0)).pack, packing.compiled())
    for kind in ("a dict by numbers", "a dict in a tuple", "a column", "every other"):
        assert not isinstance(Packed(KINDS[kind](0)).pack, packing.compiled())


def with_attribute(tensor):
    tensor.weight = 0.5
    return tensor


UNLIKE = {
    "another kind": lambda: [images(0), labels(0)],
    "fewer": lambda: (images(0),),
    "more": lambda: (images(0), labels(0), labels(0)),
    "nothing": lambda: (),
    "the other way round": lambda: (labels(0), images(0)),
    "another shape": lambda: (images(0)[:3], labels(0)),
    "another type": lambda: (images(0).double(), labels(0)),
    "other strides": lambda: (images(0).t().contiguous().t(), labels(0)),
    "a parameter": lambda: (torch.nn.Parameter(images(0), requires_grad=False), labels(0)),
    "gradients": lambda: (images(0).requires_grad_(), labels(0)),
    "an attribute": lambda: (with_attribute(images(0)), labels(0)),
    "elsewhere": lambda: (images(0).to("meta"), labels(0)),
    "sparse": lambda: (images(0).to_sparse(), labels(0)),
    "nested": lambda: (torch.nested.nested_tensor([images(0)]), labels(0)),
    "no tensor": lambda: (images(0), 3),
    "None": lambda: (None, labels(0)),
    "a dict": lambda: {"x": images(0), "y": labels(0)},
    "no batch": lambda: None,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("unlike", UNLIKE)
def test_what_is_not_like_the_first_one_is_refused(unlike, way):
    packed = Packed(KINDS["a tuple"](0))
    assert not packed.pack(UNLIKE[unlike](), 2)
    packed.assert_untouched(range(PLACES))
    assert packed.pack(KINDS["a tuple"](1), 2)


@pytest.mark.parametrize(
    "batch",
    [
        {"y": labels(0), "x": images(0)},
        {"x": images(0), "z": labels(0)},
        {"x": images(0)},
        {"x": images(0), 1: labels(0)},
        {"x": images(0), "y": labels(0), "z": labels(0)},
    ],
)
def test_a_dict_of_other_names_is_refused(batch, way):
    packed = Packed(KINDS["a dict"](0))
    assert not packed.pack(batch, 0)
    packed.assert_untouched(range(PLACES))


def test_names_are_compared_by_what_they_say(way):
    packed, made = Packed(KINDS["a dict"](0)), "".join(["", "x"])
    assert packed.pack({sys.intern("y") if name == "y" else made: t for name, t in KINDS["a dict"](1).items()}, 0)


def test_a_tensor_that_comes_twice_is_packed_twice(way):
    x = images(1)
    packed = Packed((x, x))
    y = images(2)
    assert packed.pack((y, y), 0)
    assert packed.pack((images(3), images(4)), 1)
    assert [float(tensor[0, 0]) for tensor in (*packed.at(0), *packed.at(1))] == [2, 2, 3, 4]


def test_what_is_packed_is_held_by_nobody(way):
    batch = KINDS["a tuple"](0)
    packed = Packed(batch)
    counts = [*map(sys.getrefcount, batch)]
    for _ in range(100):
        packed.pack(batch, 0)
        packed.pack((batch[0], 3), 0)
        packed.pack((batch[1], batch[0]), 0)
    assert [*map(sys.getrefcount, batch)] == counts


def test_a_packer_lets_go_of_what_it_was_made_with(way, monkeypatch):
    class Check:
        def __call__(self, *tensors):
            return True

    checks = [Check()]
    with monkeypatch.context() as patched:
        patched.setattr(packing, "likeness", lambda leaves: checks[0])
        packed = [Packed(KINDS["a dict"](0))]
    assert packed[0].pack(KINDS["a dict"](1), 0)
    held = weakref.ref(checks.pop())
    assert held() is not None
    packed.clear()
    gc.collect()
    assert held() is None


def test_an_error_of_the_comparison_is_raised(way, monkeypatch):
    def fail(*tensors):
        raise RuntimeError("no comparison")

    monkeypatch.setattr(packing, "likeness", lambda leaves: fail)
    packed = Packed(KINDS["a tuple"](0))
    with pytest.raises(RuntimeError, match="no comparison"):
        packed.pack(KINDS["a tuple"](1), 0)
    packed.assert_untouched(range(PLACES))


@pytest.fixture
def compiled_anew():
    packing.compiled.cache_clear()
    yield
    packing.compiled.cache_clear()


def test_without_a_compiler_python_packs(compiled_anew, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    assert packing.compiled() is None
    packed = Packed(KINDS["a tuple"](0))
    assert packed.pack(KINDS["a tuple"](1), 0)
    assert torch.equal(packed.at(0)[0], images(1))


@pytest.mark.parametrize("compiler", ["false", "true"])
def test_where_a_compiler_fails_python_packs(compiler, compiled_anew, monkeypatch):
    monkeypatch.setattr(packing.shutil, "which", lambda name: compiler)
    assert packing.compiled() is None
