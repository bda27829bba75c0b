"""The models in plain JAX: a dictionary of numbers that are trained, one of running means, and a function of both.

`apply(params, stats, x)` returns the logits and the new running means, which only the normalization of SmallResNet has.
Images are height, width, channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Tree = dict[str, Any]
Apply = Callable[[Tree, Tree, Array], tuple[Array, Tree]]
HEADS, CONVOLUTION = 4, ("NHWC", "HWIO", "NHWC")


class Numbers:
    """First values, uniform in plus or minus one by the root of what comes in, as PyTorch has them."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def uniform(self, fan_in: int, *shape: int) -> np.ndarray:
        bound = fan_in**-0.5
        return self.random.uniform(-bound, bound, shape).astype(np.float32)

    def dense(self, inputs: int, outputs: int) -> Tree:
        return {"w": self.uniform(inputs, inputs, outputs), "b": self.uniform(inputs, outputs)}

    def convolution(self, size: int, inputs: int, outputs: int) -> np.ndarray:
        return self.uniform(size * size * inputs, size, size, inputs, outputs)

    def normal(self, scale: float, *shape: int) -> np.ndarray:
        return (scale * self.random.standard_normal(shape)).astype(np.float32)


def scale_and_shift(width: int) -> Tree:
    return {"scale": np.ones(width, np.float32), "shift": np.zeros(width, np.float32)}


def dense(p: Tree, x: Array) -> Array:
    return x @ p["w"] + p["b"]


def mlp(numbers: Numbers) -> tuple[Tree, Tree, Apply]:
    def apply(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
        x = jax.nn.relu(dense(p["0"], x))
        x = jax.nn.relu(dense(p["1"], x))
        return dense(p["2"], x), stats

    return {"0": numbers.dense(64, 64), "1": numbers.dense(64, 64), "2": numbers.dense(64, 10)}, {}, apply


def halved(x: Array) -> Array:
    """The largest of each two by two."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def lenet(numbers: Numbers) -> tuple[Tree, Tree, Apply]:
    params = {"c0": numbers.convolution(5, 1, 6), "b0": numbers.uniform(25, 6)}
    params |= {"c1": numbers.convolution(5, 6, 16), "b1": numbers.uniform(150, 16)}
    params |= {"0": numbers.dense(400, 120), "1": numbers.dense(120, 84), "2": numbers.dense(84, 10)}

    def apply(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
        for convolution, bias in (("c0", "b0"), ("c1", "b1")):
            x = lax.conv_general_dilated(x, p[convolution], (1, 1), "VALID", dimension_numbers=CONVOLUTION)
            x = halved(jax.nn.relu(x + p[bias]))
        x = jax.nn.relu(dense(p["0"], x.reshape(len(x), -1)))
        return dense(p["2"], jax.nn.relu(dense(p["1"], x))), stats

    return params, {}, apply


def layer_norm(p: Tree, x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]


def attended(p: Tree, x: Array) -> Array:
    """Causal self-attention of several heads."""
    q, k, v = jnp.split(dense(p["qkv"], x).reshape(*x.shape[:2], 3 * HEADS, -1), 3, axis=2)
    return dense(p["out"], jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))


def small_gpt(numbers: Numbers, vocab: int = 65, context: int = 32, width: int = 64) -> tuple[Tree, Tree, Apply]:
    def block() -> Tree:
        dense_layers = {"qkv": numbers.dense(width, 3 * width), "out": numbers.dense(width, width)}
        dense_layers |= {"up": numbers.dense(width, 4 * width), "down": numbers.dense(4 * width, width)}
        return dense_layers | {"norm1": scale_and_shift(width), "norm2": scale_and_shift(width)}

    params = {"tokens": numbers.normal(1.0, vocab, width), "positions": numbers.normal(0.02, context, width)}
    params |= {"blocks": [block() for _ in range(4)], "norm": scale_and_shift(width)}
    params |= {"head": numbers.uniform(width, width, vocab)}

    def apply(p: Tree, stats: Tree, tokens: Array) -> tuple[Array, Tree]:
        x = p["tokens"][tokens] + p["positions"][: tokens.shape[1]]
        for b in p["blocks"]:
            x = x + attended(b, layer_norm(b["norm1"], x))
            x = x + dense(b["down"], jax.nn.gelu(dense(b["up"], layer_norm(b["norm2"], x)), approximate=False))
        return layer_norm(p["norm"], x) @ p["head"], stats

    return params, {}, apply


def convolved(p: Tree, stats: Tree, x: Array, stride: int = 1) -> tuple[Array, Tree]:
    """A convolution and batch normalization, whose running mean and variance go on by a tenth."""
    pad = p["c"].shape[0] // 2
    padding = ((pad, pad), (pad, pad))
    x = lax.conv_general_dilated(x, p["c"], (stride, stride), padding, dimension_numbers=CONVOLUTION)
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    numbers = x.size // x.shape[-1]
    found = {"mean": mean, "var": var * (numbers / (numbers - 1))}
    new = {name: 0.9 * stats[name] + 0.1 * found[name] for name in found}
    return (x - mean) * (lax.rsqrt(var + 1e-5) * p["scale"]) + p["shift"], new


def small_resnet(numbers: Numbers) -> tuple[Tree, Tree, Apply]:
    shapes = {"stem": (3, 3, 16)}
    for block, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64))):
        shapes |= {f"{block}a": (3, inputs, outputs), f"{block}b": (3, outputs, outputs)}
        shapes |= {f"{block}s": (1, inputs, outputs)} if inputs != outputs else {}
    params = {name: {"c": numbers.convolution(*shape)} | scale_and_shift(shape[-1]) for name, shape in shapes.items()}
    stats = {
        name: {"mean": np.zeros(shape[-1], np.float32), "var": np.ones(shape[-1], np.float32)}
        for name, shape in shapes.items()
    }

    def apply(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
        new = {}
        x, new["stem"] = convolved(p["stem"], stats["stem"], x)
        x = jax.nn.relu(x)
        for block in range(3):
            a, b, s = (f"{block}{part}" for part in "abs")
            inner, new[a] = convolved(p[a], stats[a], x, stride=2 if s in p else 1)
            inner, new[b] = convolved(p[b], stats[b], jax.nn.relu(inner))
            if s in p:
                x, new[s] = convolved(p[s], stats[s], x, stride=2)
            x = jax.nn.relu(inner + x)
        return dense(p["head"], x.mean((1, 2))), new

    return params | {"head": numbers.dense(64, 10)}, stats, apply


def lstm(numbers: Numbers, width: int = 64) -> tuple[Tree, Tree, Apply]:
    params = {"x": {"w": numbers.uniform(width, 32, 4 * width), "b": numbers.uniform(width, 4 * width)}}
    params |= {"h": numbers.dense(width, 4 * width), "head": numbers.dense(width, 10)}

    def apply(p: Tree, stats: Tree, x: Array) -> tuple[Array, Tree]:
        def step(state: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], None]:
            h, c = state
            i, f, g, o = jnp.split(gates + dense(p["h"], h), 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((len(x), width))
        (h, _), _ = lax.scan(step, (zero, zero), dense(p["x"], x).swapaxes(0, 1))
        return dense(p["head"], h), stats

    return params, {}, apply


MODELS: dict[str, Callable[[Numbers], tuple[Tree, Tree, Apply]]] = {
    "MLP": mlp,
    "LeNet": lenet,
    "SmallGPT": small_gpt,
    "SmallResNet": small_resnet,
    "LSTM": lstm,
}
