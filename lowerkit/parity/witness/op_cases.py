"""What a distinct op is run on: drawn values, other extents of its open dims, and special values.

Values are drawn until eager takes them: numbers of both signs, then places in every operand, then ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.special_values import special_inputs
from lowerkit.parity.witness.distinct_op import LoneOp
from lowerkit.parity.witness.op_domains import fitting
from lowerkit.program.dtypes import to_numpy, to_torch
from lowerkit.runtimes.manifest import Signature

_STYLES = ("numbers", "places", "ones")


@dataclass(frozen=True)
class OpCase:
    """One set of inputs.

    Attributes:
        kind: ``values``, ``extents`` or ``special``.
        text: what they are.
        inputs: arrays in the order of the op's operands.
    """

    kind: str
    text: str
    inputs: list[Array]

    @property
    def has_ties(self) -> bool:
        """Whether values may be equal."""
        return self.kind == "special"


def drawn(op: LoneOp, sizes: dict[str, int] | None = None, seed: int = 0) -> list[torch.Tensor] | None:
    """Returns values that eager takes; None where it takes none that were tried."""
    for style in _STYLES:
        tensors = fitting(op.name, _values(op, op.shapes(sizes), style, seed))
        if _is_taken(op, tensors):
            return tensors
    return None


def _is_taken(op: LoneOp, tensors: Sequence[torch.Tensor]) -> bool:
    try:
        with torch.no_grad():
            op.call(tensors)
    except Exception:  # torch raises what it likes
        return False
    return True


def _values(op: LoneOp, shapes: Sequence[tuple[int, ...]], style: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    limit = max(1, min([extent for shape in shapes for extent in shape], default=1))
    found: list[torch.Tensor] = []
    for operand, shape in zip(op.operands, shapes, strict=True):
        dtype = operand.dtype
        if style == "ones":
            found.append(torch.ones(shape, dtype=dtype))
        elif dtype == torch.bool:
            found.append(torch.rand(shape, generator=generator) < 0.5)
        elif dtype.is_floating_point:
            found.append((2 * torch.randn(shape, generator=generator)).to(dtype))
        elif style == "places":
            found.append(torch.randint(0, limit, shape, generator=generator).to(dtype))
        else:
            low, high = max(torch.iinfo(dtype).min, -300), min(torch.iinfo(dtype).max, 300)
            found.append(torch.randint(low, high + 1, shape, generator=generator).to(dtype))
    return found


def cases_of(op: LoneOp, example: Sequence[torch.Tensor], signature: Signature) -> Iterator[OpCase]:
    """Yields the cases of an op.

    Args:
        op: the op.
        example: values that eager takes, at the sizes of the example.
        signature: of the op as a model of its own.
    """
    arrays = [to_numpy(tensor) for tensor in example]
    yield OpCase("values", "drawn values", arrays)
    for text, sizes in _other_sizes(op):
        tensors = _values(op, op.shapes(sizes), "numbers", 1)
        tensors = drawn(op, sizes, 1) or tensors  # what eager refuses at these extents, ours must not compute
        yield OpCase("extents", text, [to_numpy(tensor) for tensor in tensors])
    if any(array.size for array in arrays):
        for case in special_inputs(signature, arrays):
            given = [to_torch(np.array(array)) for array in case.inputs]
            yield OpCase("special", case.name, [to_numpy(tensor) for tensor in fitting(op.name, given)])


def _other_sizes(op: LoneOp) -> Iterator[tuple[str, dict[str, int]]]:
    for name, (value, low, high) in op.sizes.items():
        for other in dict.fromkeys((0, 1, 2, 3, value - 1, value + 1, 2 * value)):
            if other != value and other >= low and (high is None or other <= high):
                yield f"{name}={other}", {name: other}
