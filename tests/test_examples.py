"""The example trains the same in sinks as plain, and prints what the README shows."""

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "lenet_digits.py"


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_lenet_on_the_digits(engine, capsys):
    spec = importlib.util.spec_from_file_location("lenet_digits", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    figures = example.main(["--epochs", "2", "--sink-size", "50", "--engine", engine])
    lines = re.findall(r"^epoch: (\d+) step: (\d+), loss is (\d+\.\d+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert [line[:2] for line in lines] == [("1", "50"), ("2", "50")]
    assert figures["steps"] == figures["sink_steps"] == 100
    assert figures["accuracy"] == pytest.approx(figures["sink_accuracy"], abs=0.01)
    assert figures["accuracy"] > 0.3
