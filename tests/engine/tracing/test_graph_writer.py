"""A graph and its text, written operation by operation."""

import torch
from torch import fx

from lightning_sink.engine.compiler.inductor import graph_module
from lightning_sink.engine.tracing.graph_writer import GraphWriter
from lightning_sink.engine.tracing.recording import Recording

ADD, SPLIT = torch.ops.aten.add.Tensor, torch.ops.aten.split.Tensor


def written(x, y):
    """Writes `x + y`, split in two; returns the recording, the writer and the parts."""
    recording, inputs = Recording(fx.Graph()), []
    writer = GraphWriter(recording, lambda tensor, index: inputs.append((index, tensor)))
    total = x + y
    writer.write(ADD, (writer.node(x), writer.node(y)), {}, total, draws=False)
    parts = torch.split(total, 1)
    writer.write(SPLIT, (writer.node(total), 1), {}, parts, draws=False)
    assert [index for index, _ in inputs] == list(range(len(inputs)))
    return recording, writer, parts


def test_the_graph_gives_what_the_operations_gave():
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    recording, writer, parts = written(x, y)
    assert writer.made(parts[1])
    assert not writer.made(x)
    writer.finish([parts[1], x])
    found = graph_module(recording)(torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0]))
    assert [tensor.tolist() for tensor in found] == [[22.0], [10.0, 20.0]]


def test_texts_are_equal_for_equal_graphs_only():
    x, y = torch.ones(2), torch.ones(2)
    texts = []
    for tensors in ((x, y), (y, x), (x, x), (x.double(), y.double())):
        recording, writer, parts = written(*tensors)
        writer.finish([parts[0]])
        texts.append(recording.text)
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
