"""Modules as text that tests of the interpreter run."""

from __future__ import annotations

from typing import Any

import numpy as np


def elementwise(op: str, kinds: list[str], result: str) -> str:
    names = [f"%a{index}" for index in range(len(kinds))]
    arguments = ", ".join(f"{name}: tensor<?x{kind}>" for name, kind in zip(names, kinds, strict=True))
    scalars = ", ".join(f"%s{index}: {kind}" for index, kind in enumerate(kinds))
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(kinds) + 1))
    body = op
    for index in range(len(kinds)):
        body = body.replace(f"${index}", f"%s{index}")
    types = ", ".join(f"tensor<?x{kind}>" for kind in kinds)
    return f"""
      func.func @main({arguments}) -> tensor<?x{result}> {{
        %c0 = arith.constant 0 : index
        %n = tensor.dim %a0, %c0 : tensor<?x{kinds[0]}>
        %e = tensor.empty(%n) : tensor<?x{result}>
        %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
          ins({", ".join(names)} : {types}) outs(%e : tensor<?x{result}>) {{
        ^bb0({scalars}, %o: {result}):
          %v = {body}
          linalg.yield %v : {result}
        }} -> tensor<?x{result}>
        return %r : tensor<?x{result}>
      }}"""


def floats(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)
