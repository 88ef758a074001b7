"""Where quantization applies: matrix products and convolutions of f32 with a constant right operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.dialect import LkOperation
from lowerkit.mlir import ir
from lowerkit.passes.quantize.integer_products import depth_refusal
from lowerkit.passes.rewriting import defining_op, element_of, main_block, operations, shape_of
from lowerkit.passes.source_location import describe
from lowerkit.program.program import Program


@dataclass(frozen=True)
class Site:
    """One product that can be quantized.

    Attributes:
        index: its place among the products of the module.
        name: the graph node that it stands for.
        module_path: of the module in the model that it belongs to, ``""`` where unknown.
        location: the user's line.
        value: which of the distinct activations it reads; several products may share one.
        flops: of one run, 0 where symbolic dims leave them open.
        weight_bytes: of its weight in f32.
    """

    index: int
    name: str
    module_path: str
    location: str
    value: int
    flops: int
    weight_bytes: int


@dataclass(frozen=True)
class Sites:
    """All products that can be quantized, and why the others are not.

    Attributes:
        sites: in program order.
        values: how many distinct activations they read.
        refused: lines for the user.
    """

    sites: Sequence[Site]
    values: int
    refused: Sequence[str]

    def first_readers(self) -> list[Site]:
        """Returns for each distinct activation the first product that reads it."""
        first = {site.value: site for site in reversed(self.sites)}
        return [first[value] for value in range(self.values)]


def find_sites(program: Program) -> Sites:
    """Looks at every product of a raised program; nothing is changed."""
    values: dict[ir.Value, int] = {}
    sites: list[Site] = []
    refused: list[str] = []
    for index, op in enumerate(products_of(program.module)):
        reason = _refusal(op)
        source = describe(op)
        if reason is not None:
            refused.append(f"{op.name} at {source}: {reason}")
            continue
        value = values.setdefault(op.operands[0], len(values))
        place = f"{source.file}:{source.line}" if source.file else ""
        sites.append(Site(index, source.node or op.name, source.module_path, place, value, *_work(op)))
    return Sites(sites, len(values), refused)


def products_of(module: ir.Module) -> list[ir.Operation]:
    """Returns the products of a module in program order; :attr:`Site.index` counts them."""
    return [op for op in operations(main_block(module)) if op.name in ("lk.matmul", "lk.conv")]


def _work(op: ir.Operation) -> tuple[int, int]:
    """Returns the FLOPs of a product, 0 where they depend on symbolic dims, and the bytes of its weight."""
    view = op.opview
    assert isinstance(view, LkOperation)
    elements = 1
    for extent in shape_of(op.operands[1]):
        elements *= extent
    flops = view.flops()
    return flops if isinstance(flops, int) else 0, 4 * elements


def _refusal(op: ir.Operation) -> str | None:
    """Returns why a product stays in floats, None where it does not."""
    if any(str(element_of(operand)) != "f32" for operand in op.operands):
        return f"operands of {element_of(op.operands[0])}, not of f32"
    weight = defining_op(op.operands[1])
    if weight is None or weight.name not in ("lk.weight", "arith.constant"):
        return "the right operand is no constant"
    return depth_refusal(op, tuple(shape_of(op.operands[1])))
