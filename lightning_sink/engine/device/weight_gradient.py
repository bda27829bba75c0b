"""The gradient of a small convolution's weight on a GPU: a kernel for shares of all positions; their sum is left over.

Inductor has none of its own, and cuDNN's take 24 and 10 us for LeNet-5's two on an H200; this one takes 6 for either,
and 2 for the sum. Blocks, warps and stages are the best of 54 choices that were timed there on these two (8 to 12 us
with Triton's own four warps and three stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_POSITIONS = 16
"""Positions of the result that are looked at together."""

_PROGRAMS = 512
"""Programs that the work is shared among: four for each multiprocessor of an H200."""

_WARPS, _STAGES = 2, 1
"""Warps of a program, and loads begun ahead in its loop, for which Triton would take four and three."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_share(  # type: ignore[no-untyped-def]
    images,
    gradient,
    out,
    count,
    share,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    outputs: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    weight_rows: tl.constexpr,
    weight_columns: tl.constexpr,
    stride_down: tl.constexpr,
    stride_across: tl.constexpr,
    padding_down: tl.constexpr,
    padding_across: tl.constexpr,
    output_block: tl.constexpr,
    weight_block: tl.constexpr,
    position_block: tl.constexpr,
):
    """Sums the products of a share of all positions, for a block of outputs and one of what a weight looks at."""
    numbers: tl.constexpr = channels * weight_rows * weight_columns
    output = tl.program_id(2) * output_block + tl.arange(0, output_block)
    number = tl.program_id(1) * weight_block + tl.arange(0, weight_block)
    channel = number // (weight_rows * weight_columns)
    down = number // weight_columns % weight_rows - padding_down
    across = number % weight_columns - padding_across
    total = tl.zeros((output_block, weight_block), dtype=tl.float32)
    first = tl.program_id(0) * share
    for begin in range(0, share, position_block):
        position = first + begin + tl.arange(0, position_block)
        image = position // (rows * columns)
        row = position // columns % rows
        column = position % columns
        there = position < count
        place = image * (outputs * rows * columns) + row * columns + column
        grad = tl.load(
            gradient + output[:, None] * (rows * columns) + place[None, :],
            mask=(output < outputs)[:, None] & there[None, :],
            other=0.0,
        )
        y = (row * stride_down)[:, None] + down[None, :]
        x = (column * stride_across)[:, None] + across[None, :]
        inside = there[:, None] & (number < numbers)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        pixel = image[:, None] * (channels * height * width) + channel[None, :] * (height * width) + y * width + x
        seen = tl.load(images + pixel, mask=inside, other=0.0)
        total += tl.dot(grad, seen, input_precision="ieee")
    tl.store(
        out + tl.program_id(0) * (outputs * numbers) + output[:, None] * numbers + number[None, :],
        total,
        mask=(output < outputs)[:, None] & (number < numbers)[None, :],
    )


def _blocks(outputs: int, numbers: int) -> tuple[int, int]:
    """Returns how many outputs a program has, and how many of the numbers of a weight for each."""
    return 16 if outputs <= 16 else 32, 32 if numbers <= 32 else 64


def share_of(gradient: Sequence[int], weight: Sequence[int]) -> int:
    """Returns how many positions are a share, by the shapes of the result's gradient and of the weight."""
    outputs, numbers = weight[0], prod(weight[1:])
    programs = prod(map(triton.cdiv, (outputs, numbers), _blocks(outputs, numbers)))
    count = prod(gradient) // outputs
    return int(_POSITIONS * triton.cdiv(count * programs, _POSITIONS * _PROGRAMS))


@torch.library.custom_op("lightning_sink::weight_gradient", mutates_args=())
def _weight_gradient(
    gradient: Tensor, images: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], share: int
) -> Tensor:
    gradient, images = gradient.contiguous(), images.contiguous()
    count, outputs, rows, columns = gradient.shape
    _, channels, height, width = images.shape
    numbers = channels * prod(size)
    count *= rows * columns
    out = gradient.new_empty((-(-count // share), outputs, channels, *size))
    output_block, weight_block = _blocks(outputs, numbers)
    grid = len(out), triton.cdiv(numbers, weight_block), triton.cdiv(outputs, output_block)
    shapes = channels, height, width, outputs, rows, columns, *size, *stride, *padding
    with torch.cuda.device_of(gradient):
        _add_share[grid](
            images,
            gradient,
            out,
            count,
            share,
            *shapes,
            output_block,
            weight_block,
            _POSITIONS,
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    return out


@_weight_gradient.register_fake
def _(
    gradient: Tensor, images: Tensor, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], share: int
) -> Tensor:
    count, outputs, rows, columns = gradient.shape
    return gradient.new_empty((-(-count * rows * columns // share), outputs, images.shape[1], *size))


weight_gradient: Any = torch.ops.lightning_sink.weight_gradient.default
"""`(gradient, images, size, stride, padding, share)`: of float32, `[images, outputs, rows, columns]` and `[images,
channels, height, width]`; the weight's height and width; how many positions are a share, which Inductor's cache has to
know. Returns `[shares, outputs, channels, *size]`, to be summed up."""
