"""PTX texts around instructions, and their run on the simulated device; ptxas assembles them where it is there."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.runtimes.cuda.simulated import LaunchStatistics, SimulatedGpu

Array = np.ndarray[Any, Any]
HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "f32x2": 8, "pred": 1} | {
    f"{letter}{bits}": bits // 8 for letter in "bus" for bits in (8, 16, 32, 64)
}
BLOCK = 64


def kernel(body: str, parameters: str = "", name: str = "k", target: str = "sm_90a") -> str:
    """A module of one kernel."""
    return f"{HEADER.replace('sm_90a', target)}.visible .entry {name}({parameters})\n{{\n{body}\n}}\n"


def assemble(ptx: str) -> None:
    """Checks that ptxas takes the text; does nothing where there is no ptxas."""
    if shutil.which("ptxas") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.ptx"
        source.write_text(ptx)
        target = ptx.partition(".target ")[2].split()[0]
        command = ["ptxas", f"-arch={target}", "-O0", str(source), "-o", f"{folder}/a.cubin"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def instruction_text(instructions: str, inputs: Sequence[str], outputs: Sequence[str], target: str = "sm_90a") -> str:
    """A kernel that runs instructions on %a0, %a1, ... of the types ``inputs``, and stores %d0, ... of ``outputs``."""
    lines = ["  .reg .pred %out;", "  .reg .b32 %i<4>;", "  .reg .b64 %at<2>;", "  .reg .b16 %small;"]
    for prefix, kinds in (("%a", inputs), ("%d", outputs)):
        for number, kind in enumerate(kinds):
            register = "pred" if kind == "pred" else f"b{max(16, 8 * BYTES[kind])}"
            lines.append(f"  .reg .{register} {prefix}{number};")
    lines += [
        "  mov.u32 %i0, %tid.x;",
        "  mov.u32 %i1, %ctaid.x;",
        "  mov.u32 %i2, %ntid.x;",
        "  mad.lo.s32 %i0, %i1, %i2, %i0;",
        "  ld.param.u32 %i1, [n];",
        "  setp.ge.u32 %out, %i0, %i1;",
        "  @%out bra $done;",
    ]

    def address(name: str, size: int) -> list[str]:
        return [f"  ld.param.u64 %at0, [{name}];", f"  mad.wide.u32 %at0, %i0, {size}, %at0;"]

    for number, kind in enumerate(inputs):
        size = BYTES[kind]
        lines += address(f"in{number}", size)
        if kind == "pred":
            lines += ["  ld.global.u8 %small, [%at0];", f"  setp.ne.u16 %a{number}, %small, 0;"]
        else:
            lines.append(f"  ld.global.b{8 * size} %a{number}, [%at0];")
    lines.append(f"  {instructions}")
    for number, kind in enumerate(outputs):
        size = BYTES[kind]
        lines += address(f"out{number}", size)
        if kind == "pred":
            lines += [f"  selp.b16 %small, 1, 0, %d{number};", "  st.global.b8 [%at0], %small;"]
        else:
            lines.append(f"  st.global.b{8 * size} [%at0], %d{number};")
    lines.append("$done:\n  ret;")
    names = [f"in{number}" for number in range(len(inputs))] + [f"out{number}" for number in range(len(outputs))]
    parameters = ", ".join([*(f".param .u64 {name}" for name in names), ".param .u32 n"])
    return kernel("\n".join(lines), parameters, target=target)


def run_instructions(
    instructions: str, inputs: Sequence[tuple[str, Array]], outputs: Sequence[str], target: str = "sm_90a"
) -> list[Array]:
    """Runs instructions on arrays of bits, one thread for each element; returns the bits of the results."""
    ptx = instruction_text(instructions, [kind for kind, _ in inputs], outputs, target)
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True)
    count = inputs[0][1].size
    addresses: list[int] = []
    for _, values in inputs:
        addresses.append(gpu.allocate(values.nbytes))
        gpu.write(addresses[-1], values)
    sizes = [BYTES[kind] * count for kind in outputs]
    results = [gpu.allocate(size) for size in sizes]
    gpu.launch(gpu.load(ptx).kernels["k"], [-(-count // BLOCK)], [BLOCK], [*addresses, *results, count])
    return [
        gpu.read(address, size).view(f"u{BYTES[kind]}")
        for address, size, kind in zip(results, sizes, outputs, strict=True)
    ]


def run_on_words(ptx: str, words: int, *, grid: int = 1, block: int = 32, name: str = "k") -> Array:
    """Runs a kernel whose one parameter is the address of ``words`` zeros of 32 bits; returns them afterwards."""
    return run_with_statistics(ptx, words, grid=grid, block=block, name=name)[0]


def run_with_statistics(
    ptx: str, words: int, *, grid: int = 1, block: int = 32, name: str = "k"
) -> tuple[Array, LaunchStatistics]:
    """As :func:`run_on_words`, with the statistics of the launch."""
    assemble(ptx)
    gpu = SimulatedGpu()
    address = gpu.allocate(4 * words)
    gpu.write(address, bytes(4 * words))
    statistics = gpu.launch(gpu.load(ptx).kernels[name], [grid], [block], [address])
    return gpu.read(address, 4 * words).view(np.uint32), statistics
