"""Text of one kernel to PTX: the conversions of the CPU's kernels to LLVM IR, then LLVM's back end for NVIDIA.

No fast-math: a product and a sum are rounded each, unless a kernel asks for ``fma``. Functions are those of
NVIDIA's library, where it is; what has no code for the GPU is an error here, before LLVM's back end ends the process.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
import msgspec

from lowerkit.errors import CodegenError, LowerkitError
from lowerkit.targets.cpu.objects.llvm_compat import to_llvm_22
from lowerkit.targets.cpu.objects.lower import lower_to_llvm_ir
from lowerkit.targets.cuda.levels import PTX_VERSIONS
from lowerkit.targets.cuda.ptx import libdevice

TRIPLE = "nvptx64-nvidia-cuda"
_DEFINITION = re.compile(r"^define void @(\w+)\(", re.MULTILINE)
_DECLARATION = re.compile(r"^declare [^@]*@([\w.]+)\(", re.MULTILINE)
_REMAINDER = re.compile(r"= frem\b")
# Functions of LLVM that its back end has instructions for, of f64 as of narrower types.
_KNOWN = (
    "llvm.nvvm.", "llvm.fabs.", "llvm.sqrt.", "llvm.fma.", "llvm.fmuladd.", "llvm.copysign.", "llvm.floor.",
    "llvm.ceil.", "llvm.trunc.", "llvm.roundeven.", "llvm.rint.", "llvm.round.", "llvm.nearbyint.", "llvm.maximum.",
    "llvm.minimum.", "llvm.maxnum.", "llvm.minnum.", "llvm.maximumnum.", "llvm.minimumnum.", "llvm.abs.", "llvm.smax.",
    "llvm.smin.", "llvm.umax.", "llvm.umin.", "llvm.ctlz.", "llvm.cttz.", "llvm.ctpop.", "llvm.bswap.", "llvm.fshl.",
    "llvm.fshr.", "llvm.sadd.", "llvm.uadd.", "llvm.ssub.", "llvm.usub.", "llvm.smul.", "llvm.umul.",
    "llvm.bitreverse.", "llvm.memcpy.", "llvm.memset.", "llvm.is.fpclass.", "llvm.assume",
)  # fmt: skip


class Request(msgspec.Struct):
    """A kernel to compile, for a level."""

    mlir: str
    level: str


class Reply(msgspec.Struct):
    """The PTX, or why there is none."""

    ptx: str = ""
    error: str = ""


def emit_ptx(mlir: str, level: str) -> str:
    """Compiles the text of a kernel to a PTX module.

    Raises:
        CodegenError: LK5001, a stage rejects the text, or it needs what a GPU has not.
    """
    text = to_llvm_22(lower_to_llvm_ir(mlir))
    if libdevice.available():
        text = libdevice.call_library(text)
    declared = set(_DECLARATION.findall(text))
    missing = sorted(name for name in declared if not name.startswith(("__nv_", *_KNOWN)))
    if _REMAINDER.search(text):
        missing.append("frem")  # LLVM writes one that is exact for small quotients alone
    if missing:
        raise CodegenError("LK5001", f"there is no code for the GPU for {', '.join(missing)}")
    machine = _machine(level)
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(_DEFINITION.sub(r"define ptx_kernel void @\1(", text), context)
        module.verify()
    except RuntimeError as error:
        raise CodegenError("LK5001", f"LLVM rejected the IR of a kernel: {error}") from error
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    if any(name.startswith("__nv_") for name in declared):
        libdevice.link(module, context, TRIPLE, module.data_layout)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        module, llvm.create_pass_builder(machine, options)
    )
    return machine.emit_assembly(module)


def emit_bytes(data: bytes) -> bytes:
    """The same as a task of :mod:`lowerkit.worker_process`; an error becomes text."""
    request = msgspec.msgpack.decode(data, type=Request)
    try:
        reply = Reply(emit_ptx(request.mlir, request.level))
    except LowerkitError as error:
        reply = Reply(error=error.message)
    return msgspec.msgpack.encode(reply)


@lru_cache(maxsize=4)
def _machine(level: str) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=level, features=f"+ptx{PTX_VERSIONS[level]}", opt=3)
