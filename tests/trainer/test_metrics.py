"""Calls of metrics are made again with other tensors, in their order."""

import lightning as L
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric

from lightning_sink.engine.step import Tape
from lightning_sink.trainer.metric_watch import keep_metrics, noted
from lightning_sink.trainer.metrics import MetricCalls, Source, repeat


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.mean, self.all = MeanMetric(), CatMetric()
        self.both = MetricCollection({"mean": MeanMetric(), "max": MaxMetric()})


def called(module, body):
    calls = MetricCalls()
    with noted(calls, module, Tape()):
        out = body()
    return calls, out


def test_calls_are_made_as_ever_and_noted_with_their_tensors():
    module, value = Module(), torch.tensor([1.0, 3.0])
    calls, out = called(module, lambda: (module.mean(value), module.all.update(value)))
    assert out[0] == 2.0
    assert module.all.compute().tolist() == [1.0, 3.0]
    assert [call.method for call in calls.calls] == ["forward", "update"]
    value.zero_()
    assert calls.tensors[0].tolist() == [1.0, 3.0]


def test_repeated_calls_leave_what_real_ones_leave():
    module, same = Module(), Module()
    calls, _ = called(module, lambda: (module.mean(torch.ones(2)), module.both.update(torch.zeros(2))))
    for owner in (same,):
        owner.mean(torch.ones(2))
        owner.both.update(torch.zeros(2))
    later = torch.tensor([5.0, 7.0]), torch.tensor([-1.0, 2.0])
    values = repeat(calls.calls, later, [Source(1, leaf=0), None])
    expected = same.mean(later[0])
    same.both.update(later[1])
    assert values[0] == expected == 6.0
    assert values[1] is None
    assert module.mean.compute() == same.mean.compute()
    assert {name: float(value) for name, value in module.both.compute().items()} == {
        name: float(value) for name, value in same.both.compute().items()
    }


def test_the_methods_are_the_metrics_own_again_afterwards():
    module = Module()
    kept = module.mean.update, MeanMetric.forward, MetricCollection.update
    with pytest.raises(ZeroDivisionError):
        called(module, lambda: 1 / 0)
    assert (module.mean.update, MeanMetric.forward, MetricCollection.update) == kept
    assert "forward" not in vars(MeanMetric)
    assert not [name for name in ("forward", "reset") if name in vars(module.mean)]


def test_a_metric_of_another_module_is_none_of_its_business():
    module, other = Module(), MeanMetric()
    calls, _ = called(module, lambda: other(torch.ones(2)))
    assert calls.calls == []
    assert calls.source(other) is None


def test_states_go_back_to_where_they_were():
    module = Module()
    module.mean.update(torch.ones(2))
    module.all.update(torch.ones(2))
    restore = keep_metrics(module)
    module.mean.update(torch.full((2,), 9.0))
    module.mean.mean_value.add_(1.0)
    module.all.update(torch.zeros(2))
    module.both.update(torch.ones(2))
    restore()
    assert module.mean.compute() == 1.0
    assert module.all.compute().tolist() == [1.0, 1.0]
    assert module.both["max"].update_count == 0
