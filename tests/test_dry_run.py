"""Lightning's `fast_dev_run`: a few batches compile what a training needs, or say why it cannot be."""

import lightning as L
import pytest
from torch._inductor.codecache import CppWrapperCodeCache

import positions
from lightning_sink import CompileError, SinkStrategy
from lightning_sink.engine.compiler.toolchain import missing_compiler
from parity import QUIET, Net, loader

missing = pytest.mark.skipif(missing_compiler() is not None, reason="no C++ compiler")


@pytest.fixture
def texts(monkeypatch):
    """The C++ that is made into libraries, or found in the cache by its text."""
    seen, original = [], CppWrapperCodeCache.load_pybinding

    def load(*arguments, main_code="", **options):
        seen.append(main_code)
        return original(*arguments, main_code=main_code, **options)

    monkeypatch.setattr(CppWrapperCodeCache, "load_pybinding", load)
    return seen


def fit(**options):
    strategy = SinkStrategy(20, epoch="dataset", engine="inductor", fallback="error")
    trainer = L.Trainer(strategy=strategy, gradient_clip_val=1.0, **{**QUIET, **options})
    trainer.fit(Net(optimizer="adam", schedule="onecycle", total_steps=200), loader(60))
    return strategy


@pytest.mark.narrow
@missing
def test_eight_batches_compile_what_the_training_runs(texts):
    assert fit(fast_dev_run=8).active_engine == "inductor"
    made = set(texts)
    assert made
    texts.clear()
    assert fit(max_epochs=2).active_engine == "inductor"
    assert set(texts) <= made


def test_what_cannot_be_compiled_is_told():
    class Decides(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss if int(loss) >= 0 else None

    trainer = L.Trainer(strategy=SinkStrategy(engine="traced", fallback="error"), **{**QUIET, "fast_dev_run": 8})
    with pytest.raises(CompileError, match="a value of a tensor decides"):
        trainer.fit(Decides(), loader(60))


@positions.needed
def test_a_number_that_is_asked_for_by_float_is_compiled_at_once():
    """Though the first step that asks so is no example of those that follow."""

    class Logs(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("half", float(loss.detach()) / 2)
            return loss

    strategy = SinkStrategy(engine="traced", fallback="error")
    L.Trainer(strategy=strategy, **{**QUIET, "fast_dev_run": 8}).fit(Logs(), loader(60))
    assert strategy.active_engine == "traced"
