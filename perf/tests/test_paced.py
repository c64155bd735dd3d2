"""Paced workloads: profiles of real models, waits that use no processor, and gradients that can be checked."""

import time

import pytest
import torch

from perf.workloads import load
from perf.workloads.profiles import PROFILES, ROW, profile

#: parameters in millions and operations of a forward in 10¹² as the papers have them, and the scale
REAL = {"resnet50": (25.6, 64 * 8.2e-3, 16), "bert": (109.5, 16384 * 190e-6, 64), "gpt2": (124.4, 16384 * 287e-6, 64)}


@pytest.mark.parametrize("name", REAL)
def test_a_profile_has_the_models_parameters_and_times_by_its_scale(name):
    millions, tera, scale = REAL[name]
    made = profile(name)
    assert sum(layer.numel for layer in made.layers) * scale == pytest.approx(millions * 1e6, rel=0.01)
    forward_s = sum(layer.forward_s for layer in made.layers)
    assert forward_s == pytest.approx(tera * 1e12 / (0.4 * 312e12) * 100 / scale, rel=0.04)
    assert made.seconds == pytest.approx(3 * forward_s)


def test_the_table_of_the_recommendation_model_is_nearly_all_of_it_and_costs_no_time():
    table, *others = profile("dlrm").layers
    assert table.numel > 20 * sum(layer.numel for layer in others)
    assert table.forward_s == 0


@pytest.mark.parametrize("name", ["cpu", *PROFILES])
def test_a_gradient_is_what_its_formula_says_bit_by_bit(name):
    workload = load("paced", name)
    model, (inputs, carry) = workload.model(), workload.batch(1, 2)
    loss = model((inputs, carry))
    assert loss.shape == ()
    loss.backward()
    for weight, row in zip(model.weights, inputs, strict=True):
        assert weight.shape[1] == ROW
        assert torch.equal(weight.grad, weight.detach() - row)


def test_an_iteration_waits_as_long_as_its_profile_at_its_pace_and_by_default_not_at_all(monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    workload = load("paced", "bert")
    workload.model()(workload.batch(0, 0)).backward()
    assert waits == []
    workload.model(0.5)(workload.batch(0, 0)).backward()
    assert sum(waits) == pytest.approx(0.5 * profile("bert").seconds)
