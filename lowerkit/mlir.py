"""The only door to the MLIR bindings.

Every other module takes ``ir``, ``passmanager`` and the dialect builders from here, so that another provider of
the same API (an upstream wheel, a vendor's build) can replace ``torch_mlir`` by changing this file alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from lowerkit.interrupts import hold_interrupts

with hold_interrupts():
    from torch_mlir import ir, passmanager, rewrite
    from torch_mlir.dialects import (
        arith,
        bufferization,
        ext,
        func,
        irdl,
        linalg,
        llvm,
        math,
        memref,
        scf,
        tensor,
        vector,
    )
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.dialects.transform import interpreter as transform_interpreter

__all__ = [
    "arith",
    "bufferization",
    "ext",
    "func",
    "ir",
    "irdl",
    "linalg",
    "llvm",
    "llvm_ir_text",
    "math",
    "memref",
    "passmanager",
    "rewrite",
    "run_pipeline",
    "scf",
    "tensor",
    "torch_dialect",
    "transform_interpreter",
    "vector",
]

# The bindings import a Python module for the dialect of each op that they meet, and where there is none they search
# the path again for every single op: three quarters of the time of a pass written in Python. An empty module ends that.
for _without_module in ("lk", "torch_c", "tm_tensor"):
    sys.modules.setdefault(f"torch_mlir.dialects.{_without_module}", ModuleType(_without_module))


def run_pipeline(module: ir.Module, pipeline: str, enable_verifier: bool = False) -> None:
    """Runs an upstream textual pipeline, such as ``builtin.module(canonicalize,cse)``, in place.

    The verifier is off by default: lowerkit's own pass runner verifies after each of its passes, and the verifiers of
    lk ops are Python.

    Raises:
        ir.MLIRError: a pass failed, or the IR after it does not verify.
    """
    with module.context:
        manager = passmanager.PassManager.parse(pipeline)
        manager.enable_verifier(enable_verifier)
        manager.run(module.operation)


def walk(operation: ir.Operation, visit: Callable[[ir.Operation], None]) -> None:
    """Visits ``operation`` and everything inside it, parents first, on a snapshot (``visit`` may erase the op)."""
    visit(operation)
    for region in list(operation.regions):
        for block in list(region.blocks):
            for child in list(block.operations):
                walk(child.operation, visit)


def llvm_ir_text(module: ir.Module) -> str:
    """Translates a module of the llvm dialect to LLVM IR text."""
    return llvm.translate_module_to_llvmir(module.operation)
