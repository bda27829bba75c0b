"""A step of which every row shows what it did: what several of the engine's tests repeat."""

import torch
from torch import fx

from lightning_sink.engine.compiler.row import Turn
from lightning_sink.engine.tracing.recording import Recording


def recording():
    """Adds the row to a total, in place; gives the sum so far, the row's largest, and the row itself."""
    graph = fx.Graph()
    total, row = graph.placeholder("total"), graph.placeholder("row")
    added = graph.call_function(torch.ops.aten.add.Tensor, (total, row))
    graph.call_function(torch.ops.aten.copy_.default, (total, added))
    outputs = [
        graph.call_function(torch.ops.aten.sum.default, (added,)),
        graph.call_function(torch.ops.aten.amax.default, (row,)),
        graph.call_function(torch.ops.aten.mul.Tensor, (row, 2.0)),
    ]
    graph.output(tuple(outputs))
    return Recording(graph, inputs=[torch.zeros(4), torch.zeros(4)], largest=4)


def in_a_row(step, fixed, positions, rows, kept):
    """Returns steps in a row, of which each has these for the inputs that differ."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return step.row([Turn(step, fixed, positions, columns, kept)], len(rows))


def repeat(step, fixed, positions, rows, kept):
    row = in_a_row(step, fixed, positions, rows, kept)
    row.launch()
    try:
        return row.wait()
    finally:
        step.rest()


def window_one_by_one(rounds):
    """What the steps of windows of four give, in their order, and what is held and the total at the end.

    The first makes twice its row, two add theirs to that, and the last adds it to the total; row follows row from 1 on.
    """
    given, total, held = [], 0.0, 0.0
    for number in range(4 * rounds):
        row, turn = number + 1.0, number % 4
        held = 2 * row if turn == 0 else held + row * (turn < 3)
        total += held * (turn == 3)
        given.append([4 * row, 4 * held, 4 * held, 4 * (total + row)][turn])
    return given, held, total


def makes_and_adds(make, add, rows):
    """The first three turns of such a window, of steps that make a tensor and add to it, on rows of all four."""
    link = {0: (0, 1)}
    return [
        Turn(make, [None], [0], [rows[0::4]], [0]),
        Turn(add, [None, None], [1], [rows[1::4]], [0], link),
        Turn(add, [None, None], [1], [rows[2::4]], [0], link),
    ]
