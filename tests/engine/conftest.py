"""What tests of compiled code share."""

import pytest
import torch

from lightning_sink.engine import compiled
from lightning_sink.engine.compiler import inductor
from lightning_sink.engine.programs import maker


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch):
    """Programs cost nothing, however slow the machine is, where a test does not say what they do."""
    monkeypatch.setattr(maker, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(compiled, "_FREE_SECONDS", 1e6)


@pytest.fixture(scope="module")
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def replaced(monkeypatch):
    """Returns a function that replaces a part of our C++ in what is compiled from now on."""
    text = inductor._text

    def replace(right, wrong):
        assert text(inductor._RUNTIME).count(right) == 1
        monkeypatch.setattr(inductor, "_text", lambda names: text(names).replace(right, wrong))

    return replace
