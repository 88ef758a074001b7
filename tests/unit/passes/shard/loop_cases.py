"""One small function for each op of the table of loops, and how many of its loops ranks can share."""

from __future__ import annotations


def lk(name: str, operands: str, result: str, **attributes: str) -> str:
    """Writes a function of one op of the dialect; types are separated by spaces."""
    types = [f"tensor<{kind}>" for kind in operands.split()]
    results = [f"tensor<{kind}>" for kind in result.split()]
    arguments = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(types))
    names = ", ".join(f"%a{number}" for number in range(len(types)))
    stated = ", ".join(f"{key} = {value}" for key, value in attributes.items())
    made = ", ".join(results) if len(results) == 1 else f"({', '.join(results)})"
    numbered = "%r" if len(results) == 1 else f"%r:{len(results)}"
    returned = "%r" if len(results) == 1 else ", ".join(f"%r#{number}" for number in range(len(results)))
    return f"""func.func @main({arguments}) -> {made} {{
      {numbered} = "lk.{name}"({names}) {{{stated}}} : ({", ".join(types)}) -> {made}
      return {returned} : {", ".join(results)}
    }}"""


def other(operands: str, result: str, op: str) -> str:
    """Writes a function of one op, given as text that reads ``%a0`` and so on."""
    arguments = ", ".join(f"%a{number}: tensor<{kind}>" for number, kind in enumerate(operands.split()))
    return f"""func.func @main({arguments}) -> tensor<{result}> {{
      %r = {op}
      return %r : tensor<{result}>
    }}"""


MATMUL = {"transpose_lhs": "false", "transpose_rhs": "false", "accumulate": "f32"}
TURNED = {"transpose_lhs": "true", "transpose_rhs": "true", "accumulate": "f32"}


def conv(*, last: bool = False, groups: int = 1, integer: bool = False) -> dict[str, str]:
    own = {"padding_value": "3 : i64", "unsigned": "false"} if integer else {"accumulate": "f32"}
    return {
        "channels_last": str(last).lower(),
        "strides": "array<i64: 2, 1>",
        "padding": "array<i64: 1, 1, 0, 1>",
        "dilation": "array<i64: 1, 1>",
        "groups": f"{groups} : i64",
        **own,
    }


TRANSPOSED = {**conv(), "output_padding": "array<i64: 0, 0>"}
ATTENTION = {
    "scale": "0.5 : f64",
    "causal": "true",
    "masking": '"add"',
    "fill": "0.0 : f64",
    "empty_rows": '"zero"',
}
POOL = {key: conv()[key] for key in ("channels_last", "strides", "padding", "dilation")} | {
    "kernel": "array<i64: 3, 2>",
}
MEAN = {"count_include_pad": "true", "divisor": "0 : i64", "ceil_extra": "array<i64: 0, 0>"}
NORM = {"epsilon": "1.0e-5 : f64", "normalized_rank": "1 : i64"}
SEGMENTS = {"operandSegmentSizes": "array<i32: 1, 1, 1>"}
QUANTIZED = {"axis": "1 : i64", "unsigned": "false"}
RESIZE = {
    "mode": '"linear"',
    "coordinates": '"half_pixel"',
    "nearest_rounding": '"floor"',
    "channels_last": "false",
    "size": "array<i64: 4, 6>",
    "scales": "array<f64>",
}


def reduced(kind: str, *, keep: str = "false", result: str = "4x2xf32", operand: str = "4x6x2xf32") -> str:
    return lk("reduce", operand, result, kind=f'"{kind}"', axes="array<i64: 1>", keep_dims=keep)


def generic(combine: str, start: str, maps: str, iterators: str, operands: str, result: str) -> str:
    """Writes a reduction over two inputs, from a start that is filled in."""
    types = [f"tensor<{kind}>" for kind in operands.split()]
    return f"""func.func @main(%a0: {types[0]}, %a1: {types[1]}) -> tensor<{result}> {{
      %z = arith.constant {start} : f32
      %e = tensor.empty() : tensor<{result}>
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<{result}>) -> tensor<{result}>
      %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
          ins(%a0, %a1 : {", ".join(types)}) outs(%f : tensor<{result}>) {{
        ^bb0(%x: f32, %y: f32, %o: f32):
          %p = arith.mulf %x, %y : f32
          %s = {combine} %o, %p : f32
          linalg.yield %s : f32
      }} -> tensor<{result}>
      return %r : tensor<{result}>
    }}"""


