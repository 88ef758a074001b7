"""Regions of a product and what models do behind it: a row added, gelu, a residual, a wider result."""

from __future__ import annotations

from tests.support.region_kernels import tensor

EPILOGUES = ("gelu", "residual", "wide")

_BODIES = {
    "gelu": """%z = arith.addf %x, %y : {element}
          %w = arith.extf %z : {element} to f32
          %half = arith.constant 0.5 : f32
          %root = arith.constant 0.707106769 : f32
          %one = arith.constant 1.0 : f32
          %u = arith.mulf %w, %root : f32
          %e = math.erf %u : f32
          %s = arith.addf %e, %one : f32
          %h = arith.mulf %w, %half : f32
          %g = arith.mulf %h, %s : f32
          %v = arith.truncf %g : f32 to {element}
          linalg.yield %v : {element}""",
    "residual": """%z = arith.addf %x, %y : {element}
          %v = arith.addf %z, %r : {element}
          linalg.yield %v : {element}""",
    "wide": """%z = arith.addf %x, %y : {element}
          %v = arith.extf %z : {element} to f32
          linalg.yield %v : f32""",
}


def product_with_epilogue(
    kind: str, rows: int | str, columns: int, depth: int, element: str = "bf16", *, turned: bool = False
) -> str:
    """Returns a region ``a b + row``, and then one of :data:`EPILOGUES`.

    Args:
        kind: gelu; residual: another matrix is added; wide: the result is f32.
        rows: of the result, ``"?"`` for an open extent.
        columns, depth: known ones.
        element: of all operands.
        turned: whether b is ``[columns, depth]``.
    """
    out = "f32" if kind == "wide" else element
    left, made, stored = tensor([rows, depth], element), tensor([rows, columns], element), tensor([rows, columns], out)
    right, row = tensor([columns, depth] if turned else [depth, columns], element), tensor([columns], element)
    residual = kind == "residual"
    argument, name, type_ = (f", %d: {made}", ", %d", f", {made}") if residual else ("", "", "")
    block, map_ = (f", %r: {element}", "#map, ") if residual else ("", "")
    open_ = rows == "?"
    extent = f"%zero = arith.constant 0 : index\n        %m = tensor.dim %0, %zero : {made}" if open_ else ""
    return f"""#map = affine_map<(i, j) -> (i, j)>
    #column = affine_map<(i, j) -> (j)>
    module {{
      func.func @region(%a: {left}, %b: {right}, %c: {row}{argument}) -> {stored} {{
        %0 = "lk.matmul"(%a, %b) {{accumulate = f32, transpose_lhs = false, transpose_rhs = {str(turned).lower()}}}
          : ({left}, {right}) -> {made}
        {extent}
        %empty = tensor.empty({"%m" if open_ else ""}) : {stored}
        %1 = linalg.generic {{indexing_maps = [#map, #column, {map_}#map], iterator_types = ["parallel", "parallel"]}}
            ins(%0, %c{name} : {made}, {row}{type_}) outs(%empty : {stored}) {{
        ^bb0(%x: {element}, %y: {element}{block}, %o: {out}):
          {_BODIES[kind].format(element=element)}
        }} -> {stored}
        return %1 : {stored}
      }}
    }}"""
