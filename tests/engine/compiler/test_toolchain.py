"""What the C++ compiler is asked for, and what it is spared."""

import inspect
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor import codecache, config, cpu_vec_isa
from torch._inductor.codecache import CppWrapperCodeCache
from torch._inductor.utils import fresh_cache

from lightning_sink.engine.compiler import toolchain
from lightning_sink.engine.compiler.inductor import compile_inductor
from lightning_sink.engine.compiler.toolchain import Beside, missing_compiler
from lightning_sink.engine.tracing.recording import Recording

BESIDE = Beside(("first.h", "second.h"), "", "", {})


def test_what_asks_the_compiler_is_there():
    for name in ("x86_isa_checker", "valid_vec_isa_list", "pick_vec_isa"):
        assert callable(getattr(cpu_vec_isa, name, None)), f"`torch._inductor.cpu_vec_isa.{name}` is gone"
    assert cpu_vec_isa.supported_vec_isa_list, "`torch._inductor.cpu_vec_isa.supported_vec_isa_list` is empty"
    assert callable(getattr(cpu_vec_isa.VecISA, "check_build", None)), "`VecISA.check_build` is gone"
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


@dataclass(eq=False)
class Instructions:
    """A set of instructions that the compiler may know."""

    names: str
    works: bool
    width: int = 512

    def __str__(self):
        return self.names

    def __bool__(self):
        return cpu_vec_isa.VecISA.check_build(self, "some code")

    def bit_width(self):
        return self.width

    def build_arch_flags(self):
        return f"-m{self.names}"


@pytest.fixture
def forgotten(monkeypatch):
    """Nothing is known of the compiler, nor kept of what is found out about it."""
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [*cpu_vec_isa.supported_vec_isa_list])
    monkeypatch.setattr(toolchain, "_are_tried", threading.Event())
    toolchain._forget_instructions()
    yield
    toolchain._forget_instructions()


@pytest.fixture
def tried():
    """The instructions that the compiler has been tried with."""
    return []


@pytest.fixture
def known(monkeypatch, forgotten, tried):
    """What this processor, and the compiler, are said to know, the best first."""

    def check_build(instructions, code):
        tried.append(str(instructions))
        return instructions.works

    found = [
        Instructions("wide amx_tile", works=True),
        Instructions("wide more", works=False),
        Instructions("wide", works=True),
        Instructions("narrow", works=True, width=256),
    ]
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["narrow", "wide", "more"])
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", found)
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    return found


def taken():
    with toolchain._best_instructions_only():
        return str(cpu_vec_isa.pick_vec_isa())


def test_the_best_instructions_are_taken_without_a_trial(known, tried):
    assert taken() == "wide more"
    assert tried == []
    assert str(cpu_vec_isa.pick_vec_isa()) == "wide", "others than this package find what was taken on trust"


def test_nothing_is_tried_while_a_step_is_compiled(forgotten, monkeypatch):
    """Inductor asks again of each loop."""
    tried = []
    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda *arguments: not tried.append(arguments))
    with toolchain._best_instructions_only():
        assert cpu_vec_isa.pick_vec_isa()
    assert not tried
    assert cpu_vec_isa.pick_vec_isa()
    assert tried, "others than this package find what was taken on trust"


def compile_for(asked, *unknown):
    asked.append(taken())
    if asked[-1] in unknown:
        raise RuntimeError(f"g++: error: unrecognized option: {asked[-1]}")
    return asked[-1]


def test_what_the_compiler_does_not_know_is_found_out_by_a_failure(known, tried):
    asked = []
    assert toolchain.compiled_for_this_processor(lambda: compile_for(asked, "wide more")) == "wide"
    assert asked == ["wide more", "wide"]
    assert tried == ["wide more", "wide"]
    assert taken() == "wide"
    assert str(cpu_vec_isa.pick_vec_isa()) == "wide", "others than this package find what was taken on trust"


def test_another_failure_is_handed_out_and_nothing_is_compiled_again(known, tried):
    known[1].works = True
    asked = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="unrecognized"):
            toolchain.compiled_for_this_processor(lambda: compile_for(asked, "wide more"))
    assert asked == ["wide more", "wide more"]
    assert tried == ["wide more"]


@pytest.fixture
def old_compiler(monkeypatch, forgotten, tmp_path):
    """A compiler that is older than this processor: it refuses the last of the options for its instructions."""
    option = toolchain._flags().split()[-1:]
    if not option:
        pytest.skip("the compiler is given no options for this processor's instructions")
    script = tmp_path / "g++"
    refuse = f'case " $* " in *" {option[0]} "*) echo unrecognized option >&2; exit 1;; esac'
    script.write_text(f'#!/bin/sh\n{refuse}\nexec g++ "$@"\n')
    script.chmod(0o755)
    toolchain._forget_instructions()
    with config.patch({"cpp.cxx": (None, str(script))}), fresh_cache():
        yield option[0]


@pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")
def test_a_step_is_compiled_by_a_compiler_that_is_older_than_the_processor(old_compiler):
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.exp.default, (graph.placeholder("x"),)),))
    inputs = [torch.randn(64)]
    step = compile_inductor(Recording(graph, inputs=inputs, largest=64))
    assert torch.allclose(step(*inputs)[0], inputs[0].exp())
    assert old_compiler not in toolchain._flags().split()


def test_instructions_are_tried_until_some_work(known, tried):
    toolchain._are_tried.set()
    with toolchain._best_instructions_only():
        assert cpu_vec_isa.pick_vec_isa() is known[2]
    assert tried == ["wide more", "wide"]
    assert cpu_vec_isa.pick_vec_isa() is known[2]


def test_where_none_work_there_are_none(known):
    toolchain._are_tried.set()
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
    toolchain._are_tried.set()

    def ask():
        with config.patch({"cpp.simdlen": 256}):
            return cpu_vec_isa.pick_vec_isa()

    with toolchain._best_instructions_only(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(ask).result() is known[3]
        assert cpu_vec_isa.pick_vec_isa() is known[2]


def test_the_instructions_are_those_that_inductor_takes(forgotten):
    with toolchain._best_instructions_only():
        found = cpu_vec_isa.pick_vec_isa()
    toolchain._forget_instructions()
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