CONTRACTION = (
    "affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>, affine_map<(i, j, k) -> (i, j)>",
    '"parallel", "parallel", "reduction"',
    "4x6xf32 6x8xf32",
    "4x8xf32",
)
WINDOW = (
    "affine_map<(i, j, k) -> (i, j + k)>, affine_map<(i, j, k) -> (k)>, affine_map<(i, j, k) -> (i, j)>",
    '"parallel", "parallel", "reduction"',
    "4x7xf32 4xf32",
    "4x4xf32",
)
COUNTED = """linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%a0 : tensor<4x6xf32>) outs(%a1 : tensor<6x4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %i = linalg.index 0 : index
    %n = arith.index_cast %i : index to i64
    %v = arith.sitofp %n : i64 to f32
    %s = arith.addf %x, %v : f32
    linalg.yield %s : f32
} -> tensor<6x4xf32>"""
ADDED = """linalg.generic {indexing_maps = [affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%a0 : tensor<6xf32>) outs(%a1 : tensor<4x6xf32>) {
  ^bb0(%x: f32, %o: f32):
    %s = arith.addf %x, %o : f32
    linalg.yield %s : f32
} -> tensor<4x6xf32>"""
PAD = """tensor.pad %a0 low[0, 1] high[0, 2] {
  ^bb0(%i: index, %j: index):
    %c = arith.constant 2.0 : f32
    tensor.yield %c : f32
} : tensor<4x6xf32> to tensor<4x9xf32>"""
EXPAND = "tensor.expand_shape %a0 [[0], [1, 2, 3]] output_shape [4, 1, 2, 4] : tensor<4x8xf32> into tensor<4x1x2x4xf32>"
INSERT = "tensor.insert_slice %a0 into %a1[0, 1, 0] [4, 1, 6] [1, 1, 1] : tensor<4x6xf32> into tensor<4x3x6xf32>"
EXTRACT = "tensor.extract_slice %a0[0, 1, 0] [4, 1, 6] [1, 1, 1] : tensor<4x3x6xf32> to tensor<4x6xf32>"
TRANSPOSE = "linalg.transpose ins(%a0 : tensor<4x6xf32>) outs(%a1 : tensor<6x4xf32>) permutation = [1, 0]"

