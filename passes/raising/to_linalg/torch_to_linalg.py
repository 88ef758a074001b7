"""Lowers what is left of the torch dialect to linalg, tensor, arith and math on builtin tensors.

The conversions are torch-mlir's own, called one by one: its bundled pipeline ends in a verifier that rejects lk ops.
Steps:

1. convert    torch to linalg, scf, arith and tensor (:mod:`conversion`);
2. check      no torch op may remain: all that do are reported at once, each with its source line;
3. clean up   constants that were float64 in Python are rounded to the type they are used in, assertions go, casts
              that only forget or repeat a static shape go.

A conversion stops at the first op that it cannot take, and says little; it may also crash or never end. On failure each
distinct op of the module is therefore lowered alone, in a function of its own, and those that fail are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.errors import PassError, UnsupportedError
from lowerkit.mlir import ir, run_pipeline, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.mlir_worker import OP_SECONDS, ConversionError
from lowerkit.passes.raising.to_linalg.clamped_look_ups import guard_look_ups
from lowerkit.passes.raising.to_linalg.conversion import convert
from lowerkit.passes.raising.to_linalg.large_powers import call_long_powers
from lowerkit.passes.raising.to_linalg.opaque_constants import hide_constants
from lowerkit.passes.raising.to_linalg.scalar_constants import fold_scalar_conversions, narrow_comparisons
from lowerkit.passes.source_location import describe, op_name, signature_text

_CLEAN = "builtin.module(func.func(canonicalize,cse))"

_UNTRUSTED = frozenset(
    {
        # Their conversions give wrong numbers, or never come to an end.
        *("torch.aten.embedding_bag.padding_idx", "torch.aten.grid_sampler", "torch.aten.max_unpool3d"),
        *("torch.aten.adaptive_max_pool1d", "torch.aten.fmin", "torch.aten.fmax", "torch.aten.resize_"),
        # NaN: swallowed, or multiplied by zeros that were put between elements.
        *("torch.aten.adaptive_max_pool2d", "torch.aten.adaptive_max_pool3d"),
        *("torch.aten.conv_transpose1d", "torch.aten.conv_transpose2d.input", "torch.aten.conv_transpose3d.input"),
        # Rows without keys.
        "torch.aten.scaled_dot_product_attention",
    }
)

_SCALAR_OPS = ("torch.constant.", "torch.prim.ListConstruct")


@dataclass(frozen=True)
class TorchToLinalg(Pass):
    """Lowers a raised module of the torch dialect to builtin tensors.

    Precondition: the ``raise-*`` passes have run, or what they take is refused here. After it ``@main`` takes and
    gives builtin tensors and holds no torch op.
    """

    name: ClassVar[str] = "torch-to-linalg"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Lowers in place.

        Raises:
            UnsupportedError: LK4001, with one detail for each distinct op that cannot be lowered.
        """
        if not _torch_ops(module) and "!torch." not in _signature(module):
            return False
        untouched = module.operation.clone()
        if any(op.name in _UNTRUSTED for op in _torch_ops(module)):
            raise _unsupported(_culprits(untouched), context)
        hide_constants(_torch_ops(module))
        try:
            convert(module, _torch_ops(module))
        except ConversionError as failure:
            culprits = _culprits(untouched)
            if not culprits:
                raise PassError(
                    "LK3001",
                    f"the conversion to linalg failed: {failure}",
                    hint="every op lowers alone: this is a bug of lowerkit",
                ) from failure
            raise _unsupported(culprits, context) from failure
        remaining = _torch_ops(module)
        if remaining:
            raise _unsupported(_culprits(untouched) or dict.fromkeys(remaining, ""), context)
        _return_declared_types(module)
        _refuse_scalar_loops(module)
        _erase_assertions(module)
        guard_look_ups(module)
        fold_scalar_conversions(module)
        narrow_comparisons(module)
        call_long_powers(module)
        run_pipeline(module, _CLEAN)
        return True


def _return_declared_types(module: ir.Module) -> None:
    """Casts what a function returns to the static dims that it declares: decompositions give what they know.

    Inside of a function types may differ so, each op states its own.
    """
    for function in module.body.operations:
        declared = ir.FunctionType(ir.TypeAttr(function.operation.attributes["function_type"]).value).results
        for block in function.operation.regions[0].blocks:
            end = list(block.operations)[-1].operation
            for index, (value, wanted) in enumerate(zip(end.operands, declared, strict=True)):
                if value.type != wanted:
                    with ir.InsertionPoint(end), value.location:
                        end.operands[index] = ir.Operation.create(
                            "tensor.cast", results=[wanted], operands=[value]
                        ).result


def _signature(module: ir.Module) -> str:
    """Returns the types of the functions as text."""
    return " ".join(str(op.operation.attributes["function_type"]) for op in module.body.operations)


def _is_torch(op: ir.Operation) -> bool:
    return op.name.startswith(("torch.", "torch_c."))


