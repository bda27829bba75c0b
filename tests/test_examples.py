"""The examples train the same in sinks as plain, and print what the README shows."""

import importlib
import re
from pathlib import Path

import pytest


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "examples")
    return importlib.import_module


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_lenet_on_the_digits(engine, example, capsys):
    figures = example("lenet_digits").main(["--epochs", "2", "--sink-size", "50", "--engine", engine])
    lines = re.findall(r"^epoch: (\d+) step: (\d+), loss is (\d+\.\d+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert [line[:2] for line in lines] == [("1", "50"), ("2", "50")]
    assert figures["steps"] == figures["sink_steps"] == 100
    assert figures["accuracy"] == pytest.approx(figures["sink_accuracy"], abs=0.01)
    assert figures["accuracy"] > 0.3


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_three_ways_of_data_sink_train_the_same(engine, example, capsys):
    figures = example("data_sink").main(["--epochs", "2", "--engine", engine])
    lines = re.findall(r"^step (\d+), loss is (\d+\.\d+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert [number for number, _ in lines] == ["44", "88", "44", "88", "88"]
    assert [each["calls"] for each in figures] == [88, 2, 1]
    losses = [float(loss) for number, loss in lines if number == "88"]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    assert figures[0]["accuracy"] > 0.3


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_loop_by_hand_over_a_helper(engine, example, capsys):
    accuracy = example("custom_loop").main(["--epochs", "2", "--sink-size", "50", "--engine", engine])
    lines = re.findall(r"^epoch: (\d+)/2, losses: (\d+\.\d+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert [number for number, _ in lines] == ["1", "2"]
    assert accuracy > 0.3


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_network_of_ones_own(engine, example, capsys):
    accuracy = example("custom_network").main(["--sink-size", "200", "--engine", engine])
    assert re.search(r"^-------loss------ \d\.\d+$", capsys.readouterr().out, flags=re.MULTILINE)
    assert accuracy > 0.8


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_the_bottleneck_is_found(engine, example, capsys):
    example("find_bottleneck").main(["--sink-size", "5", "--sinks", "4", "--engine", engine])
    out = capsys.readouterr().out
    assert len(re.findall(r"^DataLoader alone: \d+ items/s$", out, flags=re.MULTILINE)) == 2
    assert len(re.findall(r"^training on one batch again and again: \d+ items/s$", out, flags=re.MULTILINE)) == 2
    waits = re.findall(r"^training from the DataLoader: \d+ items/s, (\d+)% of the time waiting", out, re.MULTILINE)
    assert len(waits) == 2
    assert int(waits[1]) > 0  # turning a digit takes time, and what draws is fetched in its turn
