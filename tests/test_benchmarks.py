"""The benchmarks run end to end, and refuse to compare what is not the same."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import positions

BENCHMARKS = Path(__file__).parents[1] / "examples" / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """Benchmarks can be imported, as scripts that lie beside each other can."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def gpu(benchmarks):
    """The script for a GPU; `import gpu` gives a module of the tests."""
    spec = importlib.util.spec_from_file_location("gpu_benchmark", BENCHMARKS / "gpu.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report(benchmarks):
    """The module that writes the tables."""
    return importlib.import_module("report")


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a text, as lines of cells."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in table.splitlines()] for table in found]


def test_what_is_timed_on_a_gpu_is_there(gpu):
    with gpu.Watch(steps=10).watching():
        pass


def test_a_gpu_is_busy_while_spans_cover_the_time(gpu):
    covered = gpu.covered
    spans = [(10.0, 12.0), (0.0, 4.0), (3.0, 5.0), (1.0, 2.0), (13.0, 14.0), (30.0, 31.0)]
    assert covered(spans) == 9.0
    assert covered(spans, gap=1.0) == 10.0
    assert covered(spans, gap=5.0) == 15.0
    assert covered([]) == 0.0


def test_what_calls_of_cuda_take_is_added_up_by_name(gpu):
    cpu, cuda = gpu.DeviceType.CPU, gpu.DeviceType.CUDA
    seen = [
        ("cudaMemcpyAsync", cpu, 0.0, 2.0),
        ("cudaMemcpyAsync", cpu, 5.0, 6.5),
        ("cuLaunchKernel", cpu, 2.0, 2.5),
        ("cudaEventSynchronize", cpu, 7.0, 99.0),
        ("aten::mm", cpu, 0.0, 9.0),
        ("cutlass_gemm", cuda, 0.0, 9.0),
    ]
    spans = [(name, kind, SimpleNamespace(start=start, end=end)) for name, kind, start, end in seen]
    events = [SimpleNamespace(name=name, device_type=kind, time_range=span) for name, kind, span in spans]
    found = gpu.Found(calls=gpu.calls_of_cuda(events))
    assert found.calls == {"cudaMemcpyAsync": 3.5, "cuLaunchKernel": 0.5}
    said = "* MLP, us a step in all calls of CUDA's: 0.4 (cudaMemcpyAsync 0.35, cuLaunchKernel 0.05)"
    assert gpu.said_of_calls("MLP", 10, found) == said


@pytest.mark.narrow
def test_the_suite_compares_sides_and_skips_what_is_absent(tmp_path):
    out, drawn = tmp_path / "suite.md", tmp_path / "suite.svg"
    chart = ("--chart", str(drawn)) if importlib.util.find_spec("matplotlib") else ()
    # An interpreter that has nothing stands for an environment without JAX.
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    said = run(
        "suite.py",
        *("--models", "MLP", "--peers", "plain", "loop", "sink", "jax", "--python", f"jax={bare}"),
        *("--sink-sizes", "20", "--steps", "40", "--other-steps", "40", "--repeats", "1"),
        *("--engine", "eager", "--out", str(out), *chart),
    )
    assert "jax: jax not installed in bare-python; skipped" in said
    losses = re.findall(r"1/1 (\S+): .* loss (\S+)$", said, flags=re.MULTILINE)
    assert [side for side, _ in losses] == ["loop", "plain", "sink"]
    assert len({loss for _, loss in losses}) == 1, "the sides have not trained the same"
    speeds, ratios, starts, memory = tables(out.read_text())
    assert speeds[0] == ["model", "row", "data", "batch", "sink size", "loop", "plain", "sink", "jax",
                         "steps: many / others"]  # fmt: skip
    for table in (speeds, ratios, starts, memory):
        (line,) = table[2:]
        assert line[:5] == ["MLP", "bare", "memory", "32", "20"]
    assert speeds[2][8] == ratios[2][-1] == starts[2][-1] == memory[2][8] == "-"
    assert re.fullmatch(r"\d+\.\d\d \(\d+\.\d\d-\d+\.\d\d\)", ratios[2][6])
    assert memory[2][-1] == "8,970"
    assert "jax: jax not installed in bare-python; skipped" in out.read_text()
    assert "python examples/benchmarks/suite.py --models MLP" in out.read_text()
    assert str(tmp_path) not in out.read_text()
    assert drawn.exists() == bool(chart)


@pytest.mark.narrow
@pytest.mark.parametrize(
    ("script", "settings"),
    [
        (
            "kernels",
            {
                "PRODUCTS": [((4, 3, 2), True, True)],
                "IMAGES": [(2, 1, 4, 4)],
                "MASKS": [(2, 3)],
                "STEPS": 2,
                "REPEATS": 1,
            },
        ),
        ("layouts", {"NETS": None, "SECONDS": 0.01, "REPEATS": 1}),
    ],
)
def test_a_comparison_of_compiled_steps_has_a_line_for_each(script, settings, benchmarks, monkeypatch, capsys):
    module = importlib.import_module(script)
    if script == "layouts":
        settings["NETS"] = {"small": (lambda: module.pooled(2), (2, 3, 4, 4))}
    for name, value in settings.items():
        monkeypatch.setattr(module, name, value)
    module.main()
    (table,) = tables(capsys.readouterr().out)
    assert len(table) == 2 + (3 if script == "kernels" else 1)
    assert all(len(line) == len(table[0]) for line in table[2:])


@pytest.mark.narrow
def test_growth_has_a_line_for_each_point(tmp_path):
    out = tmp_path / "growth.md"
    run(
        "growth.py",
        *("--sink-sizes", "--widths", "16", "--depths", "--other-steps", "25", "--sink-size", "20"),
        *("--engine", "eager", "--out", str(out)),
    )
    (table,) = tables(out.read_text())
    assert [line[:6] for line in table[2:]] == [["parameters", "1,482", "1,482", "3", "20", "40"]]
    assert table[0][-2:] == ["libraries", "code, bytes"]
    assert table[2][-2:] == ["0", "0"], "the eager engine compiles nothing"


@pytest.mark.narrow
@positions.needed
def test_every_option_has_a_line_and_is_compiled(tmp_path):
    out = tmp_path / "options.md"
    run("options.py", "--sink-size", "10", "--repeats", "1", "--engine", "traced", "--out", str(out))
    (table,) = tables(out.read_text())
    assert len(table) > 10
    assert all(float(line[2].replace(",", "")) > 0 for line in table[2:])


def test_other_parameters_are_refused(report):
    report.check_same_model("MLP", {"plain": 8970, "jax": 8970})
    with pytest.raises(ValueError, match="MLP: the sides do not train the same model; parameters: plain 8,970, jax"):
        report.check_same_model("MLP", {"plain": 8970, "jax": 8960})


def test_what_a_framework_counts_otherwise_is_known(report):
    report.check_same_model("LSTM", {"plain": 25738, "keras": 25482})
    with pytest.raises(ValueError, match="LSTM"):
        report.check_same_model("LSTM", {"plain": 25738, "jax": 25482})


def test_every_model_has_a_net(report):
    nets, workload = importlib.import_module("nets"), importlib.import_module("workload")
    assert set(nets.NETS) == set(workload.WORKLOADS)
    for name, kind in nets.NETS.items():
        (batch,) = nets.batches(name, 1)
        loss = nets.loss(kind(), batch)
        loss.backward()
        assert loss.isfinite()


def test_a_side_that_ends_in_no_number_has_no_figure(benchmarks, monkeypatch, tmp_path):
    apart, job = importlib.import_module("apart"), importlib.import_module("job")
    monkeypatch.setattr(apart, "PEERS", tmp_path)
    told = 'import json, sys; told = json.load(open(sys.argv[1])); json.dump({"loss": %s}, open(told["result"], "w"))'
    for loss in ("float('nan')", "float('inf')"):
        (tmp_path / apart.SIDES["loop"].script).write_text(told % loss)
        with pytest.raises(apart.NoFigureError, match=f"ended with a loss of {float(loss[7:10])}"):
            apart.measure(job.Job(side="loop", model="MLP", sink_size=1, batch_size=1), sys.executable, tmp_path, 60)
