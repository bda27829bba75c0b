"""What the C++ compiler is asked for, and what it is spared."""

import inspect
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._dynamo.utils import counters
from torch._inductor import codecache, config, cpu_vec_isa
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
    assert isinstance(codecache._HEADER_DIR, str), "`torch._inductor.codecache._HEADER_DIR` is gone"
    assert '"fxgraph_cache_miss"' in inspect.getsource(codecache), "misses are counted by another name"
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
    caches = cpu_vec_isa.valid_vec_isa_list, toolchain._best_instructions
    for cache in caches:
        cache.cache_clear()
    yield found
    for cache in caches:
        cache.cache_clear()


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


def test_another_thread_may_ask_for_a_width(known):
    def ask():
        with config.patch({"cpp.simdlen": 256}):
            return cpu_vec_isa.pick_vec_isa()

    with toolchain._best_instructions_only(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask).result() is known[3]
        assert cpu_vec_isa.pick_vec_isa() is known[2]


def test_the_instructions_are_those_that_inductor_takes():
    with toolchain._best_instructions_only():
        found = cpu_vec_isa.pick_vec_isa()
    inductors = cpu_vec_isa.pick_vec_isa()
    assert found.build_arch_flags() == inductors.build_arch_flags()
    assert found.build_macro() == inductors.build_macro()


INCLUDED = "first.h>\n#include <second.h"


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Where headers that were compiled would lie; none have been, and no programs."""
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path))
    monkeypatch.setattr(toolchain, "_compiled", Counter())
    return tmp_path


def header():
    with toolchain._compiled_beforehand(BESIDE):
        return CppWrapperCodeCache._get_uncompiled_header("cpu")


def test_headers_are_compiled_beforehand_where_there_are_many_programs(compiled):
    for _ in range(toolchain._WITHOUT_HEADERS):
        with toolchain._compiled_beforehand(BESIDE):
            assert CppWrapperCodeCache._get_uncompiled_header("cpu") is None
            counters["inductor"]["fxgraph_cache_miss"] += 1
    assert header() == INCLUDED


def test_programs_that_are_there_do_not_count(compiled):
    assert {header() for _ in range(2 * toolchain._WITHOUT_HEADERS)} == {None}


def test_headers_that_are_compiled_are_used(compiled):
    (compiled / "some.h").write_text(f"#include <{INCLUDED}>\n")
    assert header() is None
    (compiled / "some.h.gch").touch()
    assert header() == INCLUDED
    (compiled / "some.h").write_text("#include <other.h>\n")
    assert header() is None


def test_what_is_compiled_once_waits_for_no_headers():
    assert toolchain._runtimes()._get_uncompiled_header("cpu") is None


def test_another_devices_header_is_inductors():
    inductors = CppWrapperCodeCache._get_uncompiled_header("cuda")
    with toolchain._compiled_beforehand(BESIDE):
        assert CppWrapperCodeCache._get_uncompiled_header("cuda") == inductors
