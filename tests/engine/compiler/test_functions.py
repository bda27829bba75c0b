"""Each recording is compiled once, whatever steps it stands for."""

import torch
from torch import fx

from lightning_sink.engine.compiler.functions import Functions
from lightning_sink.engine.failures import RefusedError
from lightning_sink.engine.state.default_generators import Generators
from lightning_sink.engine.tracing.recording import Recording
from lightning_sink.engine.watch import Hazard

HERE = Generators(torch.device("cpu"))


def recording(text):
    return Recording(fx.Graph(), text=text)


def test_equal_texts_share_a_function():
    made = []
    functions = Functions(lambda item: made.append(item.text) or (lambda: item.text), HERE)
    first, second, other = (functions.get(recording(text)) for text in ("a", "a", "b"))
    assert first is second is not other
    assert made == ["a", "b"]


def test_a_compiler_that_fails_is_a_reason_and_draws_nothing():
    def compiler(item):
        torch.rand(3)
        raise RuntimeError("no such kernel\nand much more")

    before = torch.get_rng_state()
    found = Functions(compiler, HERE).get(recording("a"))
    assert isinstance(found, Hazard)
    assert found.what == "compiling it failed: RuntimeError: no such kernel"
    assert torch.equal(before, torch.get_rng_state())


def test_what_a_compiler_refuses_is_told_as_it_stands():
    why = Hazard("`aten::bernoulli` draws by values", "train.py:3", "draw by numbers")

    def compiler(item):
        raise RefusedError(why)

    assert Functions(compiler, HERE).get(recording("a")) is why


def test_the_number_of_functions_is_bounded_because_code_is_never_given_back():
    functions = Functions(lambda item: lambda: item.text, HERE)
    found = [functions.get(recording(str(index))) for index in range(40)]
    assert callable(found[31])
    assert isinstance(found[32], Hazard)
    assert "32 programs" in found[32].what
    assert functions.get(recording("3")) is found[3]