CASES: dict[str, tuple[str, str]] = {
    # name: (the function, a letter for each loop that can be shared: Parallel, Sum, pRoduct, maX, miN)
    "matmul": (lk("matmul", "2x4x6xf32 6x8xf32", "2x4x8xf32", **MATMUL), "PPPS"),
    "matmul, turned": (lk("matmul", "6x4xf32 8x6xf32", "4x8xf32", **TURNED), "PPS"),
    "matmul, batches that broadcast": (lk("matmul", "1x2x4x6xf32 4x1x6x8xf32", "4x2x4x8xf32", **MATMUL), "PPPPS"),
    "integer_matmul": (
        lk("integer_matmul", "2x4x6xi8 8x6xi8", "2x4x8xi32", transpose_rhs="true", unsigned="true"),
        "PPPS",
    ),
    "conv": (lk("conv", "2x4x5x6xf32 6x4x3x2xf32", "2x6x3x6xf32", **conv()), "PPS"),
    "conv, channels last": (lk("conv", "2x5x6x4xf32 6x4x3x2xf32", "2x3x6x6xf32", **conv(last=True)), "PPS"),
    "conv, groups": (lk("conv", "2x4x5x6xf32 6x2x3x2xf32", "2x6x3x6xf32", **conv(groups=2)), "PP"),
    "conv, depthwise": (lk("conv", "2x4x5x6xf32 4x1x3x2xf32", "2x4x3x6xf32", **conv(groups=4)), "PP"),
    "integer_conv": (lk("integer_conv", "2x4x5x6xi8 6x4x3x2xi8", "2x6x3x6xi32", **conv(integer=True)), "PPS"),
    "conv_transpose": (lk("conv_transpose", "2x4x3x3xf32 4x6x3x2xf32", "2x6x5x3xf32", **TRANSPOSED), "PPS"),
    "conv_transpose, groups": (
        lk("conv_transpose", "2x4x3x3xf32 4x3x3x2xf32", "2x6x5x3xf32", **{**TRANSPOSED, "groups": "2 : i64"}),
        "PP",
    ),
    "attention": (
        lk("attention", "2x4x3x4xf32 2x2x5x4xf32 2x2x5x6xf32 2x1x3x5xf32", "2x4x3x6xf32", **ATTENTION),
        "PPP",
    ),
    "attention, any order of queries": (
        lk(
            "attention",
            "2x4x6x4xf32 2x4x5x4xf32 2x4x5x6xf32 4x1x5xf32",
            "2x4x6x6xf32",
            **{**ATTENTION, "causal": "false"},
        ),
        "PPPP",
    ),
    "softmax": (lk("softmax", "4x6x2xf32", "4x6x2xf32", axis="1 : i64", log="false"), "PP"),
    "layer_norm": (lk("layer_norm", "4x6x8xf32 8xf32 8xf32", "4x6x8xf32", **NORM, **SEGMENTS), "PP"),
    "rms_norm": (lk("rms_norm", "4x6x8xf32 8xf32", "4x6x8xf32", **NORM), "PP"),
    "group_norm": (
        lk(
            "group_norm",
            "2x8x3xf32 8xf32 8xf32",
            "2x8x3xf32",
            groups="4 : i64",
            epsilon="1.0e-5 : f64",
            channels_last="false",
            **SEGMENTS,
        ),
        "PP",
    ),
    "max_pool": (lk("max_pool", "2x4x5x6xf32", "2x4x3x6xf32", **POOL), "PP"),
    "avg_pool": (lk("avg_pool", "2x4x5x6xf32", "2x4x3x6xf32", **POOL, **MEAN), "PP"),
    "resize": (lk("resize", "2x4x2x3xf32", "2x4x4x6xf32", **RESIZE), "PP"),
    "sum": (reduced("sum"), "PSP"),
    "sum, kept": (reduced("sum", keep="true", result="4x1x2xf32"), "PSP"),
    "product": (reduced("prod"), "PRP"),
    "max": (reduced("max"), "PXP"),
    "min": (reduced("min", operand="4x6x2xi64", result="4x2xi64"), "PNP"),
    "mean": (reduced("mean"), "PP"),
    "argmax": (reduced("argmax", result="4x2xi64"), "PP"),
    "any": (reduced("any", operand="4x6x2xi1", result="4x2xi1"), "PP"),
    "gather": (lk("gather", "4x5x6xf32 2x4xi64", "4x2x4x6xf32", axis="1 : i64"), "PPPP"),
    "scatter": (lk("scatter", "4x5x6xf32 2xi64 4x2x6xf32", "4x5x6xf32", axis="1 : i64", kind='"add"'), "PP"),
    "topk": (
        lk("topk", "4x6x2xf32", "4x3x2xf32 4x3x2xi64", k="3 : i64", axis="1 : i64", largest="true", sorted="true"),
        "PP",
    ),
    "sort": (
        lk("sort", "4x6x2xf32", "4x6x2xf32 4x6x2xi64", axis="1 : i64", descending="false", stable="true"),
        "PP",
    ),
    "cumulative": (
        lk("cumulative", "4x6xf32", "4x6xf32", kind='"sum"', axis="1 : i64", exclusive="false", reverse="false"),
        "P",
    ),
    "rope": (lk("rope", "2x4x6x8xf32 1x1x6x8xf32 1x1x6x8xf32", "2x4x6x8xf32", interleaved="false"), "PPP"),
    "quantize": (
        lk(
            "quantize",
            "4x6xf32 6xf32 6xi32",
            "4x6xi8",
            **QUANTIZED,
            formula='"divide"',
            minimum="-128 : i64",
            maximum="127 : i64",
            storage="i8",
        ),
        "PP",
    ),
    "dequantize": (lk("dequantize", "4x6xi8 6xf32 6xi32", "4x6xf32", **QUANTIZED), "PP"),
    "requant": (
        lk(
            "requant",
            "4x6xi32 6xi32 6xi32 6xi32",
            "4x6xi8",
            axis="1 : i64",
            rounding='"half_even"',
            mult_bits="32 : i64",
            minimum="-128 : i64",
            maximum="127 : i64",
            unsigned_input="false",
            unsigned="false",
            storage="i8",
        ),
        "PP",
    ),
    "expand": (other("4x8xf32", "4x1x2x4xf32", EXPAND), "PP"),
    "collapse": (
        other(
            "4x1x6x2xf32",
            "4x12xf32",
            "tensor.collapse_shape %a0 [[0], [1, 2, 3]] : tensor<4x1x6x2xf32> into tensor<4x12xf32>",
        ),
        "PP",
    ),
    "cast": (other("4x6xf32", "4x6xf32", "tensor.cast %a0 : tensor<4x6xf32> to tensor<4x6xf32>"), "PP"),
    "extract_slice": (other("4x3x6xf32", "4x6xf32", EXTRACT), "PP"),
    "insert_slice": (other("4x6xf32 4x3x6xf32", "4x3x6xf32", INSERT), "PP"),
    "concat": (
        other(
            "4x6xf32 4x2xf32",
            "4x8xf32",
            "tensor.concat dim(1) %a0, %a1 : (tensor<4x6xf32>, tensor<4x2xf32>) -> tensor<4x8xf32>",
        ),
        "P",
    ),
    "pad": (other("4x6xf32", "4x9xf32", PAD), "P"),
    "transpose": (other("4x6xf32 6x4xf32", "6x4xf32", TRANSPOSE), "PP"),
    "a body that counts": (other("4x6xf32 6x4xf32", "6x4xf32", COUNTED), "P"),
    "a body that adds to its destination": (other("6xf32 4x6xf32", "4x6xf32", ADDED), "PP"),
    "a contraction": (generic("arith.addf", "0.0", *CONTRACTION), "PPS"),
    "the largest product": (generic("arith.maximumf", "0xFF800000", *CONTRACTION), "PPX"),
    "a contraction from a start": (generic("arith.addf", "1.0", *CONTRACTION), "PP"),
    "windows": (generic("arith.addf", "0.0", *WINDOW), "P"),
}
