"""Trains a small network on every GPU at once, and prints speed and loss of each as one line of JSON.

It needs torch only, and imports nothing of fabrictime: `python3 training.py`, or with `--device cpu`. Each
GPU has a process of its own. From a fixed seed all GPUs of one model compute the same bits, so another digest
of the weights shows silent corruption. Each process trains twice and compares its two digests.

The network has LAYERS square matrices of width d with tanh between them, no bias, and learns the function
y = tanh(x T) of one fixed batch of b samples. A layer's forward pass takes 2 b d^2 operations, the gradient
of its weights as many, and the gradient of its input too, except for the first layer. A step takes
b d^2 (6 LAYERS - 2). With weights of variance 1/d and b = d, the loss does not depend on d: it falls from
0.56 to 0.016 within 60 steps at the rate below, computed with numpy for d of 128, 256 and 512, in float32 and
with bfloat16 rounding. At four times the rate it diverges.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

LAYERS = 4
RATE = 0.1
"""Learning rate, for the squared error summed over outputs and averaged over samples."""
SEED = 26
WIDTH, STEPS = 8192, 120
CPU_WIDTH, CPU_STEPS = 256, 60
WARM_STEPS = 5
LIMIT_S = 240.0
"""Time after which a GPU's process is ended."""


def operations(width: int, batch: int, steps: int) -> int:
    """Return the number of floating-point operations in `steps` steps."""
    return batch * width * width * (6 * LAYERS - 2) * steps


def digest_of(tensors: Iterable[Any]) -> str:
    """Return a digest of the tensors' bits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        host_copy = tensor.detach().contiguous().cpu()
        digest.update(ctypes.string_at(host_copy.data_ptr(), host_copy.numel() * host_copy.element_size()))
    return digest.hexdigest()[:16]


def _data(width: int, device: str, kind: Any) -> tuple[list[Any], Any, Any]:
    """Return (weights, inputs, targets), drawn on the CPU so that every device gets the same bits."""
    import torch

    chance = torch.Generator().manual_seed(SEED)

    def draw(scale: float) -> Any:
        return torch.randn(width, width, generator=chance) * scale

    weights = [draw(width**-0.5).to(device, kind) for _ in range(LAYERS)]
    inputs, hidden = draw(1.0).to(device), draw(width**-0.5).to(device)
    return weights, inputs.to(kind), torch.tanh(inputs @ hidden).to(kind)


def _step(weights: Sequence[Any], inputs: Any, targets: Any) -> Any:
    """Train one step, and return the loss before it, as a tensor on the device."""
    import torch

    outputs = inputs
    for number, weight in enumerate(weights):
        outputs = outputs @ weight
        if number < LAYERS - 1:
            outputs = torch.tanh(outputs)
    error = outputs - targets
    with torch.no_grad():
        loss = error.float().square().mean()
    outputs.backward(error * (2.0 / len(inputs)))
    with torch.no_grad():
        for weight in weights:
            weight -= RATE * weight.grad
            weight.grad = None
    return loss


def train(weights: Sequence[Any], inputs: Any, targets: Any, steps: int) -> dict[str, Any]:
    """Train for `steps`; return TFLOP/s, the first and the last loss, and the digest of the weights."""
    import torch

    is_gpu = inputs.is_cuda
    weights = [weight.clone().requires_grad_() for weight in weights]
    losses = []
    began_s = time.perf_counter()
    for number in range(steps):
        if number == WARM_STEPS:
            if is_gpu:
                torch.cuda.synchronize()
            began_s = time.perf_counter()
        losses.append(_step(weights, inputs, targets))
    if is_gpu:
        torch.cuda.synchronize()
    took_s = time.perf_counter() - began_s
    return {
        "tflops": operations(inputs.shape[1], len(inputs), steps - WARM_STEPS) / took_s / 1e12,
        "first_loss": float(losses[0]),
        "loss": float(losses[-1]),
        "digest": digest_of(weights),
    }


def train_twice(device: str, width: int, steps: int) -> dict[str, Any]:
    """Train twice; return the values of the second training, and whether both runs gave identical weights."""
    import torch

    torch.use_deterministic_algorithms(True)
    is_gpu = device.startswith("cuda")
    if is_gpu:
        torch.cuda.set_device(device)
    data = _data(width, device, torch.bfloat16 if is_gpu else torch.float32)
    first, second = (train(*data, steps) for _ in range(2))
    return {"device": device, **second, "repeats": first["digest"] == second["digest"]}


def _on_each(devices: Sequence[str], width: int, steps: int) -> list[dict[str, Any]]:
    """Train on all devices at once, with one process per device, and return the values of each training."""
    options = ["--width", str(width), "--steps", str(steps)]
    children = [
        subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(__file__), "--device", device, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for device in devices
    ]
    until_s = time.monotonic() + LIMIT_S
    return [_outcome(*pair, until_s) for pair in zip(devices, children, strict=True)]


def _outcome(device: str, child: subprocess.Popen[str], until_s: float) -> dict[str, Any]:
    try:
        printed, complaint = child.communicate(timeout=max(0.1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"device": device, "error": f"no end within {LIMIT_S:g} s"}
    if child.returncode:
        last = (complaint.strip().splitlines() or ["no message"])[-1]
        return {"device": device, "error": f"exit code {child.returncode}, {last[:200]}"}
    outcome: dict[str, Any] = json.loads(printed)["devices"][0]
    return outcome


def main() -> None:
    """Print the values of every GPU, or train one device and print its values."""
    parser = argparse.ArgumentParser(description="Train a small network on every GPU.")
    parser.add_argument("--device", default="", help="cuda:N or cpu; default: all GPUs")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # makes cuBLAS choose the same order each time
    try:
        import torch
    except ImportError:
        print(json.dumps({"missing": "torch is not installed"}))
        return
    devices = [options.device] if options.device else [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    if not devices:
        print(json.dumps({"missing": "torch finds no GPU"}))
        return
    is_gpu = devices[0].startswith("cuda")
    width = options.width or (WIDTH if is_gpu else CPU_WIDTH)
    steps = options.steps or (STEPS if is_gpu else CPU_STEPS)
    if steps <= WARM_STEPS:
        parser.error(f"--steps {steps}: expected more than {WARM_STEPS}")
    outcomes = [train_twice(devices[0], width, steps)] if options.device else _on_each(devices, width, steps)
    print(json.dumps({"torch": torch.__version__, "width": width, "steps": steps, "devices": outcomes}))


if __name__ == "__main__":
    main()
