"""The loop one would write by hand in PyTorch, eager and compiled. `python peers/torch_loop.py JOB.json`.

Compiled, as PyTorch's own guides do it: one compiled function from the batch to the loss, whose backward is compiled
with it, and the optimizer's step compiled too; "reduce-overhead" has both as CUDA graphs on a GPU. The first step of an
optimizer is not compiled: momentum that it made in a graph would be overwritten by the next run of that graph.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared modules lie beside suite.py

import nets
import torch
from job import Clock, Job, Trained, run
from nets import Batch
from workload import DISTINCT

MODES = {"loop-compile": "default", "loop-reduce-overhead": "reduce-overhead"}


def endless(job: Job) -> Iterator[Batch]:
    """The batches of a list, or of a shuffled loader, over and over."""
    batches = nets.batches(job.model, DISTINCT, job.batch_size)
    data = batches if job.data == "memory" else nets.shuffled(batches)
    while True:
        yield from data


def train(job: Job, clock: Clock) -> Trained:
    torch.manual_seed(0)
    device = torch.device(job.accelerator)
    net = nets.NETS[job.model](**job.options).to(device).train()
    optimizer = nets.optimizer(job.model, net)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nets.loss(net, (x, y))

    update = optimizer.step
    if job.side != "loop":
        mode = MODES[job.side]
        loss_of, update = torch.compile(loss_of, mode=mode), torch.compile(update, mode=mode)

        for group in optimizer.param_groups:
            if "capturable" in group:  # Adam's counts of steps lie on the GPU then, as graphs need them
                group["capturable"] = job.accelerator == "cuda"

    data = endless(job)
    clock.begin()
    for step in range(1, job.steps + 1):
        x, y = next(data)
        optimizer.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()  # the graphs of "reduce-overhead" may use their memory again
        loss = loss_of(x.to(device), y.to(device))
        loss.backward()
        (update if step > 1 else optimizer.step)()
        clock.reached(step)
    return nets.trained(net, float(loss.detach()), job.accelerator)


if __name__ == "__main__":
    run(train, ("torch",), nets.synchronize)
