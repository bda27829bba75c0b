"""Reads that a recording would freeze are reported with the user's line, and nothing else is."""

import cProfile
import datetime
import gc
import operator
import os
import random
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
import torch

from lightning_sink.engine.watch import DRAWN, Hazard, first_line, innermost_line, user_line, watch_reads
from lightning_sink.errors import SinkWarning, warn_at


def reports(body, codes=None):
    found = []
    with watch_reads(lambda what: found.append((what, user_line())), codes or {}, {}, []):
        body()
    return found


GENERATOR = torch.Generator()

READS = {
    "time.time()": time.time,
    "time.perf_counter_ns()": time.perf_counter_ns,
    "time.process_time()": time.process_time,
    "datetime.now()": datetime.datetime.now,
    "date.today()": datetime.date.today,
    "os.urandom()": lambda: os.urandom(1),
    "torch.manual_seed()": lambda: torch.manual_seed(1),
    "torch.get_rng_state()": torch.get_rng_state,
    "torch.cuda.manual_seed()": lambda: torch.cuda.manual_seed(1),
    "torch.initial_seed()": torch.initial_seed,
    "torch.default_generator.initial_seed()": lambda: torch.default_generator.initial_seed(),
    "Generator.initial_seed()": lambda: GENERATOR.initial_seed(),
    "torch.cuda.memory_stats()": torch.cuda.max_memory_allocated,
    "torch.cuda.host_memory_stats()": torch.cuda.host_memory_stats,
    "torch.default_generator.get_state()": lambda: torch.default_generator.get_state(),
    "Tensor.numpy()": lambda: torch.ones(2).numpy(),
    "Tensor.tolist()": lambda: torch.ones(2).tolist(),
    "Tensor.__array__()": lambda: np.asarray(torch.ones(2)),
    "Tensor.__repr__()": lambda: str(torch.ones(2)),
    "Tensor.data_ptr()": lambda: torch.ones(2).data_ptr(),
    "print()": lambda: print(end=""),
    "open()": lambda: open(os.devnull).close(),
}


def call(function):
    return function()


@pytest.mark.parametrize("name", READS)
def test_a_read_is_reported_with_its_line(name):
    found = reports(lambda: call(READS[name]))
    assert found
    assert f"`{name}`" in found[0][0]
    assert __file__ in found[0][1]


def test_control_ordinary_code_is_not_reported():
    def body():
        layer = torch.nn.Linear(2, 3)
        layer(torch.ones(4, 2)).sum().backward()
        torch.optim.Adam(layer.parameters()).step()
        return sorted([3, 1, 2]), {"a": 1}.get("a"), "text".upper()

    assert reports(body) == []


@pytest.mark.parametrize("body", [lambda: random.getstate(), lambda: random.setstate(random.getstate()), random.random])
def test_what_a_line_asks_of_pythons_generator_is_reported(body):
    assert {what for what, _ in reports(lambda: body())} == {DRAWN}


def test_a_gpus_generator_is_one_of_torchs(monkeypatch):
    own, gpus = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (gpus,))
    assert reports(lambda: own.get_state()) == []
    assert reports(lambda: gpus.manual_seed(3))[0][0] == "`torch.default_generator.manual_seed()` is called"


def test_the_replay_of_a_graph_is_reported():
    def body():
        with pytest.raises((AttributeError, TypeError, RuntimeError)):  # there is no graph here
            torch.cuda.CUDAGraph.replay(None)

    found = reports(body)
    assert found[0][0] == "`torch.cuda.CUDAGraph.replay()` is called"


def test_what_machine_code_keeps_of_it_is_not():
    """As Dynamo does; `map` calls what it is given from C."""
    keep, put_back = operator.methodcaller("getstate"), random.setstate
    assert reports(lambda: [*map(put_back, map(keep, [random]))]) == []


def test_a_getter_given_by_its_code():
    class Counter:
        @property
        def steps(self):
            return 3

    counter = Counter()
    found = reports(lambda: counter.steps, {Counter.steps.fget.__code__: "steps"})
    assert [what for what, _ in found] == ["`steps` is read"]


def test_why_a_call_is_reported_stands_behind_its_name():
    found = reports(lambda: call(int), {call.__code__: "call(), which looks further at a.py:3"})
    assert [what for what, _ in found] == ["`call()` is called, which looks further at a.py:3"]


def test_the_code_that_ran_is_collected():
    ran = {}
    with watch_reads(lambda what: None, {}, ran, []):
        call(lambda: torch.ones(2).sum())
    assert ran[id(call.__code__)] is call.__code__
    assert not any("site-packages/torch/" in code.co_filename for code in ran.values())


