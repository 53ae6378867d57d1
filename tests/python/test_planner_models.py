# SPDX-License-Identifier: Apache-2.0
"""Plans of real activations: recorded from a run of a torch model, and the model run again in its plan."""

import dataclasses
import sys
from pathlib import Path

import pytest

import tenon as tn
from tenon._ipc.planner import plan

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "planner"))
import planner_models as models  # noqa: E402


def small_resnet():
    return models.resnet18(width=16, classes=10), torch.randn(2, 3, 64, 64)


def small_transformer():
    return models.transformer(layers=3, width=64, heads=4), torch.randn(2, 32, 64)


@pytest.fixture(params=[small_resnet, small_transformer], ids=lambda make: make.__name__)
def model_and_input(request):
    torch.manual_seed(1)
    return request.param()


def run_in(found, model, x):
    buffer = tn.empty(found.nbytes, "uint8")
    with torch.no_grad():
        return models.Planned(model, found, buffer.torch()).run(x).clone()


@pytest.mark.slow
def test_a_model_run_in_its_plan_gives_the_same_bits(model_and_input):
    model, x = model_and_input
    found = plan(models.record(model, x))
    assert len(found.offsets) > 30
    assert found.nbytes == found.lower_bound
    assert found.nbytes < found.total / 4
    with torch.no_grad():
        expected = model(x)
    result = run_in(found, model, x)
    assert torch.isfinite(result).all()
    assert result.numpy().tobytes() == expected.numpy().tobytes()


def test_a_lifetime_that_ends_too_early_is_seen(model_and_input):
    """What the test above rests on: the buffer is really used, and what is dead is really gone."""
    model, x = model_and_input
    tensors = models.record(model, x)
    name = max((name for name, span in tensors.items() if span[2] - span[1] > 2), key=lambda n: tensors[n][0])
    nbytes, first, last = tensors[name]
    result = run_in(plan(tensors | {name: (nbytes, first, last - 1)}), model, x)
    with torch.no_grad():
        assert not torch.equal(result, model(x))


@pytest.mark.slow
def test_offsets_that_share_bytes_are_seen(model_and_input):
    model, x = model_and_input
    found = plan(models.record(model, x))
    with torch.no_grad():
        expected = model(x)
    wrong = dataclasses.replace(found, offsets=dict.fromkeys(found.offsets, 0))
    assert not torch.equal(run_in(wrong, model, x), expected)
