"""The models in Keras 3. Images are height, width, channels, which is Keras's own order."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import layers


def mlp() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(64, "relu"), layers.Dense(10)])


def lenet() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            layers.Conv2D(6, 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(120, "relu"),
            layers.Dense(84, "relu"),
            layers.Dense(10),
        ]
    )


class Positions(layers.Layer):
    """Adds a vector that is trained to each place of a sequence."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.table


def small_gpt(vocab: int = 65, context: int = 32, width: int = 64) -> keras.Model:
    def normed(x: keras.KerasTensor) -> keras.KerasTensor:
        return layers.LayerNormalization(epsilon=1e-5)(x)

    tokens = keras.Input((context,), dtype="int32")
    x = Positions()(layers.Embedding(vocab, width)(tokens))
    for _ in range(4):
        inner = normed(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(inner, inner, use_causal_mask=True)
        inner = layers.Dense(4 * width, lambda y: keras.activations.gelu(y, approximate=False))(normed(x))
        x = x + layers.Dense(width)(inner)
    return keras.Model(tokens, layers.Dense(vocab, use_bias=False)(normed(x)))


def small_resnet() -> keras.Model:
    def convolved(x: keras.KerasTensor, channels: int, size: int, stride: int = 1) -> keras.KerasTensor:
        # "same" pads an even image at one end only where PyTorch pads both: as many numbers, elsewhere by one.
        x = layers.Conv2D(channels, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    image = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolved(image, 16, 3))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = convolved(layers.ReLU()(convolved(x, channels, 3, stride)), channels, 3)
        shortcut = x if stride == 1 else convolved(x, channels, 1, stride)
        x = layers.ReLU()(inner + shortcut)
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((32, 32)), layers.LSTM(64), layers.Dense(10)])


MODELS: dict[str, Callable[[], keras.Model]] = {
    "MLP": mlp,
    "LeNet": lenet,
    "SmallGPT": small_gpt,
    "SmallResNet": small_resnet,
    "LSTM": lstm,
}
