"""lk.attention: scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, OptionalOperand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import attention as lowering
from lowerkit.dialect.reference import rows as numpy_rows
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import (
    broadcastable_to,
    compatible,
    element_count,
    fail,
    is_dynamic,
    merge,
    ranked,
    show,
    tensor_type,
)
from lowerkit.dialect.types import is_bool, is_float, require_float, require_same_element
from lowerkit.mlir import ext, ir

MASKINGS = ("add", "select")
EMPTY_ROWS = ("zero", "nan", "guarded")


class AttentionOp(LkOperation, name="attention", traits=[ext.Pure]):
    """``softmax(query @ key^T * scale + mask) @ value``, computed in f32 (f64 for f64) and rounded once.

    With fewer key and value heads than query heads, query head h attends to key head ``h // (H / Hk)``. A row whose
    scores are all -inf has no softmax; ``empty_rows`` says what it gives. Without any keys all rows give zeros.

    Operands:
        query: ``[B, H, M, D]``, float.
        key: ``[B, Hk, T, D]``; Hk divides H.
        value: ``[B, Hk, T, Dv]``.
        mask: broadcastable to ``[B, H, M, T]``; optional. With ``masking`` ``add`` it is added to the scores, a bool
            (i1) as 0 where true and -inf where false, so a score of NaN stays NaN; with ``select`` it is a bool, and
            the score is ``fill`` where it is false, whatever it was.

    Results:
        result: ``[B, H, M, Dv]``.

    Attributes:
        scale: the factor on the scores, ``1 / sqrt(D)`` in most models.
        causal: row m sees the keys 0 to m only; the triangle starts at the top left, as in PyTorch. With a mask,
            both apply.
        masking: ``add`` or ``select``; see mask.
        fill: the score of a key that is not selected; ``add`` does not read it.
        empty_rows: ``zero``: a row of -inf gives zeros, as in PyTorch's ``scaled_dot_product_attention``; ``nan``: it
            gives NaN, as a softmax does; ``guarded``: it gives zeros, and so does a row with a NaN among its weights.

    FLOPs: ``2 * B * H * M * T * (D + Dv) + 5 * B * H * M * T``; a causal triangle is not subtracted.

    Bytes: operands and result, each once.
    """

    query: Operand
    key: Operand
    value: Operand
    mask: OptionalOperand
    scale: ir.FloatAttr
    causal: ir.BoolAttr
    masking: ir.StringAttr
    fill: ir.FloatAttr
    empty_rows: ir.StringAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        query: ir.Type,
        key: ir.Type,
        value: ir.Type,
        mask: ir.Type | None = None,
        *,
        scale: float,
        causal: bool = False,
        masking: str = "add",
        fill: float = -math.inf,
        empty_rows: str = "zero",
    ) -> list[ir.Type]:
        """Returns ``[B, H, M, Dv]``; see :meth:`LkOperation.infer_result_types`."""
        q, k, v = ranked("query", query, (4,)), ranked("key", key, (4,)), ranked("value", value, (4,))
        require_float("query", q.element_type)
        require_same_element("query", q.element_type, "key", k.element_type)
        require_same_element("query", q.element_type, "value", v.element_type)
        for name, left_name, left, right_name, right in (
            ("batch", "query", q.shape[0], "key", k.shape[0]),
            ("batch", "query", q.shape[0], "value", v.shape[0]),
            ("head", "key", k.shape[1], "value", v.shape[1]),
            ("sequence", "key", k.shape[2], "value", v.shape[2]),
            ("feature", "query", q.shape[3], "key", k.shape[3]),
        ):
            if not compatible(left, right):
                fail(f"the {name} dimension of {left_name} is {left}, of {right_name} {right}: they must be equal")
        heads, key_heads = q.shape[1], merge(k.shape[1], v.shape[1])
        if not is_dynamic(heads) and not is_dynamic(key_heads) and (key_heads < 1 or heads % key_heads):
            fail(f"query has {heads} heads, key and value {key_heads}: they must divide evenly")
        if masking not in MASKINGS or empty_rows not in EMPTY_ROWS:
            fail(f"masking is one of {', '.join(MASKINGS)} and empty_rows of {', '.join(EMPTY_ROWS)}")
        if masking == "select" and (mask is None or not is_bool(ranked("mask", mask).element_type)):
            fail("masking select needs a mask of i1 elements")
        if mask is not None:
            _check_mask(mask, [*q.shape[:3], merge(k.shape[2], v.shape[2])])
        batch = merge(merge(q.shape[0], k.shape[0]), v.shape[0])
        return [tensor_type([batch, q.shape[1], q.shape[2], v.shape[3]], q.element_type)]

    @classmethod
    def build(
        cls,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        mask: ir.Value | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        masking: str = "add",
        fill: float = -math.inf,
        empty_rows: str = "zero",
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; without ``scale`` it is ``1 / sqrt(D)``, which needs a static D."""
        if scale is None:
            features = ranked("query", query.type, (4,)).shape[3]
            if is_dynamic(features) or features < 1:
                fail(f"scale must be given where the feature dimension of query is {show([features])}")
            scale = features**-0.5
        operands = {"query": query, "key": key, "value": value, "mask": mask}
        parameters: dict[str, Any] = {
            "scale": scale,
            "causal": causal,
            "masking": masking,
            "fill": fill,
            "empty_rows": empty_rows,
        }
        return cls.create(operands, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, query: Array, key: Array, value: Array, mask: Array | None = None) -> tuple[Array, ...]:
        """Computes in float64 and rounds once."""
        return self.rounded(numpy_rows.attention(query, key, value, mask, **self.parameters()))

    def build_linalg(self) -> list[ir.Value]:
        """Builds scores, mask, softmax and the weighted sum of values."""
        return [lowering.attention(self.query, self.key, self.value, self.mask, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``2 * B * H * M * T * (D + Dv) + 5 * B * H * M * T``."""
        scores = element_count([*shape(self.query)[:3], shape(self.key)[2]])
        features = element_count([shape(self.query)[3]])
        value_features = element_count([shape(self.value)[3]])
        if scores is None or features is None or value_features is None:
            return None
        return scores * (2 * (features + value_features) + 5)


def _check_mask(mask: ir.Type, scores: list[int]) -> None:
    tensor = ranked("mask", mask)
    if not (is_float(tensor.element_type) or is_bool(tensor.element_type)):
        fail(f"operand mask must have float or i1 elements, found {tensor.element_type}")
    if not broadcastable_to(tensor.shape, scores):
        fail(f"operand mask has shape {show(tensor.shape)}, which does not broadcast to the scores {show(scores)}")
