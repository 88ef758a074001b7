"""The six models, small, on the simulated CUDA device: what was taken, kernels, launches, instructions, seconds.

    python tools/bench/cuda_floor.py [--level sm_90] [MODEL ...]

Seconds are those of this machine's CPU: the simulated device is no measure of a card.
"""

from __future__ import annotations

import argparse
import time

import models  # pyright: ignore[reportMissingImports]  (beside this file)
import numpy as np
import torch

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.metrics import compare
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")


def measure(name: str, level: str) -> str:
    """Returns one line of the table."""
    module, inputs = models.tiny(name)
    started = time.perf_counter()
    options = CompileOptions(f"cuda:{level}", golden=False, use_cache=False, device="cuda-sim")
    compiled = compile_program(capture(module, inputs), options)
    compile_seconds = time.perf_counter() - started
    device = compiled.session._calls.memories["cuda"].device  # pyright: ignore[reportPrivateUsage]
    assert isinstance(device, SimulatedCudaDevice)
    assert isinstance(device.driver, SimulatedDriver)
    started = time.perf_counter()
    found = compiled.session.run(*inputs)[0]
    run_seconds = time.perf_counter() - started
    with torch.no_grad():
        exact = module.double()(*(each.double() if each.is_floating_point() else each for each in inputs)).numpy()
    (summary,) = compiled.offload
    (code,) = (code for code in compiled.parts.code.values() if code[:4] == b"lkcu")
    image = unpack(code, {})
    decibels = compare(found.astype(np.float64), exact).sqnr_db
    return (
        f"| {name} | {summary.ops} of {summary.all_ops} | {image.ptx.count(b'.visible .entry')} "
        f"| {len(image.ptx) // 1000} + {len(image.cubin) // 1000} kB | {device.driver.launches} "
        f"| {device.driver.thread_instructions / 1e6:.1f} M | {decibels:.0f} dB "
        f"| {compile_seconds:.1f} s | {run_seconds:.2f} s |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="sm_90")
    parser.add_argument("models", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    print("| model | ops taken | kernels | PTX + cubin | launches | thread instructions | to float64 | compile | run |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        print(measure(name, arguments.level), flush=True)


if __name__ == "__main__":
    main()
