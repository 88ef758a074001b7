"""Kernels of the CPU target as PTX, one task for each thread, by LLVM's NVPTX back end; and their run on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from lowerkit.runtimes.cuda.simulated import LaunchStatistics, SimulatedGpu
from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.cpu.objects.llvm_compat import to_llvm_22
from lowerkit.targets.cpu.objects.lower import lower_to_llvm_ir
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]
_BLOCK = 32
_LAUNCH = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
define ptx_kernel void @launch(ptr %buffers, ptr %dims, i64 %tasks, ptr %scratch, i64 %stride) {
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %threads = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %first = mul i32 %threads, %block
  %number = add i32 %first, %thread
  %begin = zext i32 %number to i64
  %end = add i64 %begin, 1
  %is_task = icmp ult i64 %begin, %tasks
  br i1 %is_task, label %run, label %out
run:
  %offset = mul i64 %begin, %stride
  %own = getelementptr i8, ptr %scratch, i64 %offset
  call void @kernel(ptr %buffers, ptr %dims, i64 %begin, i64 %end, ptr %own)
  br label %out
out:
  ret void
}
"""


@dataclass(frozen=True)
class FloorKernel:
    """The PTX of a region, and the code of the CPU that it was made of."""

    ptx: str
    code: DeviceCode
    view: RegionView


@lru_cache(maxsize=1)
def _machine() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu="sm_90", features="+ptx80", opt=3)


def compile_region(view: RegionView) -> FloorKernel:
    """The kernel that the CPU target chooses for a region at level x86-64-v3, as PTX."""
    code = select_kernel(view, cpu_features("x86-64-v3"))
    assert not code.packings, "weights are not packed here"
    machine = _machine()
    module = llvm.parse_assembly(to_llvm_22(lower_to_llvm_ir(code.text)) + _LAUNCH, llvm.create_context())
    module.verify()
    module.triple = "nvptx64-nvidia-cuda"
    module.data_layout = str(machine.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name != "launch":
            function.linkage = llvm.Linkage.internal
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return FloorKernel(machine.emit_assembly(module), code, view)


def run_kernel(
    kernel: FloorKernel, operands: Sequence[Array], results: Sequence[Array], gpu: SimulatedGpu
) -> tuple[list[Array], LaunchStatistics]:
    """Runs a kernel on ``operands``; ``results`` have the shapes and types of what is returned."""
    buffers = [*operands, *results]
    dims = [
        array.shape[axis]
        for array, type_ in zip(buffers, kernel.view.buffer_types, strict=True)
        for axis in range(type_.rank)
        if type_.is_dynamic_dim(axis)
    ]
    addresses = [gpu.allocate(array.nbytes, f"buffer {number}") for number, array in enumerate(buffers)]
    for address, operand in zip(addresses, operands, strict=False):
        gpu.write(address, operand)
    for result, operand in kernel.code.in_place.items():
        gpu.write(addresses[len(operands) + result], operands[operand])
    table, sizes = gpu.allocate(8 * len(addresses), "buffers"), gpu.allocate(8 * max(len(dims), 1), "dims")
    gpu.write(table, np.array(addresses, np.int64))
    gpu.write(sizes, np.array(dims or [0], np.int64))
    tasks = evaluate(kernel.code.task_count, {}, dims)
    stride = -(-max(evaluate(kernel.code.scratch_bytes, {}, dims), 1) // 64) * 64
    grid = max(-(-tasks // _BLOCK), 1)
    scratch = gpu.allocate(stride * grid * _BLOCK, "scratch")
    module = gpu.load(kernel.ptx)
    statistics = gpu.launch(module.kernels["launch"], [grid], [_BLOCK], [table, sizes, tasks, scratch, stride])
    found = [
        gpu.read(address, array.nbytes).view(array.dtype).reshape(array.shape)
        for address, array in zip(addresses[len(operands) :], results, strict=True)
    ]
    return found, statistics
