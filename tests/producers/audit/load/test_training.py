"""The small training run: its count of operations, and the script on a processor where torch is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from producers.audit.host.base import TRAINING
from producers.audit.host.live import LiveHost
from producers.audit.load import training
from producers.audit.load.training import LAYERS, RATE, operations


def test_operations_are_those_of_the_products_of_a_step() -> None:
    """Forward, gradient of the weights, and gradient of the input of all layers but the first."""
    width, batch = 8, 4
    product = 2 * batch * width * width
    assert operations(width, batch, 1) == product * (LAYERS + LAYERS + LAYERS - 1)
    assert operations(width, batch, 10) == 10 * operations(width, batch, 1)


@pytest.mark.parametrize("width", [64, 160])
def test_the_loss_falls_to_the_stated_value_for_any_width(width: int) -> None:
    """The same steps in numpy: from 0.56 to 0.016 within 60 steps."""
    chance = np.random.default_rng(training.SEED)
    weights = [chance.standard_normal((width, width)) / width**0.5 for _ in range(LAYERS)]
    inputs = chance.standard_normal((width, width))
    targets = np.tanh(inputs @ (chance.standard_normal((width, width)) / width**0.5))
    losses = []
    for _ in range(60):
        layers = [inputs]
        for number, weight in enumerate(weights):
            product = layers[-1] @ weight
            layers.append(np.tanh(product) if number < LAYERS - 1 else product)
        error = layers[-1] - targets
        losses.append((error**2).mean())
        slope = error * (2.0 / width)
        for number in reversed(range(LAYERS)):
            change = layers[number].T @ slope
            slope = (slope @ weights[number].T) * (1 - layers[number] ** 2)
            weights[number] = weights[number] - RATE * change
    assert losses[0] == pytest.approx(0.56, abs=0.05)
    assert losses[-1] == pytest.approx(0.016, abs=0.004)


def _run(*options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(training.__file__)), *options], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_script_on_the_processor() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (first,) = _run("--device", "cpu", "--width", "64")["devices"]
    (second,) = _run("--device", "cpu", "--width", "64")["devices"]
    assert first["repeats"]
    assert first["digest"] == second["digest"]
    assert first["loss"] < 0.05 * first["first_loss"]
    assert first["tflops"] > 0


def test_without_torch_or_a_gpu_the_reason_is_printed() -> None:
    assert json.loads(LiveHost().load(120.0, TRAINING))["missing"] in (
        "torch is not installed",
        "torch finds no GPU",
    )