def _torch_ops(module: ir.Module | ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if _is_torch(op):
            found.append(op)

    walk(module if isinstance(module, ir.Operation) else module.operation, collect)
    return found


def _unsupported(ops: dict[ir.Operation, str], context: PassContext) -> UnsupportedError:
    """The error that names each op, with the reason: why no rule took it, or what its conversion did."""
    details: dict[str, None] = {}
    for op, reason in ops.items():
        if not op.name.startswith(_SCALAR_OPS):
            why = context.refusals.get(f"{op_name(op)} {op.location}") or reason
            details[f"{signature_text(op)} at {describe(op)}{why and f': {why}'}"] = None
    count = len({op_name(op) for op in ops if not op.name.startswith(_SCALAR_OPS)})
    return UnsupportedError(
        "LK4001",
        f"the model uses {count} op{'s' if count != 1 else ''} that cannot be lowered",
        details=sorted(details),
        hint="replace these ops in the model, or raise them in a pass of your own before torch-to-linalg",
    )


# Which ops are to blame.


def _culprits(module: ir.Operation) -> dict[ir.Operation, str]:
    """Returns the ops of ``module`` that cannot be lowered alone, each with the reason where its conversion says one.

    Of equal ones each: their source lines differ.
    """
    verdicts: dict[str, str | None] = {}
    found: dict[ir.Operation, str] = {}
    for op in _torch_ops(module):
        if op.name.startswith((*_SCALAR_OPS, "torch_c.", "torch.prim.ListUnpack")):
            continue
        if op.parent is None or op.parent.name != "func.func":
            continue  # part of the control flow that holds it
        if len(op.regions) > 0:
            found[op] = ""
            continue
        alone = _alone(op)
        key = str(alone)
        if key not in verdicts:
            verdicts[key] = _failure(alone)
        reason = verdicts[key]
        if reason is not None:
            found[op] = reason
    return found


def _alone(op: ir.Operation) -> ir.Module:
    """Returns a module with one function that holds a copy of ``op``; its tensors are arguments and results."""
    with op.context, ir.Location.unknown():
        module = ir.Module.create()
        inputs: list[ir.Value] = []
        _visit_tensors(op, inputs.append)
        distinct = list(dict.fromkeys(inputs))
        results = [result for result in op.results if not str(result.type).startswith("!torch.list")]
        function_type = ir.FunctionType.get([value.type for value in distinct], [result.type for result in results])
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create(
                "func.func",
                regions=1,
                attributes={"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(function_type)},
            )
        block = function.regions[0].blocks.append(
            *[value.type for value in distinct], arg_locs=[ir.Location.unknown()] * len(distinct)
        )
        mapping: dict[ir.Value, ir.Value] = dict(zip(distinct, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            copied = _copy(op, mapping)
            kept = [value for value in copied.results if not str(value.type).startswith("!torch.list")]
            ir.Operation.create("func.return", operands=kept)
        return module


def _visit_tensors(op: ir.Operation, visit: Callable[[ir.Value], None]) -> None:
    """Visits the operands of ``op`` that are not constants, inside spelled-out lists too."""
    for operand in op.operands:
        owner = operand.owner
        if not isinstance(owner, ir.Block) and owner.operation.name.startswith(_SCALAR_OPS):
            _visit_tensors(owner.operation, visit)
        else:
            visit(operand)


def _copy(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    for operand in op.operands:
        if operand not in mapping:
            source = operand.owner.operation
            mapping.update(zip(source.results, _copy(source, mapping).results, strict=True))
    copied = op.clone()
    for index, operand in enumerate(op.operands):
        copied.operands[index] = mapping[operand]
    return copied


def _failure(module: ir.Module) -> str | None:
    """Why a module cannot be lowered, empty where nothing is known to do it; None where it can."""
    if any(op.name in _UNTRUSTED for op in _torch_ops(module)):
        return ""
    try:
        convert(module, _torch_ops(module), OP_SECONDS)
    except ConversionError as failure:
        return failure.reason
    return "" if _torch_ops(module) else None


def _refuse_scalar_loops(module: ir.Module) -> None:
    """Refuses loops that compute a single number: values between kernels are tensors."""
    found: list[str] = []

    def collect(op: ir.Operation) -> None:
        at_top = op.parent is not None and op.parent.name == "func.func"
        if (
            at_top
            and op.name.startswith("scf.")
            and not all(isinstance(result.type, ir.RankedTensorType) for result in op.results)
        ):
            found.append(f"a loop that computes a number at {describe(op)}")

    walk(module.operation, collect)
    if found:
        details = sorted(set(found))
        raise UnsupportedError("LK4001", f"the model has {len(found)} loops that compute a number", details=details)


def _erase_assertions(module: ir.Module) -> None:
    """Erases ``cf.assert``.

    torch-mlir asserts that dynamic sizes broadcast, which capture has proven or code generation makes a guard
    (``lowerkit/codegen/extent_guards.py``), that indices are in range, which ``lk.check_indices`` refuses at run time
    and :func:`guard_look_ups` makes sure of, and that the operand of a reciprocal is not zero, which is wrong: PyTorch
    gives infinity.
    """
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op.name == "cf.assert":
            found.append(op)

    walk(module.operation, collect)
    for op in found:
        op.erase()
