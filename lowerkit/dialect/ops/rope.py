"""lk.rope: rotary position embedding."""

from __future__ import annotations

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import rope as lowering
from lowerkit.dialect.reference import rows as numpy_rows
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import broadcastable_to, element_count, fail, is_dynamic, ranked, show
from lowerkit.dialect.types import require_float
from lowerkit.mlir import ext, ir


class RopeOp(LkOperation, name="rope", traits=[ext.Pure]):
    """Rotates pairs of features by an angle that depends on the position; computed in f32 (f64 for f64), rounded once.

    ``result[..., a] = x[..., a] * cos[..., a] - x[..., b] * sin[..., a]`` and
    ``result[..., b] = x[..., b] * cos[..., b] + x[..., a] * sin[..., b]`` for each pair (a, b): (i, i + D/2), or with
    interleaved (2i, 2i + 1).

    Operands:
        input: ``[B, H, S, D]``, float, D even.
        cos: broadcastable to ``[B, H, S, D]``, or to ``[B, H, S, D/2]`` with one value for each pair.
        sin: of the shape of cos.

    Results:
        result: of the type of the input.

    Attributes:
        interleaved: pairs are neighbours (GPT-J) rather than halves (Llama).

    FLOPs: 3 for each element.

    Bytes: operands and result, each once.
    """

    input: Operand
    cos: Operand
    sin: Operand
    interleaved: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, cos: ir.Type, sin: ir.Type, *, interleaved: bool = False
    ) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input, (4,))
        require_float("input", data.element_type)
        features = data.shape[3]
        if is_dynamic(features) or features % 2:
            fail(f"the last dimension of the input must be static and even, found {data}")
        tables = {"cos": ranked("cos", cos, (1, 2, 3, 4)), "sin": ranked("sin", sin, (1, 2, 3, 4))}
        for name, table in tables.items():
            require_float(name, table.element_type)
            if table.shape[-1] not in (features, features // 2):
                fail(f"the last dimension of {name} is {table.shape[-1]}, it must be {features} or {features // 2}")
            if not broadcastable_to(table.shape[:-1], data.shape[:-1]):
                fail(f"operand {name} of shape {show(table.shape)} does not broadcast to the input {show(data.shape)}")
        if tables["cos"] != tables["sin"]:
            fail(f"cos is {tables['cos']}, sin is {tables['sin']}: they must be of one type")
        return [data]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        cos: ir.Value,
        sin: ir.Value,
        *,
        interleaved: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        operands = {"input": input, "cos": cos, "sin": sin}
        return cls.create(operands, {"interleaved": interleaved}, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, cos: Array, sin: Array) -> tuple[Array, ...]:
        """Rotates in float64 and rounds once."""
        return self.rounded(numpy_rows.rope(input, cos, sin, **self.parameters()))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic that reads each feature's partner and angle."""
        return [lowering.rope(self.input, self.cos, self.sin, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 3 for each element."""
        count = element_count(shape(self.input))
        return None if count is None else 3 * count
