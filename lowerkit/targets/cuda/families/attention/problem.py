"""``lk.attention`` as the kernels see it: sizes, operands with strides, and what happens to a score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16")
_MOST_FEATURES = 256


@dataclass(frozen=True)
class Attention:
    """One attention; extents may be open, those of features and heads are static.

    Attributes:
        query, key, value: ``[B, H, M, D]``, ``[B, Hk, T, D]``, ``[B, Hk, T, Dv]``.
        mask: with strides over ``[B, H, M, T]``, 0 where it is broadcast; None without.
        batch, heads, key_heads, queries, keys, depth, value_depth: B, H, Hk, M, T, D, Dv.
        scale, causal, empty_rows: those of ``lk.attention``.
        fill: its ``fill`` where the mask selects; None where it is added.
        result: the element type of the result.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    batch: KernelExpr
    heads: int
    key_heads: int
    queries: KernelExpr
    keys: KernelExpr
    depth: int
    value_depth: int
    scale: float
    causal: bool
    fill: float | None
    empty_rows: str
    result: str

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads

    @property
    def seen_pairs(self) -> KernelExpr:
        """Pairs of a query and a key that it may see, of one head; all where extents are open."""
        queries, keys = self.queries, self.keys
        if not self.causal or not isinstance(queries, int) or not isinstance(keys, int):
            return product([queries, keys])
        corner = min(queries, keys)
        return corner * (corner + 1) // 2 + (queries - corner) * keys

    @cached_property
    def natural(self) -> bool:
        """Whether scores must be scaled before they are masked.

        Otherwise the product itself is masked, and one fma of it makes the exponent of 2. A mask that is added, or a
        fill, may lie near the largest float: times log2(e) it would be infinite, and hide what it should not.
        """
        if self.mask is not None and self.mask.element != "i1":
            return True
        if not 1e-30 < self.scale < 1e30:
            return True
        return self.fill is not None and self.fill != -math.inf

    @property
    def log2_unit(self) -> float:
        """What a difference of maxima is multiplied by to be an exponent of 2."""
        return math.log2(math.e) if self.natural else 1.0


def read_attention(region: RegionView, frame: Frame) -> Attention | Refusal:
    """Reads the anchor of a region."""
    anchor = region.anchor
    if anchor is None or anchor.operation.name != "lk.attention":
        return Refusal("the anchor is not lk.attention")
    operation = anchor.operation
    sources: list[Tensor] = []
    for value in operation.operands:
        source = frame.source(value)
        if not isinstance(source, Tensor):
            return Refusal("an operand of attention is computed inside the region")
        sources.append(source)
    query, key, value = sources[:3]
    elements = sorted({query.element, key.element, value.element})
    if len(elements) != 1 or elements[0] not in _FLOATS:
        return Refusal(f"attention of {', '.join(elements)}: one of {', '.join(_FLOATS)} is taken")
    heads, key_heads, depth, value_depth = query.sizes[1], key.sizes[1], query.sizes[3], value.sizes[3]
    depth = depth if isinstance(depth, int) else key.sizes[3]
    key_heads = key_heads if isinstance(key_heads, int) else value.sizes[1]
    if not isinstance(depth, int) or not isinstance(value_depth, int):
        return Refusal("the number of features is open")
    if not isinstance(heads, int) or not isinstance(key_heads, int):
        return Refusal("the number of heads is open")
    if max(depth, value_depth) > _MOST_FEATURES:
        return Refusal(f"{max(depth, value_depth)} features; at most {_MOST_FEATURES}")
    batch = query.sizes[0] if isinstance(query.sizes[0], int) else _known(key.sizes[0], query.sizes[0])
    keys = key.sizes[2] if isinstance(key.sizes[2], int) else _known(value.sizes[2], key.sizes[2])
    if 0 in (batch, heads, query.sizes[2], keys, depth, value_depth):
        return Refusal("there are no keys, or nothing to compute")
    scale = ir.FloatAttr(operation.attributes["scale"]).value
    if not math.isfinite(scale):
        return Refusal(f"a scale of {scale}")
    mask = None
    if len(sources) == 4:
        mask = _broadcast(sources[3])
        if mask.element not in (*_FLOATS, "f64", "i1"):
            return Refusal(f"a mask of {mask.element}")
    selects = ir.StringAttr(operation.attributes["masking"]).value == "select"
    return Attention(
        query=query,
        key=key,
        value=value,
        mask=mask,
        batch=batch,
        heads=heads,
        key_heads=key_heads,
        queries=query.sizes[2],
        keys=keys,
        depth=depth,
        value_depth=value_depth,
        scale=scale,
        causal=ir.BoolAttr(operation.attributes["causal"]).value,
        fill=ir.FloatAttr(operation.attributes["fill"]).value if selects else None,
        empty_rows=ir.StringAttr(operation.attributes["empty_rows"]).value,
        result=str(ir.RankedTensorType(operation.results[0].type).element_type),
    )


def _known(size: KernelExpr, otherwise: KernelExpr) -> KernelExpr:
    return size if isinstance(size, int) else otherwise


def _broadcast(mask: Tensor) -> Tensor:
    """Returns the mask with four dims; an open extent may turn out to be 1, then its stride is 0."""
    lacking = 4 - len(mask.sizes)
    strides: list[KernelExpr] = [0] * lacking
    for size, stride in zip(mask.sizes, mask.strides, strict=True):
        many = expression("min", expression("sub", size, 1), 1)
        strides.append(expression("mul", stride, many))
    return Tensor(mask.pointer, mask.element, (1,) * lacking + mask.sizes, tuple(strides), mask.offset)
