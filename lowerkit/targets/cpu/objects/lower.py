"""Kernel text to object code: upstream conversions to the llvm dialect, LLVM IR text, LLVM's optimizer, ELF.

The bindings carry one LLVM (MLIR, 24) and llvmlite another (22, with the x86 back end): the bridge is LLVM IR text,
see :mod:`llvm_compat`.

No fast-math anywhere: an op that may be contracted or reassociated says so itself (``arith.addf ... fastmath<...>``).
Products and sums are fused only where a kernel asks for it (``math.fma``, ``vector.fma``, ``fastmath<contract>``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from lowerkit.errors import CodegenError
from lowerkit.mlir import ir, llvm_ir_text, passmanager
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.objects.guarded_division import guard_divisions
from lowerkit.targets.cpu.objects.integer_conversions import convert_as_x86
from lowerkit.targets.cpu.objects.library_functions import call_library_functions
from lowerkit.targets.cpu.objects.llvm_compat import to_llvm_22
from lowerkit.targets.cpu.text.abi import KERNEL

TRIPLE = "x86_64-unknown-linux-gnu"

# math before the rest: what has no LLVM intrinsic becomes a call of the C math library. The x86 tile and dot-product
# ops go with the vector conversion *after* the loops became branches: tiles as block arguments are only then converted.
_TO_LLVM = (
    "builtin.module("
    "func.func(convert-vector-to-scf{full-unroll=true},convert-math-to-llvm),convert-math-to-libm,"
    "expand-strided-metadata,lower-affine,convert-scf-to-cf,"
    "convert-to-llvm,convert-vector-to-llvm{enable-x86=true},convert-to-llvm,"
    "reconcile-unrealized-casts)"
)


def lower_to_object(mlir_text: str, cpu: CpuFeatures) -> bytes:
    """Compiles one kernel module to an ELF relocatable object.

    Args:
        mlir_text: a ``builtin.module`` with the public function ``kernel`` (see :mod:`lowerkit.targets.plan`).
        cpu: the level to compile for.

    Raises:
        CodegenError: LK5001, a stage rejects the text.
    """
    return llvm_ir_to_object(lower_to_llvm_ir(mlir_text), cpu)


def lower_to_llvm_ir(mlir_text: str) -> str:
    """Returns the LLVM IR text of a kernel module.

    Raises:
        CodegenError: LK5001, it does not parse, does not verify, or holds an op without a conversion to LLVM.
    """
    with _context():
        try:
            module = ir.Module.parse(mlir_text)
            guard_divisions(module)
            call_library_functions(module)
            convert_as_x86(module)
            passmanager.PassManager.parse(_TO_LLVM).run(module.operation)
        except ir.MLIRError as error:
            raise CodegenError("LK5001", f"the kernel text was rejected: {_first_lines(str(error))}") from error
        _check_translatable(module)
        return llvm_ir_text(module)


def llvm_ir_to_object(text: str, cpu: CpuFeatures, keep_public: tuple[str, ...] = (KERNEL,)) -> bytes:
    """Optimizes LLVM IR for ``cpu`` and returns the object; functions not in ``keep_public`` become internal.

    Raises:
        CodegenError: LK5001, LLVM's parser or verifier rejects the text.
    """
    machine = _machine(cpu)
    module = _optimized(text, machine, keep_public, superwords=True)
    if cpu.avx512_bf16 and any(_is_uneven(int(lanes)) for lanes in _BFLOAT_VECTOR.findall(str(module))):
        # Vectors that LLVM made of scalars side by side. It asserts that no single bf16 is left over when it splits
        # them (9, 17, 33, ... lanes), as single ones have no registers where vectors have; other CPUs have neither.
        module = _optimized(text, machine, keep_public, superwords=False)
    return machine.emit_object(module)


_BFLOAT_VECTOR = re.compile(r"<(\d+) x bfloat>")


def _is_uneven(lanes: int) -> bool:
    """Whether halving a vector of ``lanes`` does not end evenly."""
    return lanes & (lanes - 1) != 0


def _optimized(text: str, machine: Any, keep_public: tuple[str, ...], *, superwords: bool) -> Any:
    """Returns the module of the IR, optimized; ``superwords``: with vectors of scalars that stand side by side."""
    # A context of its own: names and types of one kernel must not leak into the next one's output. The module keeps
    # it alive; closing it first would leave the module dangling.
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(to_llvm_22(text), context)
        module.verify()
    except RuntimeError as error:
        raise CodegenError("LK5001", f"LLVM rejected the IR of a kernel: {_first_lines(str(error))}") from error
    module.triple = TRIPLE
    module.data_layout = str(machine.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name not in keep_public:
            function.linkage = llvm.Linkage.internal
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = superwords
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


@lru_cache(maxsize=1)
def _context() -> ir.Context:
    """The context of the kernel texts: upstream dialects, which is all that a kernel may use."""
    context = ir.Context()
    context.enable_multithreading(False)
    return context


@lru_cache(maxsize=8)
def _machine(cpu: CpuFeatures) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for the module-level assembly of emit-c
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(
        cpu=cpu.llvm_cpu, features=cpu.llvm_features, opt=3, reloc="pic", codemodel="small"
    )


def _check_translatable(module: ir.Module) -> None:
    """The translation to LLVM IR crashes the process on a foreign op, so look for one first."""
    foreign: set[str] = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if not operation.name.startswith("llvm.") and operation.name != "builtin.module":
            foreign.add(operation.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if foreign:
        raise CodegenError("LK5001", f"ops without a conversion to LLVM are left: {', '.join(sorted(foreign))}")


def _first_lines(message: str, count: int = 6) -> str:
    return "\n".join(message.strip().splitlines()[:count])
