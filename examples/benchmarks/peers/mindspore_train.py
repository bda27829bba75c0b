"""MindSpore: `Model.train` in graph mode. `python peers/mindspore_train.py JOB.json`.

Asked for sinks (`dataset_sink_mode=True`), MindSpore trains step by step on a CPU and says so in its log at level info;
an epoch is then a pass over the 200 batches, and callbacks are called for each step. Batches in memory come from a
`GeneratorDataset`; the nearest to a shuffled loader is a shuffled `NumpySlicesDataset`. `Model.train` has no defaults
beyond the bare row. The start includes what `train` does before the first step. MindSpore 2.10 needs NumPy 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # errors only
sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared modules lie beside suite.py

import mindspore as ms
from job import Clock, Job, LacksModelError, Trained, cores, run
from mindspore import nn
from mindspore.dataset import Dataset, GeneratorDataset, NumpySlicesDataset
from mindspore_models import MODELS
from workload import WORKLOADS, Optimizer, batches, narrow, rows


class WithLoss(nn.Cell):
    """The mean cross-entropy of a net, over the batch and, of tokens, over time."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        logits = self.net(x)
        return ms.ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def optimizer(told: Optimizer, net: nn.Cell) -> nn.Cell:
    if told.kind == "sgd":
        return nn.Momentum(net.trainable_params(), told.rate, told.momentum)
    beta1, beta2 = told.betas
    if told.kind == "adam":
        return nn.Adam(net.trainable_params(), told.rate, beta1, beta2, told.epsilon)
    # The one with AdamW's name is not for `Model`; this one leaves out the correction of the first steps' means.
    return nn.AdamWeightDecay(net.trainable_params(), told.rate, beta1, beta2, told.epsilon, told.weight_decay)


def dataset(job: Job) -> Dataset:
    found = narrow(batches(job.model, batch_size=job.batch_size))
    if job.data == "memory":
        return GeneratorDataset(found, ["x", "y"], shuffle=False)
    return NumpySlicesDataset(rows(found), ["x", "y"], shuffle=True).batch(job.batch_size)


class StepClock(ms.Callback):
    """Tells the clock how many steps are done, and ends the training at the last."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.loss = clock, float("nan")

    def step_end(self, run_context: ms.RunContext) -> None:
        told = run_context.original_args()
        if self.clock.due(told.cur_step_num):
            self.loss = float(told.net_outputs.asnumpy())  # waits for the step
            self.clock.reached(told.cur_step_num)
            if self.clock.done:
                run_context.request_stop()


def train(job: Job, clock: Clock) -> Trained:
    if job.model not in MODELS or job.options:
        raise LacksModelError(f"no {job.model} with {job.options}" if job.options else f"no {job.model}")
    ms.set_seed(0)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    net, data = MODELS[job.model](), dataset(job)
    model = ms.Model(WithLoss(net), optimizer=optimizer(WORKLOADS[job.model].optimizer, net))
    epochs = -(-job.steps // data.get_dataset_size())
    steps = StepClock(clock)
    clock.begin()
    model.train(epochs, data, callbacks=[steps], dataset_sink_mode=True, sink_size=job.sink_size)
    parameters = sum(p.size for p in net.trainable_params())
    return Trained(loss=steps.loss, parameters=parameters, threads=cores())


if __name__ == "__main__":
    run(train, ("mindspore",), lambda: None)
