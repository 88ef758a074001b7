"""The loop nest of each op (see :mod:`.nest`)."""

from __future__ import annotations

from lowerkit.spmd.certificate.graph import Form
from lowerkit.spmd.certificate.loop_nests import products, rows, views
from lowerkit.spmd.certificate.loop_nests.nest import Maker, Nest, Shapes
from lowerkit.spmd.certificate.loop_nests.structured import structured

NESTS: dict[str, Maker] = {
    "lk.matmul": products.matmul,
    "lk.integer_matmul": products.matmul,
    "lk.attention": products.attention,
    "lk.conv": products.conv,
    "lk.conv_transpose": products.conv,
    "lk.integer_conv": products.conv,
    "lk.max_pool": products.pool,
    "lk.avg_pool": products.pool,
    "lk.resize": products.pool,
    "lk.softmax": rows.along_axis,
    "lk.cumulative": rows.along_axis,
    "lk.sort": rows.along_axis,
    "lk.topk": rows.along_axis,
    "lk.layer_norm": rows.rows,
    "lk.rms_norm": rows.rows,
    "lk.group_norm": rows.group_norm,
    "lk.rope": rows.rope,
    "lk.reduce": rows.reduce,
    "lk.quantize": rows.along_parameters,
    "lk.dequantize": rows.along_parameters,
    "lk.requant": rows.along_parameters,
    "lk.gather": rows.gather,
    "lk.scatter": rows.scatter,
    "lk.check_indices": rows.check_indices,
    "lk.collective_start": views.collective,
    "lk.collective_done": views.same,
    "linalg.transpose": views.transpose,
    "linalg.broadcast": views.broadcast,
    "tensor.expand_shape": views.expand,
    "tensor.collapse_shape": views.collapse,
    "tensor.extract_slice": views.extract_slice,
    "tensor.insert_slice": views.insert_slice,
    "tensor.pad": views.pad,
    "tensor.concat": views.concat,
    "tensor.cast": views.same,
}
"""By the name of the op; ``linalg.generic`` has its maps."""

LOCAL_ATTRIBUTES: dict[str, frozenset[str]] = {
    "tensor.expand_shape": frozenset({"static_output_shape"}),
    "tensor.extract_slice": frozenset({"static_offsets", "static_sizes"}),
    "tensor.insert_slice": frozenset({"static_sizes"}),
    "lk.conv": frozenset({"groups"}),
    "lk.integer_conv": frozenset({"groups"}),
    "lk.conv_transpose": frozenset({"groups"}),
    "lk.group_norm": frozenset({"groups"}),
}
"""Attributes that state sizes of one rank: the loop nest takes them from the op itself, so that they may differ."""


def nest_of(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """Returns the loop nest of an op; None where it may run on whole operands alone.

    Args:
        form: of the op.
        own: its shapes.
        before: those of the op before the split, which say what is broadcast; ``own`` where there is none.
    """
    maker = structured if form.name == "linalg.generic" else NESTS.get(form.name)
    nest = None if maker is None else maker(form, own, before)
    return nest if nest is not None and nest.fits(own) else None
