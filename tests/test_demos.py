"""Lightning's own demo modules, but for the text that they would download; of the transformer's layers, one of two."""

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.demos.lstm import LightningLSTM
from lightning.pytorch.demos.transformer import LightningTransformer
from torch.utils.data import DataLoader, Dataset

from lightning_sink import SinkStrategy
from parity import assert_parity, both, train

VOCABULARY = 11


class Tokens(Dataset):
    def __init__(self, length=24, width=5):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randint(0, VOCABULARY, (length, width + 1), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index, :-1], self.rows[index, 1:]


class Transformer(LightningTransformer):
    def __init__(self, vocab_size):
        super().__init__(vocab_size)
        self.model = type(self.model)(vocab_size, nlayers=1)

    def prepare_data(self):
        pass


class LSTM(LightningLSTM):
    def prepare_data(self):
        pass


def small(kind):
    torch.manual_seed(5)
    return kind(vocab_size=VOCABULARY)


def tokens():
    return DataLoader(Tokens(), batch_size=4)


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_boring_model(engine):
    def make():
        torch.manual_seed(5)
        return BoringModel()

    strategy = SinkStrategy(engine=engine)
    plain, sink = both(make, lambda: DataLoader(make_rows(), batch_size=2), strategy, max_epochs=2)
    assert sink.engine == engine
    assert_parity(plain, sink, exact=engine == "eager")


def make_rows():
    return torch.randn(40, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.narrow
@pytest.mark.parametrize("kind", [BoringModel, Transformer], ids=lambda kind: kind.__name__)
def test_a_demo_is_compiled(kind):
    boring = kind is BoringModel

    def make():
        torch.manual_seed(5)
        return BoringModel() if boring else small(kind)

    def data():
        return DataLoader(make_rows(), batch_size=2) if boring else tokens()

    # The transformer's gradients make rounding grow a thousand times from step to step, and how float32 rounds goes by
    # the machine's threads.
    options = {"max_steps": 12} if boring else {"max_steps": 8, "precision": "64-true"}
    plain, sink = both(make, data, SinkStrategy(), max_epochs=2, **options)
    assert sink.engine == "inductor", sink.warned
    assert_parity(plain, sink)


@pytest.mark.narrow
@pytest.mark.parametrize("engine", ["eager", "traced", "auto"])
def test_the_lstm_carries_its_state_from_step_to_step(engine):
    # A learning rate of 20 makes rounding grow from step to step: few steps, so that the comparison says something.
    plain, sink = both(lambda: small(LSTM), tokens, SinkStrategy(engine=engine), max_epochs=1, max_steps=5)
    assert_parity(plain, sink, exact=engine == "eager")
    if engine == "auto":
        assert sink.engine == "inductor", sink.warned


def test_control_another_seed_is_noticed():
    first = train(small(Transformer), tokens(), max_epochs=1)
    torch.manual_seed(6)
    second = train(Transformer(vocab_size=VOCABULARY), tokens(), max_epochs=1)
    with pytest.raises(AssertionError):
        assert_parity(first, second)
