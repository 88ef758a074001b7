"""The pass that rewrites single torch ops by a table: op name -> rule. Every ``raise-*`` pass is one of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from lowerkit.errors import VerifyError
from lowerkit.mlir import ir, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.torch_build import of_type_of
from lowerkit.passes.raising.torch_dialect.torch_ir import NotConcernedError, RefusalError
from lowerkit.passes.source_location import describe, op_name, signature_text

Rule: TypeAlias = Callable[[ir.Operation, PassContext], Sequence[ir.Value | None]]
"""Builds the replacement of an op before it and returns one value per result (None for a result that nothing reads).

A rule that does not apply raises ``RefusalError``: the op stays, and the reason becomes a remark.
"""


@dataclass(frozen=True)
class TablePass(Pass):
    """Applies ``rules`` to each op of the torch dialect, first to last, once.

    Precondition: none; ops without a rule are left alone.
    """

    rules: ClassVar[Mapping[str, Rule]]

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        return apply_rules(module, self.rules, self.name, context)


def apply_rules(module: ir.Module, rules: Mapping[str, Rule], pass_name: str, context: PassContext) -> bool:
    """Rewrites each op that has a rule; returns whether anything changed."""
    found: list[ir.Operation] = []

    def collect(op: ir.Operation) -> None:
        if op_name(op) in rules:
            found.append(op)

    walk(module.operation, collect)
    changed = False
    for op in found:
        try:
            with module.context, ir.InsertionPoint(op), op.location:
                replacements = rules[op_name(op)](op, context)
        except NotConcernedError:
            continue
        except (RefusalError, VerifyError) as reason:
            text = reason.message if isinstance(reason, VerifyError) else str(reason)
            context.remark(pass_name, f"left {signature_text(op)} at {describe(op)} alone: {text}")
            context.refusals[f"{op_name(op)} {op.location}"] = text
            continue
        replace(op, replacements)
        changed = True
    return changed


def replace(op: ir.Operation, replacements: Sequence[ir.Value | None]) -> None:
    """Puts ``replacements`` in the place of the results of ``op`` and erases it."""
    assert len(replacements) == len(op.results), f"{op.name}: {len(replacements)} values for {len(op.results)} results"
    for result, value in zip(op.results, replacements, strict=True):
        if value is None:
            assert next(iter(result.uses), None) is None, f"{op.name}: a result that is read has no replacement"
            continue
        result.replace_all_uses_with(of_type_of(result, value))
    op.erase()
