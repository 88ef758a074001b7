"""Nodes that are matrix products."""

from __future__ import annotations

from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    broadcast_shape,
    cast,
    permute,
    unsqueeze,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_none,
    constant_string,
    tensor_info,
)


def product(left: ir.Value, right: ir.Value) -> ir.Value:
    """Builds a product of matrices, whose leading dims broadcast, or of vectors."""
    one, other = tensor_info(left), tensor_info(right)
    shape = [*broadcast_shape(one.shape[:-2], other.shape[:-2])] if one.rank > 2 or other.rank > 2 else []
    shape += [*one.shape[-2:-1], *(other.shape[-1:] if other.rank > 1 else [])]
    return build("torch.aten.matmul", [left, right], [one.with_shape(shape).torch_type()])[0]


def matmul(node: Node) -> Results:
    """A product of matrices or vectors."""
    return [product(node.operand(0), node.operand(1))]


def gemm(node: Node) -> Results:
    """A product of matrices that may be transposed, times a factor; what has the factor 0 is not added."""
    left, right = (permute(node.operand(i), [1, 0] if node.attribute(f"trans{'AB'[i]}", 0) else [0, 1]) for i in (0, 1))
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    one, other = tensor_info(left), tensor_info(right)
    result = one.with_shape([one.shape[0], other.shape[1]])
    value = build("torch.aten.mm", [left, right], [result.torch_type()])[0]
    if alpha != 1.0:
        value = binary_scalar("mul", value, alpha)
    if node.has(2) and beta != 0.0:
        addend = node.operand(2)
        value = binary("add", value, addend if beta == 1.0 else binary_scalar("mul", addend, beta))
    return [value]


def integer_matmul(node: Node) -> Results:
    """A product of bytes less their zero points; one for each row on the left, for each column on the right."""
    parts: list[ir.Value] = []
    for index in (0, 1):
        value = cast(node.operand(index), "si32")
        if node.has(2 + index):
            point = cast(node.operand(2 + index), "si32")
            if index == 0 and tensor_info(point).rank == 1 and tensor_info(value).rank > 1:
                point = unsqueeze(point, 1)
            value = binary("sub", value, point)
        parts.append(value)
    return [product(*parts)]


def einsum(node: Node) -> Results:
    """A sum of products by letters."""
    operands, declared = node.operands(), node.declared[0]
    listed = build("torch.prim.ListConstruct", operands, [ir.Type.parse("!torch.list<vtensor>")])[0]
    if declared is None:
        raise RefusalError("ONNX knows no rank of the result")
    types = [declared.torch_type()]
    return build("torch.aten.einsum", [constant_string(node.attribute("equation", "")), listed, constant_none()], types)


RULES: dict[str, Rule] = {"Einsum": einsum, "Gemm": gemm, "MatMul": matmul, "MatMulInteger": integer_matmul}
