"""What each operator asks of its arguments, by the names of PyTorch's schemas; ONNX's nodes stand for some of them.

Who heeds it: ``torch_export/symbolic/needs.py`` (conditions on open extents, and refusals where extents are known),
``torch_export/graph/index_checks.py`` (positions that are data, when a program runs) and ``onnx/contracts.py`` (both,
of nodes). What PyTorch's tracing asks itself, as nearly all of what is known at capture, needs no entry.

Vocabulary: :mod:`lowerkit.capture.contracts.vocabulary`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.capture.contracts.slots import named_by_lists, on_diagonal, rows, selected, sliced
from lowerkit.capture.contracts.vocabulary import (
    Call,
    Contract,
    Dims,
    Places,
    along,
    beyond,
    by_tuples,
    extents,
    fits,
    last_as,
    ranked,
    repeated,
    said,
)

_ALL = ranked(range)
_MATRIX = ranked(lambda rank: (0, 1) if rank > 1 else ())
_CLASSES = ranked(lambda rank: (min(1, rank - 1),))  # after the batch, if there is one


def _at(dim: int) -> Dims:
    return ranked(lambda rank: (dim % rank,))


def _is_extreme(call: Call) -> bool:
    order = call.arguments.get("ord", call.arguments.get("p"))
    return isinstance(order, (int, float)) and (order < 0 or order == float("inf"))


def _each(names: str, contract: Contract) -> dict[str, Contract]:
    return dict.fromkeys(names.split(), contract)


_OUT_OF_RANGE = "out of range|out of bounds|should be|must be|invalid|between"
_NO_EXTREME = "dim|identity|infinity|non-zero|non-empty|numel|empty"
_SIZE = "size equal to|shape"
_POSITION = extents(along("dim"), said("index", lambda index: index + 1 if index >= 0 else -index))
_ROWS = Contract(places=(Places("index", along("dim")),), refusal=_OUT_OF_RANGE)
_LISTS = (Places("indices", wraps=True, listed=True),)
_BY_LISTS = (fits("values", named_by_lists, spread=True),)
_REFLECTED = (extents(last_as("padding", 2), beyond("padding")),)

CONTRACTS: Mapping[str, Contract] = {
    # Positions and numbers of elements.
    "select": Contract((_POSITION,), refusal=_OUT_OF_RANGE),
    **_each("topk kthvalue", Contract((extents(along("dim"), said("k")),), refusal="out of range|non-zero")),
    "squeeze": Contract((extents(along("dim"), relation="unequal to", of_tracing=True),)),  # traced as if it stayed
    # Extremes of no elements.
    **_each("amax amin aminmax max min argmax argmin mode", Contract((extents(along("dim")),), refusal=_NO_EXTREME)),
    **_each("quantile nanquantile", Contract((extents(_ALL),), refusal=_NO_EXTREME)),
    **_each("linalg_vector_norm norm", Contract((extents(along("dim"), when=_is_extreme),), refusal=_NO_EXTREME)),
    # What eager computes of no elements too, while results were traced as if there were some.
    **_each("median nanmedian", Contract((extents(along("dim"), of_tracing=True),))),
    **_each("diagonal diagonal_copy", Contract((extents(along("dim1", "dim2"), of_tracing=True),))),
    **_each("diag trace", Contract((extents(_MATRIX, of_tracing=True),))),
    **_each(
        "_native_batch_norm_legit _unsafe_masked_index _unsafe_masked_index_put_accumulate",
        Contract((extents(_ALL, of_tracing=True),)),
    ),
    # Resizing reads at least one element along each dim but the batch, pools and borders along each spatial one.
    **_each(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_nearest_exact1d upsample_nearest_exact2d "
        "upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
        "upsample_bilinear2d_aa upsample_bicubic2d_aa",
        Contract((extents(ranked(lambda rank: range(1, rank))),), refusal="[Nn]on-empty|greater than (?:0|zero)"),
    ),
    **_each(
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        Contract((extents(last_as("output_size")),), refusal="non-zero size"),
    ),
    **_each(
        "replication_pad1d replication_pad2d replication_pad3d",
        Contract((extents(last_as("padding", 2)),), refusal="[Ee]xpected"),
    ),
    **_each(
        "reflection_pad1d reflection_pad2d reflection_pad3d",
        Contract(_REFLECTED, refusal="[Pp]adding size|[Ee]xpected"),
    ),
    "pad": Contract(
        (
            extents(last_as("pad", 2), when=lambda call: call.arguments["mode"] == "replicate"),
            extents(last_as("pad", 2), beyond("pad"), lambda call: call.arguments["mode"] == "reflect"),
            extents(last_as("pad", 2), repeated("pad"), lambda call: call.arguments["mode"] == "circular"),
        ),
        refusal="[Ee]xpected|[Pp]adding (size|value)",
    ),
    # Writes into a part.
    "select_scatter": Contract((_POSITION, fits("src", selected)), refusal=f"{_SIZE}|out of range"),
    "slice_scatter": Contract((fits("src", sliced),), refusal=_SIZE),
    "diagonal_scatter": Contract((fits("src", on_diagonal),), refusal=_SIZE),
    "_unsafe_index_put": Contract(_BY_LISTS),
    **_each("index_put _index_put_impl", Contract(_BY_LISTS, _LISTS, f"{_SIZE}|{_OUT_OF_RANGE}")),
    "index_add": Contract((fits("source", rows),), _ROWS.places, f"{_SIZE}|{_OUT_OF_RANGE}"),
    # Look-ups and writes at positions that are data.
    "index": Contract(places=_LISTS, refusal=_OUT_OF_RANGE),
    **_each("index_select index_copy index_reduce gather scatter scatter_add scatter_reduce", _ROWS),
    "index_fill": Contract(places=(Places("index", along("dim"), wraps=True),), refusal=_OUT_OF_RANGE),
    **_each("take put", Contract(places=(Places("index", wraps=True),), refusal=_OUT_OF_RANGE)),
    # Along a dim, eager takes the remainder of a position.
    "take_along_dim": Contract(places=(Places("indices", unless="dim"),), refusal=_OUT_OF_RANGE),
    **_each(
        "embedding embedding_bag _embedding_bag _embedding_bag_forward_only",
        Contract(
            places=(Places("indices", _at(0), "weight"), Places("offsets", _at(0), "indices", ends=True)),
            refusal=f"{_OUT_OF_RANGE}|valid range|offsets",
        ),
    ),
    "gather_tuples": Contract(places=(Places("indices", by_tuples, wraps=True, parts=True),)),
    # Positions under other names: classes, where maxima were, an order, rows that change places.
    **_each(
        "nll_loss nll_loss2d nll_loss_nd nll_loss_forward nll_loss2d_forward cross_entropy_loss multi_margin_loss",
        Contract(places=(Places("target", _CLASSES, exempt="ignore_index"),), refusal=_OUT_OF_RANGE),
    ),
    **_each(
        "multilabel_margin_loss multilabel_margin_loss_forward",
        Contract(places=(Places("target", _at(-1), exempt=-1),), refusal=_OUT_OF_RANGE),
    ),
    "one_hot": Contract(places=(Places("self", sizes="num_classes"),), refusal="Class values"),
    **_each("max_unpool2d max_unpool3d", Contract(places=(Places("indices", sizes="output_size"),), refusal="max ind")),
    "searchsorted": Contract(places=(Places("sorter", _at(-1), "sorter"),), refusal=_OUT_OF_RANGE),
    "lu_unpack": Contract(places=(Places("LU_pivots", _at(-2), "LU_data", first=1),), refusal=_OUT_OF_RANGE),
    "linalg_lu_solve": Contract(places=(Places("pivots", _at(-2), "LU", first=1),), refusal=_OUT_OF_RANGE),
    # An extent of 1 that is repeated.
    "expand": Contract(repeats=True),
}

_ALONG_AXIS = {"self": 0, "index": 1, "dim": ("axis", 0)}
ONNX_NODES: Mapping[str, tuple[str, Mapping[str, int | tuple[str, int]]]] = {
    # All of ONNX's look-ups count from the end, as one of PyTorch's does.
    **dict.fromkeys(("Gather", "GatherElements", "Scatter", "ScatterElements"), ("index_fill", _ALONG_AXIS)),
    **dict.fromkeys(
        ("GatherND", "ScatterND"), ("gather_tuples", {"self": 0, "indices": 1, "batch_dims": ("batch_dims", 0)})
    ),
    "TopK": ("topk", {"self": 0, "k": 1, "dim": ("axis", -1)}),
    "Expand": ("expand", {}),
}
"""ONNX's op -> the contract that it stands under, and its arguments: numbers of inputs, or attributes with defaults."""


def contract_of(name: str) -> Contract:
    """Returns the contract of an operator, under its own name or that without the underscores of a private one."""
    return CONTRACTS.get(name) or CONTRACTS.get(name.strip("_")) or Contract()
