"""What the C++ compiler is asked for, and what it is spared."""

import inspect
from itertools import count

import pytest
from torch._inductor import config, cpu_vec_isa
from torch._inductor.codecache import CppWrapperCodeCache

from lightning_sink.engine.compiler import toolchain
from lightning_sink.engine.compiler.toolchain import Beside, missing_compiler

BESIDE = Beside(("first.h", "second.h"), "", "", {})


def test_what_asks_the_compiler_is_there():
    for name in ("x86_isa_checker", "valid_vec_isa_list", "pick_vec_isa"):
        assert callable(getattr(cpu_vec_isa, name, None)), f"`torch._inductor.cpu_vec_isa.{name}` is gone"
    assert cpu_vec_isa.supported_vec_isa_list, "`torch._inductor.cpu_vec_isa.supported_vec_isa_list` is empty"
    assert "valid_vec_isa_list()" in inspect.getsource(cpu_vec_isa.pick_vec_isa), "instructions come from elsewhere"
    for name in ("load_async", "_load_library_inner", "_get_uncompiled_header"):
        assert callable(getattr(CppWrapperCodeCache, name, None)), f"`CppWrapperCodeCache.{name}` is gone"
    assert "submit_fn" in inspect.signature(CppWrapperCodeCache.load_async).parameters
    from torch._inductor.cpp_builder import get_cpp_compiler

    assert callable(get_cpp_compiler), "`torch._inductor.cpp_builder.get_cpp_compiler` is gone"


def test_a_missing_compiler_is_named(monkeypatch):
    def raises():
        raise RuntimeError("No working C++ compiler found\nand more")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", raises)
    assert missing_compiler() == "RuntimeError: No working C++ compiler found"


class Instructions:
    """A set of instructions that the compiler may know."""

    def __init__(self, names, works, width=512):
        self.names, self.works, self.width, self.tried = names, works, width, False

    def __str__(self):
        return self.names

    def __bool__(self):
        self.tried = True
        return self.works

    def bit_width(self):
        return self.width


@pytest.fixture
def known(monkeypatch):
    """What this processor, and the compiler, are said to know, the best first."""
    found = [
        Instructions("wide amx_tile", works=True),
        Instructions("wide more", works=False),
        Instructions("wide", works=True),
        Instructions("narrow", works=True, width=256),
    ]
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["narrow", "wide", "more"])
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", found)
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    yield found
    cpu_vec_isa.valid_vec_isa_list.cache_clear()


def test_instructions_are_tried_until_some_work(known):
    with toolchain._best_instructions_only():
        assert cpu_vec_isa.pick_vec_isa() is known[2]
    assert [each.tried for each in known] == [False, True, True, False]
    assert cpu_vec_isa.pick_vec_isa() is known[2]


def test_where_none_work_there_are_none(known):
    for each in known:
        each.works = False
    with toolchain._best_instructions_only():
        assert not cpu_vec_isa.pick_vec_isa()


def test_a_width_that_was_asked_for_is_had(known):
    with config.patch({"cpp.simdlen": 256}), toolchain._best_instructions_only():
        assert cpu_vec_isa.pick_vec_isa() is known[3]


def test_what_torch_was_told_to_use_is_used(known, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    known[3].names = "narrow avx2"
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["narrow", "avx2", "wide"])
    with toolchain._best_instructions_only():
        assert cpu_vec_isa.pick_vec_isa() is known[3]


@pytest.mark.narrow
def test_the_instructions_are_those_that_inductor_takes():
    with toolchain._best_instructions_only():
        found = cpu_vec_isa.pick_vec_isa()
    assert str(found) == str(cpu_vec_isa.pick_vec_isa())


def test_headers_are_compiled_beforehand_where_there_are_many_programs(monkeypatch):
    monkeypatch.setattr(toolchain, "_numbers", count())
    with toolchain._compiled_beforehand(BESIDE):
        found = [CppWrapperCodeCache._get_uncompiled_header("cpu") for _ in range(5)]
    assert found == [None, None, None, "first.h>\n#include <second.h", "first.h>\n#include <second.h"]


def test_another_devices_header_is_inductors():
    inductors = CppWrapperCodeCache._get_uncompiled_header("cuda")
    with toolchain._compiled_beforehand(BESIDE):
        assert CppWrapperCodeCache._get_uncompiled_header("cuda") == inductors
