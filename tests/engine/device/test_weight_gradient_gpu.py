"""The gradient of a convolution's weight by a kernel of ours is the library's."""

import pytest
import torch

from gpu import needs_gpu

SHAPES = {  # images, channels, height, width; outputs, height and width of the weight
    "LeNet's first": ((32, 1, 32, 32), (6, 5, 5)),
    "LeNet's second": ((32, 6, 14, 14), (16, 5, 5)),
    "one image": ((1, 3, 9, 8), (4, 3, 2)),
    "many outputs": ((3, 5, 7, 7), (40, 3, 3)),
    "pixel by pixel": ((4, 70, 6, 6), (18, 1, 1)),
}


@needs_gpu
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients(name, stride, padding):
    from lightning_sink.engine.device.weight_gradient import share_of, weight_gradient

    shape, (outputs, *size) = SHAPES[name]
    images, weight = torch.randn(shape, device="cuda"), torch.randn(outputs, shape[1], *size, device="cuda")
    options = [*stride], [*padding], [1, 1], False, [0, 0], 1
    result = torch.ops.aten.convolution.default(images.double(), weight.double(), None, *options)
    gradient = torch.randn(result.shape, device="cuda")
    _, expected, _ = torch.ops.aten.convolution_backward.default(
        gradient.double(), images.double(), weight.double(), None, *options, [False, True, False]
    )
    share = share_of(gradient.shape, weight.shape)
    found = weight_gradient(gradient, images, size, [*stride], [*padding], share).sum(0)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
