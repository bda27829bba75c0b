"""The gallery's modules, trained by captured steps: `python tests/without_gpu THIS_FILE -n 2`.

Not among the tests that a GPU runs by itself: there each of the 900 would compile a step. What plain Lightning cannot
train on a GPU, since the module makes tensors on the host, or trains otherwise each time, is left out with the reason.
"""

import pytest
import torch

import test_gallery
from gallery.precision import HALF, SHORT
from gpu import needs_gpu
from lightning_sink import SinkStrategy
from parity import assert_parity, once
from test_gallery import SAME, assert_left_alike, names

pytestmark = test_gallery.pytestmark

EAGER_THERE = {
    "another way where this one would be refused",
    "another way where this one has no place",
    "count that is drawn for",
    "looks at a weight in inference mode",
    "teacher of torch",
}
"""What runs eagerly on a GPU only, as docs/steps.md says: steps that look up, or draw on the host, behind a truth, and
`AveragedModel`, whose own average takes a number out of its count there."""

CASES = [case for case in SAME if case.options.get("accelerator", "cpu") == "cpu"]
CASES = [case for case in CASES if case.options.get("devices", 1) in (1, "1", "auto")]


def trained(case, strategy):
    options = {**case.trainer_options(), "accelerator": "gpu", "devices": 1, "loggers": case.loggers}
    options["callbacks"] = case.options.get("callbacks", list)
    options |= SHORT if case.tolerance == HALF else {}
    run = once(case.make, case.data, strategy, **options)
    torch.cuda.synchronize()
    return run


@needs_gpu
@pytest.mark.parametrize("case", CASES, ids=names)
def test_captured(case):
    try:
        plain = trained(case, "auto")
        assert_parity(plain, trained(case, "auto"), exact=True)
    except (RuntimeError, AssertionError) as error:
        if "fake error" in str(error):  # the runtime of the tests fails at it, and at all that comes after
            raise
        pytest.skip(f"plain Lightning does not train it on a GPU, or not alike: {error}")
    sink = trained(case, SinkStrategy(case.size, epoch="dataset", engine="cudagraph"))
    assert_parity(plain, sink, tolerance=case.tolerance)
    assert_left_alike(case, plain, sink)
    if case.eager is None and case.name not in EAGER_THERE:
        assert not [text for text in sink.warned if "runs eagerly" in text]
