"""Batches that are alike, put into their places side by side: what is compiled, and what stands in for it."""

import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path

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
    "large": lambda number: (torch.full((300, 1000), float(number)), labels(number)),
    "70 tensors": lambda number: [torch.tensor([number, place]) for place in range(70)],
}


def needs_compiler():
    """Skips where nothing can be compiled for Python; where it can, `packing.c` has to be."""
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    assert packing.compiled() is not None, "`packing.c` was not compiled"


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    """Which of the two packs."""
    if request.param == "python":
        monkeypatch.setattr(packing, "compiled", lambda: None)
    else:
        needs_compiler()
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
    needs_compiler()
    for kind in ("a tuple", "a list", "a dict", "one tensor"):
        assert isinstance(Packed(KINDS[kind](0)).pack, packing.compiled().Packer)
    for kind in ("a dict by numbers", "a dict in a tuple", "a column", "every other"):
        assert not isinstance(Packed(KINDS[kind](0)).pack, packing.compiled().Packer)


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


class Name(str):
    """Says what a name says, and is none."""

    __slots__ = ()


@pytest.mark.parametrize(
    "batch",
    [
        {"y": labels(0), "x": images(0)},
        {"x": images(0), "z": labels(0)},
        {"x": images(0)},
        {"x": images(0), 1: labels(0)},
        {"x": images(0), "y": labels(0), "z": labels(0)},
        {Name("x"): images(0), "y": labels(0)},
        {Name("x"): images(0), Name("y"): labels(0)},
    ],
)
def test_a_dict_of_other_names_is_refused(batch, way):
    packed = Packed(KINDS["a dict"](0))
    assert not packed.pack(batch, 0)
    packed.assert_untouched(range(PLACES))


def test_numbers_for_names_are_compared_with_their_types(way):
    packed = Packed({0: images(0), 1: labels(0)})
    assert not packed.pack({False: images(0), 1: labels(0)}, 0)
    assert packed.pack({0: images(0), 1: labels(0)}, 0)


@pytest.mark.parametrize("make", [images, lambda number: images(number).t()], ids=["in one piece", "a column"])
def test_a_tensor_without_memory_is_an_error(make, way):
    packed, tensor = Packed((make(0), labels(0))), make(1)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        packed.pack((tensor, labels(1)), 0)
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


def test_a_module_of_the_users_of_that_name_stays_what_it_is(compiled_anew):
    needs_compiler()
    own = sys.modules["packing"] = type(sys)("packing")
    try:
        packing.compiled.cache_clear()
        assert packing.compiled() is not None
        assert sys.modules["packing"] is own
    finally:
        del sys.modules["packing"]


def test_without_a_compiler_python_packs(compiled_anew, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: None)
    assert packing.compiled() is None
    packed = Packed(KINDS["a tuple"](0))
    assert packed.pack(KINDS["a tuple"](1), 0)
    assert torch.equal(packed.at(0)[0], images(1))


@pytest.mark.parametrize("compiler", ["false", "true", "sleep 100"])
def test_where_compilers_fail_python_packs(compiler, compiled_anew, monkeypatch):
    monkeypatch.setattr(packing, "_PATIENCE", 0.2)
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: ".so" if name == "EXT_SUFFIX" else None)
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("cc", "gcc", "clang") else f"/bin/{name}")
    assert packing.compiled() is None


def test_where_the_folder_cannot_be_taken_away_what_was_compiled_is_there(compiled_anew, monkeypatch):
    needs_compiler()
    packing.compiled.cache_clear()
    left, original = [], os.rmdir

    def refuse(path, **kwargs):
        left.append(path)
        raise OSError(39, "Directory not empty", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuse)
        assert packing.compiled() is not None
    assert left
    for path in left:
        if os.path.isdir(path):
            original(path)


SMALL = """
import torch
from lightning_sink.data.packing import compiled
small = torch.full((4,), 1e-38)
assert compiled() is not None
assert float((small * 1e-3).sum()) > 0, "small numbers are rounded to zero"
"""


@pytest.mark.narrow
def test_options_of_the_users_change_nothing_about_numbers():
    needs_compiler()
    for options in ("-ffast-math", "-funsafe-math-optimizations"):
        package = str(Path(packing.__file__).parents[2])
        environment = {**os.environ, "CC": f"{shutil.which('cc')} {options}", "PYTHONPATH": package}
        subprocess.run([sys.executable, "-c", SMALL], check=True, env=environment)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("compiler", ["env {cc}", "{cc} -g", "false", "no such compiler", "'unfinished", "  "])
def test_a_compiler_of_the_users_is_taken_with_its_options_and_others_where_it_fails(
    compiler, compiled_anew, monkeypatch
):
    needs_compiler()
    packing.compiled.cache_clear()
    given, run = compiler.format(cc=shutil.which("cc")), []
    monkeypatch.setenv("CC", given)
    original = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **kwargs: run.append(command) or original(command, **kwargs))
    assert packing.compiled() is not None
    is_taken = "cc" in given
    assert len(run) == (2 if compiler == "false" else 1)
    assert run[0][1:2] == given.split()[1:2] or not is_taken
    assert not os.path.exists(run[-1][-2])
