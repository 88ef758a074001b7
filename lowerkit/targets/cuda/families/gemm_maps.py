"""Operands of a product as the TMA unit loads them: tensors of two dims, or three where each product of a batch has its
own.

The elements along one of the two dims lie side by side; the bytes between those along any other are a multiple of 16.
Either dim may be the depth: tensor cores read 16-bit elements both ways.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from lowerkit.runtimes.cuda.tensor_maps import TensorMap
from lowerkit.targets.cuda.families.gemm_problem import Gemm
from lowerkit.targets.cuda.model.tma_tiles import TMA_ELEMENTS
from lowerkit.targets.cuda.triton.scalars import POINTERS
from lowerkit.targets.cuda.triton.tensors import Tensor, element_bytes
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product

_ALIGNED = 16  # bytes


@dataclass(frozen=True)
class DescribedOperand:
    """An operand ``[outer, inner]``.

    Attributes:
        map: the tensor.
        element: in Triton's words.
        turned: whether its dims lie the other way round in memory: the inner one of the product is not that whose
            elements lie side by side.
        batched: whether each product of the batch has its own.
    """

    map: TensorMap
    element: str
    turned: bool
    batched: bool

    def descriptor(self, outer: int, inner: int) -> str:
        """Returns the type of a descriptor whose boxes have ``outer x inner`` elements."""
        sizes = (inner, outer) if self.turned else (outer, inner)
        box = ", ".join(map(str, (*((1,) if self.batched else ()), *sizes)))
        return f"tensordesc<{self.element}[{box}]>"

    def load(self, name: str, batch: str, at: tuple[str, str], box: tuple[int, int]) -> str:
        """Returns the text that loads a box.

        Args:
            name: of the descriptor.
            batch: the number of the product, in 32 bits.
            at: the first coordinates, outer and inner, in 32 bits.
            box: outer and inner sizes.
        """
        sizes, places = (box[::-1], at[::-1]) if self.turned else (box, at)
        text = f"{name}.load([{', '.join((*((batch,) if self.batched else ()), *places))}])"
        if self.batched:
            text += f".reshape({sizes[0]}, {sizes[1]})"
        return f"{text}.T" if self.turned else text


@dataclass(frozen=True)
class DescribedGemm:
    """Both operands: ``a`` is ``[rows, depth]``, ``b`` is ``[depth, columns]``."""

    a: DescribedOperand
    b: DescribedOperand


def describe(problem: Gemm) -> DescribedGemm | Refusal:
    """Returns the operands of a product as the TMA unit loads them, or why it cannot."""
    if problem.a.element not in TMA_ELEMENTS:
        return Refusal(f"the TMA unit would load elements of {problem.a.element}")
    a = _operand(problem, problem.a, problem.a_batch, (problem.rows, problem.depth), problem.a_strides)
    if isinstance(a, Refusal):
        return a
    b = _operand(problem, problem.b, problem.b_batch, (problem.depth, problem.columns), problem.b_strides)
    return b if isinstance(b, Refusal) else DescribedGemm(a, b)


def _operand(
    problem: Gemm,
    tensor: Tensor,
    batch: tuple[KernelExpr, ...],
    sizes: tuple[KernelExpr, KernelExpr],
    strides: tuple[KernelExpr, KernelExpr],
) -> DescribedOperand | Refusal:
    item = element_bytes(tensor.element)
    turned = strides[1] != 1
    if turned and strides[0] != 1:
        return Refusal("the elements of an operand lie side by side along neither dim")
    inner, outer = sizes if turned else sizes[::-1]
    step = strides[1] if turned else strides[0]
    extents, steps = [inner, outer], [step]
    apart = [(size, stride) for size, stride in zip(problem.batch, batch, strict=True) if size != 1]
    if any(stride != 0 for _, stride in apart):
        if not _continues(apart):
            return Refusal("the matrices of an operand do not follow one another")
        extents.append(product([size for size, _ in apart]))
        steps.append(apart[-1][1])
    if not all(_divides(_ALIGNED // item, each) for each in (*steps, tensor.offset)):
        return Refusal(f"rows of an operand do not begin at multiples of {_ALIGNED} bytes")
    described = TensorMap(
        tensor.pointer,
        extents,
        [expression("mul", each, item) for each in steps],
        expression("mul", tensor.offset, item),
    )
    return DescribedOperand(described, POINTERS[tensor.element], turned, len(extents) > 2)


def _continues(batch: list[tuple[KernelExpr, KernelExpr]]) -> bool:
    """Whether one stride leads from each matrix of a batch to the next."""
    return all(
        stride == expression("mul", inner_stride, inner)
        for (_, stride), (inner, inner_stride) in itertools.pairwise(batch)
    )


def _divides(by: int, size: KernelExpr) -> bool:
    """Whether a size is known to be a multiple."""
    if isinstance(size, int):
        return size % by == 0
    operation, *parts = size
    if operation == "mul":
        return any(_divides(by, part) for part in parts if not isinstance(part, str))
    return operation in ("add", "sub") and all(_divides(by, part) for part in parts if not isinstance(part, str))
