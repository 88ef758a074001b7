"""GFLOP/s of single kernels on one thread, interleaved with torch eager (oneDNN) and with a loop in registers alone.

Machines are shared and change their clock: each round runs our kernel, torch and the loop one after another, and the
least time of each counts. The loop multiplies and adds as the kernels of the element type do: FMAs, or dot products of
pairs of bf16. The last column is the share of its rate.

    python tools/bench/kernels.py [--dtype bf16] [--only conv] [--seconds 1.0] [--json kernels.json]
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import torch

from lowerkit.targets.cpu.conv.conv import ConvFamily
from lowerkit.targets.cpu.conv.depthwise import DepthwiseFamily
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import BF16_PAIRS, of_numbers, takes_pairs
from lowerkit.targets.cpu.gemm.matmul import MatmulFamily
from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import CpuFeatures, cpu_features
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.kernel_text import Buffer, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]
PEAK_STEPS, PEAK_CHAINS = 100_000, 14
ELEMENTS = {"f32": (np.float32, 1e-4), "bf16": (ml_dtypes.bfloat16, 1e-2)}
"""Type of the arrays, and how far two results may lie apart, as a share of the largest."""


@dataclass(frozen=True)
class Problem:
    """One anchor with bias and relu: a product ``[rows, depth] x [depth, columns]`` or an NHWC convolution."""

    name: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def result(self) -> tuple[int, ...]:
        if len(self.input) == 2:
            return (self.input[0], self.weight[1])
        windows = zip(self.input[1:3], self.weight[2:], strict=True)
        spatial = [(size + 2 * self.padding - k) // self.stride + 1 for size, k in windows]
        return (self.input[0], *spatial, self.weight[0])

    @property
    def flops(self) -> int:
        depth = self.weight[0] if len(self.input) == 2 else math.prod(self.weight[1:])
        return 2 * math.prod(self.result) * depth

    def family(self) -> KernelFamily:
        if len(self.input) == 2:
            return MatmulFamily()
        return DepthwiseFamily() if self.groups == self.input[3] else ConvFamily()

    def text(self, element: str) -> str:
        """The region, for ``RegionView.from_text``."""
        shapes = (self.input, self.weight, self.result)
        x, w, r = (f"tensor<{'x'.join(map(str, shape))}x{element}>" for shape in shapes)
        channels = self.result[-1]
        if len(self.input) == 2:
            anchor = '"lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}'
        else:
            pads, strides = ", ".join([str(self.padding)] * 4), f"{self.stride}, {self.stride}"
            anchor = (
                f'"lk.conv"(%x, %w) {{channels_last = true, strides = array<i64: {strides}>, '
                f"padding = array<i64: {pads}>, dilation = array<i64: 1, 1>, groups = {self.groups} : i64, "
                "accumulate = f32}"
            )
        dims = [f"d{i}" for i in range(len(self.result))]
        same = f"affine_map<({', '.join(dims)}) -> ({', '.join(dims)})>"
        last = f"affine_map<({', '.join(dims)}) -> ({dims[-1]})>"
        parallel = ", ".join(['"parallel"'] * len(dims))
        return f"""
func.func @region(%x: {x}, %w: {w}, %b: tensor<{channels}x{element}>) -> {r} {{
  %0 = {anchor} : ({x}, {w}) -> {r}
  %e = tensor.empty() : {r}
  %1 = linalg.generic {{indexing_maps = [{same}, {last}, {same}], iterator_types = [{parallel}]}}
    ins(%0, %b : {r}, tensor<{channels}x{element}>) outs(%e : {r}) {{
  ^bb0(%a: {element}, %c: {element}, %o: {element}):
    %s = arith.addf %a, %c : {element}
    %z = arith.constant 0.0 : {element}
    %m = arith.maximumf %s, %z : {element}
    linalg.yield %m : {element}
  }} -> {r}
  return %1 : {r}
}}"""


def conv(name: str, size: int, channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Problem:
    weight = (outputs, channels // groups, kernel, kernel)
    return Problem(name, (1, size, size, channels), weight, stride, kernel // 2, groups)


PROBLEMS = [
    *(
        Problem(f"matmul {m}x{k}x{n}", (m, k), (k, n))
        for m, k, n in (
            (1, 768, 1000), (1, 768, 32000), (1, 4096, 4096), (1, 9216, 4096),
            (64, 768, 768), (64, 768, 32000), (128, 768, 768), (128, 768, 3072),
            (128, 3072, 768), (197, 768, 2304), (197, 768, 3072), (197, 3072, 768), (196, 256, 1024),
            (2048, 2048, 2048), (196, 1024, 256), (784, 512, 128), (3136, 256, 64), (12544, 64, 64), (12544, 64, 256),
        )
    ),
    conv("conv 7x7s2 stem", 224, 3, 64, 7, 2),
    conv("conv 1x1 64-256", 56, 64, 256, 1),
    conv("conv 1x1 256-64", 56, 256, 64, 1),
    conv("conv 1x1 1024-256", 14, 1024, 256, 1),
    conv("conv 1x1 2048-512", 7, 2048, 512, 1),
    conv("conv 1x1s2 512-1024", 28, 512, 1024, 1, 2),
    conv("conv 3x3 64", 56, 64, 64, 3),
    conv("conv 3x3 128", 28, 128, 128, 3),
    conv("conv 3x3 256", 14, 256, 256, 3),
    conv("conv 3x3 512", 7, 512, 512, 3),
    conv("conv 3x3s2 128", 56, 128, 128, 3, 2),
    conv("conv 3x3s2 512", 14, 512, 512, 3, 2),
    conv("depthwise 3x3 32", 112, 32, 32, 3, 1, 32),
    conv("depthwise 3x3s2 96", 112, 96, 96, 3, 2, 96),
    conv("depthwise 3x3 144", 56, 144, 144, 3, 1, 144),
    conv("depthwise 3x3 576", 14, 576, 576, 3, 1, 576),
    conv("depthwise 3x3 960", 7, 960, 960, 3, 1, 960),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What was measured of one problem: least milliseconds and the rates that follow."""

    name: str
    kernel_ms: float
    torch_ms: float
    gflops: float
    peak_gflops: float
    note: str


