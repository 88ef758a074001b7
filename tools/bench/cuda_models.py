"""The six models on CUDA without a card: families, spills, compile time, what is predicted, and a simulated run.

    python tools/bench/cuda_models.py [--level sm_90] [--dtype bf16] [--full] [--batch 8] [--card h200] [--run] [MODEL]

Without ``--full`` the models are the small ones of the tests. ``fast`` is the share of the FLOPs that families in
Triton do; ``x`` is the predicted time by the sum of the rooflines. ``--run`` runs the artifact on the simulated device,
every check on, and compares with float64; seconds of a simulation are those of this machine's CPU and say nothing of a
card.
"""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any

import models  # pyright: ignore[reportMissingImports]  (beside this file)
import numpy as np
import torch

from lowerkit.capture.capture import capture
from lowerkit.compiler import Compiled, CompileOptions, compile_program
from lowerkit.parity.metrics import compare
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from lowerkit.targets.cuda.model.cards import CARDS
from lowerkit.targets.cuda.model.launches import ProgramReport, report_program

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
HEAD = (
    "| model | ops taken | steps | fast | plain loops | kernels | code | spills | compile | predicted | floor | x "
    "| to float64, eager's | run |"
)


def compiled_model(name: str, arguments: argparse.Namespace) -> tuple[Compiled, Any, Any, float]:
    """Returns a compiled model, the module, its inputs, and the seconds of the compilation."""
    module, inputs = (models.full if arguments.full else models.tiny)(name)
    dtype = DTYPES[arguments.dtype]
    module = module.to(dtype)
    inputs = tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs)
    if arguments.batch:
        inputs = tuple(each[:1].expand(arguments.batch, *each.shape[1:]).contiguous() for each in inputs)
    program = capture(module, inputs)
    started = time.perf_counter()
    options = CompileOptions(f"cuda:{arguments.level}", golden=False, use_cache=arguments.cache, device="cuda-sim")
    compiled = compile_program(program, options)
    return compiled, module, inputs, time.perf_counter() - started


def report(compiled: Compiled, card: str) -> tuple[ProgramReport, int]:
    """Returns what is known of the launches, and the bytes of the code."""
    (data,) = (code for code in compiled.parts.code.values() if code[:4] == b"lkcu")
    program = compiled.parts.manifest.programs[0]
    return report_program(program, data, {}, CARDS[card]), len(data)


def simulated(compiled: Compiled, module: Any, inputs: Any) -> tuple[str, str]:
    """Runs on the simulated device; returns both distances to float64 in dB, and the run in words."""
    started = time.perf_counter()
    found = compiled.session.run(*inputs)[0].astype(np.float64)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        eager = module(*inputs).double().numpy()
        wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
        exact = copy.deepcopy(module).double()(*wide).numpy()
    device = compiled.session._calls.memories["cuda"].device  # pyright: ignore[reportPrivateUsage]
    assert isinstance(device, SimulatedCudaDevice)
    assert isinstance(device.driver, SimulatedDriver)
    count = device.driver.thread_instructions
    ours, theirs = (compare(each, exact).sqnr_db for each in (found, eager))
    return f"{ours:.1f}, {theirs:.1f} dB", f"{seconds:.1f} s, {count / 1e6:,.0f} M instructions"


def measure(name: str, arguments: argparse.Namespace) -> str:
    """Returns one line of the table."""
    compiled, module, inputs, seconds = compiled_model(name, arguments)
    (summary,) = compiled.offload
    found, size = report(compiled, arguments.card)
    flops = sum(each.flops for each in found.launches)
    slow = sum(each.flops for each in found.launches if each.family == "threads")
    loops = sum(each.family == "threads" for each in found.launches)
    kernels = {each.kernel: each.spills for each in found.launches}
    distance, run = simulated(compiled, module, inputs) if arguments.run else ("", "")
    return (
        f"| {name} | {summary.ops} of {summary.all_ops} | {len(found.launches)} "
        f"| {100 * (1 - slow / max(flops, 1)):.2f}% | {loops} | {len(kernels)} | {size // 1000} kB "
        f"| {sum(spills > 0 for spills in kernels.values())} | {seconds:.1f} s | {found.predicted * 1e6:.0f} us "
        f"| {found.floor * 1e6:.0f} us | {found.predicted / found.floor:.2f} | {distance} | {run} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="sm_90")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--card", choices=CARDS, default="h200")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--batch", type=int, help="one example so often")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--cache", action="store_true", help="take kernels from the cache on disk")
    parser.add_argument("models", nargs="*", default=NAMES)
    arguments = parser.parse_args()
    print(HEAD)
    print("|" + "---|" * (HEAD.count("|") - 1))
    for name in arguments.models:
        print(measure(name, arguments), flush=True)


if __name__ == "__main__":
    main()