def test_code_of_the_same_text_is_collected_once_for_each_function():
    functions = []
    for scale in (1.0, 2.0):
        namespace = {"scale": scale}
        exec(compile("def scaled(x):\n    return x * scale", "<configuration>", "exec"), namespace)
        functions.append(namespace["scaled"])
    one, other = functions
    assert one.__code__ == other.__code__
    ran = {}
    with watch_reads(lambda what: None, {}, ran, []):
        assert one(1.0) + other(1.0) == 3.0
    assert {id(code) for code in ran.values()} == {id(one.__code__), id(other.__code__)}


def test_a_wrapper_of_the_standard_librarys_is_collected():
    @mock.patch.object(sys, "argv", [])
    def patched():
        return None

    ran = {}
    with watch_reads(lambda what: None, {}, ran, []):
        patched()
    assert patched.__code__ in ran.values()


def test_a_profiler_is_put_back():
    def profiler(frame, event, arg):
        return None

    previous = sys.getprofile()
    sys.setprofile(profiler)
    try:
        reports(lambda: None)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(previous)


def test_a_profiler_of_c_goes_on():
    profile = cProfile.Profile()
    profile.enable()
    try:
        reports(lambda: None)
        random.random()
    finally:
        profile.disable()
    assert any("random" in str(entry.code) for entry in profile.getstats())


def test_an_error_in_the_body_leaves_no_profiler():
    def fails():
        raise ValueError("mine")

    before = sys.getprofile()
    with pytest.raises(ValueError, match="mine"):
        reports(fails)
    assert sys.getprofile() is before


def test_a_collection_is_no_part_of_the_body():
    """Whoever asks to be told of collections, as hypothesis does, may read the clock."""
    told = []

    def tell(phase, info):
        told.append(phase)
        time.perf_counter()

    gc.callbacks.insert(0, tell)
    try:
        kept = []
        assert reports(lambda: kept.extend([] for _ in range(10 * gc.get_threshold()[0]))) == []
    finally:
        gc.callbacks.remove(tell)
    assert told  # one was due


def test_lines():
    assert user_line().startswith(f"{__file__}:")
    assert innermost_line().startswith(f"{__file__}:")
    assert first_line(test_lines) == f"{__file__}:{test_lines.__code__.co_firstlineno}"
    assert first_line(torch.no_grad()(test_lines)) == first_line(test_lines)
    assert first_line(len) == ""
    assert str(Hazard("it is late")) == "it is late"
    assert str(Hazard("it is late", "a.py:3")) == "it is late (a.py:3)"


def installed(module):
    """Returns a function of a package that was installed, which calls what it is given on its second line."""
    scope = {"__name__": module}
    file = f"/env/lib/site-packages/{module.replace('.', '/')}.py"
    exec(compile("def call(function):\n    return function()\n", file, "exec"), scope)
    return scope["call"]


def test_the_line_of_a_library_stands_behind_the_users():
    own = f"{__file__}:{test_the_line_of_a_library_stands_behind_the_users.__code__.co_firstlineno + 2}"
    line = installed("bank.memory")(user_line)
    assert line == f"{own}, by way of /env/lib/site-packages/bank/memory.py:2"
    assert ", by way of " not in installed("torch.nn.modules")(user_line)  # what these ask is no cause
    with pytest.raises(ZeroDivisionError) as caught:
        installed("bank.memory")(lambda: operator.truediv(1, 0))  # the lambda's line is the innermost one
    assert ", by way of " not in user_line(caught.value)
    with pytest.raises(TypeError) as caught:
        installed("bank.memory")(None)
    assert user_line(caught.value).endswith(", by way of /env/lib/site-packages/bank/memory.py:2")


def test_a_warning_is_given_at_the_users_line():
    with pytest.warns(SinkWarning) as caught:
        warn_at("It is late.", "train.py:12, by way of /env/lib/site-packages/bank/memory.py:2")
    assert (caught[0].filename, caught[0].lineno) == ("train.py", 12)


WARNS = """
import sys, warnings
from lightning_sink.engine.watch import watch_reads

found = []
with watch_reads(found.append, {}, {}, []):
    warnings.warn("old use")
    written = [*found]
    sys.stderr.write("more")
print(written, found)
"""


def test_that_python_writes_a_warning_down_is_nothing_of_the_steps():
    """In a process of its own: pytest takes warnings before they are written."""
    ran = subprocess.run([sys.executable, "-c", WARNS], check=True, capture_output=True, text=True)
    assert "UserWarning: old use" in ran.stderr
    assert ran.stdout == "[] ['`TextIOWrapper.write()` is called']\n"