def aligned(array: Array) -> Array:
    """A copy at a multiple of 64 bytes, as the runtime's arena and weights are."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def peak_loop(element: str, cpu: CpuFeatures) -> tuple[Callable[[], None], int]:
    """A loop of independent multiplications and additions in registers, and its FLOPs."""
    text, lanes = KernelText(), cpu.lanes(32)
    arithmetic = BF16_PAIRS if takes_pairs(element, cpu) else of_numbers("f32")
    text.lines.append(abi.load_pointer("pointer0", 0).rstrip("\n"))
    data = Buffer(Value("%pointer0", "!llvm.ptr"), "f32")
    zero = text.read(data, 0, lanes)
    factor = text.read(Buffer(data.pointer, arithmetic.operand), 0, lanes)
    with text.span(0, PEAK_STEPS, 1, [zero] * PEAK_CHAINS) as loop:
        text.yield_([arithmetic.multiply_add(text, factor, factor, value) for value in loop.carried])
    total = loop.results[0]
    for value in loop.results[1:]:
        total = text.add(total, value)
    text.write(total, data, 0)
    call, _ = LoadedKernel(DeviceCode("peak", abi.kernel_module(text.text())), cpu).bind([np.zeros(lanes, np.float32)])
    return lambda: call(0, 1), 2 * arithmetic.numbers * lanes * PEAK_STEPS * PEAK_CHAINS


def torch_call(problem: Problem, x: Array, w: Array, b: Array) -> Callable[[], torch.Tensor]:
    """The same computation in eager, with the weights laid out as oneDNN likes them."""
    image, weight, bias = (from_numpy(a) for a in (x, w, b))
    if len(problem.input) == 2:
        columns = weight.T.contiguous()
        return lambda: torch.relu(torch.nn.functional.linear(image, columns, bias))
    image, weight = image.movedim(-1, 1), weight.contiguous(memory_format=torch.channels_last)
    return lambda: torch.relu(
        torch.nn.functional.conv2d(image, weight, bias, problem.stride, problem.padding, groups=problem.groups)
    )


def from_numpy(array: Array) -> torch.Tensor:
    """The tensor over the array's memory; torch takes bf16 by its bits alone."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def measure(
    problem: Problem, element: str, cpu: CpuFeatures, peak: tuple[Callable[[], None], int], seconds: float
) -> Row:
    """Compiles, checks against eager, and times in rounds for ``seconds``."""
    plan = problem.family().plan(RegionView.from_text(problem.text(element), "anchor", ["", "w", "b"]), cpu)
    if isinstance(plan, Refusal):
        raise click.ClickException(f"{problem.name}: {plan.reason}")
    generator = np.random.default_rng(0)
    shapes = (problem.input, problem.weight, (problem.result[-1],))
    dtype, tolerance = ELEMENTS[element]
    x, w, b = (generator.standard_normal(shape, np.float32).astype(dtype) for shape in shapes)
    out = aligned(np.zeros(problem.result, dtype))
    call, tasks = LoadedKernel(plan, cpu).bind([aligned(x), aligned(plan.packings[1].apply(w)), aligned(b), out])
    eager = torch_call(problem, x, w, b)
    call(0, tasks)
    wanted = eager() if len(problem.input) == 2 else eager().movedim(1, -1)
    scale = float(wanted.abs().max())
    if float((from_numpy(out) - wanted).abs().max()) > tolerance * scale:
        raise click.ClickException(f"{problem.name}: the kernel disagrees with eager")
    runs: list[Callable[[], Any]] = [lambda: call(0, tasks), eager, peak[0]]
    best = [math.inf] * 3
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for number, run in enumerate(runs):
            # The first run after another program finds its caches: the second one counts.
            for _ in range(3):
                # The thread's own time: what other programs take of a shared core does not count.
                started = time.thread_time()
                run()
                best[number] = min(best[number], time.thread_time() - started)
    return Row(
        problem.name, best[0] * 1e3, best[1] * 1e3, problem.flops / best[0] / 1e9, peak[1] / best[2] / 1e9, plan.note
    )


@click.command()
@click.option("--dtype", type=click.Choice(list(ELEMENTS)), default="f32", show_default=True)
@click.option("--only", default="", help="Problems whose name contains this.")
@click.option("--seconds", default=1.0, show_default=True, help="Time for each problem.")
@click.option("--cpu", default="host", show_default=True, help="CPU level.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the rows here.")
def main(dtype: str, only: str, seconds: float, cpu: str, json_path: Path | None) -> None:
    """Measure the GEMM, convolution and depthwise kernels of one CPU level on one thread."""
    torch.set_num_threads(1)
    features = cpu_features(cpu)
    peak = peak_loop(dtype, features)
    rows: list[Row] = []
    click.echo(f"{'':26}{'ms':>9}{'torch ms':>10}{'GFLOP/s':>9}{'of peak':>8}")
    for problem in PROBLEMS:
        if only not in problem.name:
            continue
        row = measure(problem, dtype, features, peak, seconds)
        rows.append(row)
        share = row.gflops / row.peak_gflops
        click.echo(f"{row.name:26}{row.kernel_ms:9.3f}{row.torch_ms:10.3f}{row.gflops:9.1f}{share:8.0%}  {row.note}")
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
