"""A compiled program takes the sizes that the exported program takes: its conditions are in the signature."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from click.testing import CliRunner
from torch import nn
from torch.export import Dim, ExportedProgram

import lowerkit
from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.pt2.sympy_builder import guard_to_sympy
from lowerkit.capture.torch_export.symbolic.expressions import InexpressibleError, to_condition, to_expression
from lowerkit.cli.main import cli
from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.runtimes.arguments import bind_dims
from lowerkit.runtimes.conditions import holds
from lowerkit.runtimes.expressions import evaluate

AUTO: Any = Dim.AUTO


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(*arguments)


def double_if(condition: Callable[..., bool]) -> Callable[..., torch.Tensor]:
    return lambda *tensors: tensors[0] * (2 if condition(*(entry for t in tensors for entry in t.shape)) else 3)


def checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] % 3 == 0)  # pyright: ignore[reportPrivateUsage]
    return x * 2


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    dims: Any = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


N: Any = Dim("n", min=2, max=12)
CASES = {
    "remainder": Case(double_if(lambda n, _: n % 2 == 0), [(6, 4)]),
    "not remainder": Case(double_if(lambda n, _: n % 3 == 0), [(7, 4)]),
    "two dims": Case(double_if(lambda n, _, m, __: n < m), [(4, 4), (6, 4)]),
    "two dims, at most": Case(double_if(lambda n, _, m, __: n >= m), [(6, 4), (6, 5)]),
    "product": Case(double_if(lambda n, m: n * m > 20), [(6, 4)]),
    "unequal": Case(double_if(lambda n, _: n != 7), [(6, 4)]),
    "either": Case(double_if(lambda n, m: n * 3 > m + 5 or n == m), [(6, 4)]),
    "both": Case(double_if(lambda n, m: n * 3 > m + 5 and n != m), [(6, 4)]),
    "true division": Case(double_if(lambda n, m: n / 2 > m - 1), [(8, 4)]),
    "float": Case(double_if(lambda n, _: int(n * 0.5) == 3), [(7, 4)]),
    "maximum": Case(double_if(lambda n, m: max(n, 2 * m) - n % 3 == 8), [(6, 4)]),
    "check": Case(checked, [(6, 4)]),
    "check, deferred": Case(checked, [(6, 4)], options={"prefer_deferred_runtime_asserts_over_guards": True}),
    "equal dims": Case(lambda x, y: x + y, [(6, 4), (6, 4)]),
    "derived dim": Case(lambda x, y: torch.cat([x, y], 0), [(3, 4), (6, 4)], ({0: N}, {0: 2 * N})),
    "fixed dim": Case(lambda x: x.view(-1, 4) + 1, [(6, 4)]),
    "halves": Case(lambda x: torch.mul(*x.chunk(2, 0)), [(6, 4)]),
    "view": Case(lambda x: x.view(3, -1) + 1, [(6, 4)]),
    "position": Case(lambda x: x.select_scatter(x[0, 0].expand(x.shape[0]), -1, 3), [(6, 4)]),
    "position from the end": Case(lambda x: x.select_scatter(x[0, 0].expand(x.shape[1]), 0, -6), [(6, 4)]),
    "written value": Case(lambda x, y: x.select_scatter(y[0], 0, 1), [(4, 6), (3, 6)]),
    "written diagonal": Case(lambda x, y: x.diagonal_scatter(y[0], -1), [(6, 4), (2, 4)]),
    "added rows": Case(lambda x, y: x.index_add(0, torch.tensor([1, 0]), y[:2]), [(4, 6), (3, 6)]),
    "pieces": Case(lambda x: x.split(4, 0)[-1] + 1, [(9, 4)]),
}


EXTENTS = (2, 3, 4, 6, 7, 9, 12)
FEW_EXTENTS = (4, 6, 7)


def export(case: Case) -> ExportedProgram:
    torch.manual_seed(0)
    tensors = tuple(torch.randn(shape) for shape in case.shapes)
    dims = case.dims if case.dims is not None else tuple(dict.fromkeys(range(t.dim()), AUTO) for t in tensors)
    return torch.export.export(Function(case.function), tensors, dynamic_shapes=(dims,), **case.options)


def reloaded(exported: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file)


def accepts(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (RuntimeFault, AssertionError, RuntimeError, IndexError):
        return False
    return True


def offered(case: Case) -> Iterator[Sequence[tuple[int, int]]]:
    """Yields shapes for the tensors of a case: all rows with each other, and beside a second tensor few columns."""
    several = len(case.shapes) > 1
    rows, columns = EXTENTS, FEW_EXTENTS if several else EXTENTS
    for extents in itertools.product(*(rows, columns) * len(case.shapes)):
        shapes = list(zip(extents[::2], extents[1::2], strict=True))
        if not several or len({shape[1] for shape in shapes} | {case.shapes[0][1]}) < 3:
            yield shapes


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_taken_that_the_exported_program_takes(name: str) -> None:
    """From memory and from a file: there the conditions are texts."""
    case = CASES[name]
    exported = export(case)
    judge = exported.module()
    signatures = [capture_exported(exported).signature, capture_exported(reloaded(exported)).signature]
    taken = 0
    for shapes in offered(case):
        tensors = [torch.zeros(shape) for shape in shapes]
        arrays = [tensor.numpy() for tensor in tensors]
        expected = accepts(lambda tensors=tensors: judge(*tensors))
        for signature in signatures:
            assert accepts(lambda s=signature, arrays=arrays: bind_dims(s, arrays)) == expected, shapes
        taken += expected
    assert taken, "no size was taken: the comparison says nothing"


def test_a_pt2_on_the_command_line_refuses_in_the_words_of_the_user(tmp_path: Path) -> None:
    exported = export(CASES["remainder"])
    torch.export.save(exported, tmp_path / "model.pt2")
    result = CliRunner().invoke(cli, ["compile", str(tmp_path / "model.pt2"), "-o", str(tmp_path / "model.lk")])
    assert result.exit_code == 0, result.output
    session = lowerkit.load(tmp_path / "model.lk")
    assert session.manifest.features == ["guards"]
    x = np.ones((8, 4), np.float32)
    np.testing.assert_array_equal(session.run(x)[0], x * 2)
    with pytest.raises(RuntimeFault) as caught:
        session.run(x[:7])
    assert caught.value.code == "LK8004"
    assert "arguments_0_0 % 2 == 0: arguments_0_0 is 7 (input 'arguments_0', axis 0)" in str(caught.value)
    inspected = CliRunner().invoke(cli, ["inspect", str(tmp_path / "model.lk")])
    assert "only if arguments_0_0 % 2 == 0" in inspected.output


def test_the_line_that_decided_is_named() -> None:
    signature = capture_exported(export(CASES["product"])).signature
    (guard,) = signature.guards
    assert guard.location.startswith(f"{__file__}:")
    with pytest.raises(RuntimeFault, match=r"20 < arguments_0_. \* arguments_0_.: .*, at .*test_guards\.py:"):
        bind_dims(signature, [np.zeros((4, 4), np.float32)])


def test_a_condition_that_cannot_be_expressed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="cannot be checked at a call") as caught:
        capture_exported(export(Case(double_if(lambda n, _: int(n * 0.29) == 1), [(6, 4)])))  # 100 * 0.29 is below 29
    assert caught.value.code == "LK4002"


def test_assertions_on_values_are_counted_in_a_remark() -> None:
    def checks_values(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async.msg(x.min() > -100, "no")
        return x * 2

    program = capture_exported(export(Case(checks_values, [(6, 4)])))
    (remark,) = program.remarks
    assert "1 assertions on the values of tensors are not checked" in remark


HOSTILE = [
    "__import__('os').system('true') == 0",
    "L['x'].size()[0].__class__ == 0",
    "L['x'].size()[L['x']] == 0",
    "[1][0] == 1",
    "(lambda: 1)() == 1",
    "open('x') == 1",
    "math.factorial(10) == 1",
    "(9 ** 16) ** 16 == 1",
    "2 ** L['x'].size()[0] == 1",
    "L['x'].size()[7] == 1",
    "L['z'].size()[0] == 1",
    "L['x'] == 1",
    "L['x'].size()[0]",
    "'a' == 'a'",
    "1 in (1, 2)",
    "L['x'].size()[0] // 0 == 1",
    "(" * 500 + "1" + ")" * 500 + " == 1",
    "-" * 5000 + "1 == 1",
    "1 + " * 6000 + "1 == 1",
    "",
    "\0 == 1",
    "x := 1",
    "f'{1}' == 1",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_that_are_no_conditions_on_sizes_are_refused(text: str) -> None:
    shapes: dict[tuple[str | int, ...], tuple[Any, ...]] = {
        ("x",): (sympy.Symbol("s0", integer=True, positive=True), 4)
    }
    with pytest.raises(ValueError, match=r"\S"):
        guard_to_sympy(text, lambda source: shapes[source.path][source.axis] if source.measure == "size" else {}[0])


def test_conditions_are_pythons() -> None:
    n = sympy.Symbol("s0", integer=True, positive=True)

    sizes: dict[tuple[str | int, ...], Any] = {("x",): [n], ("rest", 1, "y"): [3, 3, 7]}

    for text, true_at in {
        "2 <= L['x'].size()[0] <= 5": range(2, 6),
        "3 < L['x'].size()[0] != 5 < 8": (4, *range(6, 12)),
        "(L['x'].size()[0] - 9) % 4 == 3": range(4, 12, 4),
        "not (L['x'].size()[0] // 3 == 1 or L['x'].size()[0] ** 2 < 4)": (2, *range(6, 12)),
        "max(L['x'].size()[0], L['rest'][1]['y'].size()[2]) == 7": range(1, 8),
        "math.floor(L['x'].size()[0] / 2) >= 5 and True": (10, 11),
    }.items():
        condition = to_condition(guard_to_sympy(text, lambda source: sizes[source.path][source.axis]), lambda _: "n")
        assert not isinstance(condition, bool)
        assert [value for value in range(1, 12) if holds(condition, {"n": value})] == list(true_at), text


EXPRESSIONS: list[tuple[Callable[[Any], Any], Callable[[int], int]]] = [
    (lambda s: torch.sym_int(s * 0.5 + 1.25), lambda s: int(s * 0.5 + 1.25)),
    (lambda s: torch.sym_int(s / 3), lambda s: int(s / 3)),
    (lambda s: torch.sym_int((s - 9) / 2), lambda s: int((s - 9) / 2)),
    (lambda s: (s * s + 3) // (s + 1), lambda s: (s * s + 3) // (s + 1)),
    (lambda s: torch.sym_max(s, 7) - torch.sym_min(2 * s, 9), lambda s: max(s, 7) - min(2 * s, 9)),
    (lambda s: (s - 5) % 3, lambda s: (s - 5) % 3),
    (lambda s: abs(s - 8), lambda s: abs(s - 8)),
]


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_expressions_have_the_value_that_python_gives(number: int) -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    symbolic, plain = EXPRESSIONS[number]
    symbol = torch.export.export(
        Function(lambda x: x * 2), (torch.randn(6),), dynamic_shapes=(({0: AUTO},),)
    ).graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]  # fmt: skip
    assert isinstance(symbol.node.shape_env, ShapeEnv)
    found = to_expression(symbolic(symbol).node.expr, lambda _: "s")
    for value in range(2, 40):
        assert evaluate(found, {"s": value}) == plain(value), value


def test_relations_of_fractions_are_exact() -> None:
    s = sympy.Symbol("s", integer=True, positive=True)
    half = to_condition(s / 2 < sympy.Rational(7, 3), lambda _: "s")
    assert not isinstance(half, bool)
    assert [holds(half, {"s": value}) for value in (4, 5)] == [True, False]
    with pytest.raises(InexpressibleError):
        to_condition(sympy.sqrt(s) < 3, lambda _: "s")


def test_numbers_beyond_any_extent_decide() -> None:
    """A slice to the end is one to the largest integer, and tracing adds to it."""
    s, t = (sympy.Symbol(name, integer=True, positive=True) for name in "st")
    assert to_condition(s - 1 <= 2**63 - s, lambda _: "s") is True
    assert to_condition(sympy.Eq(2 * s + t, 2**64), lambda _: "s") is False
    assert to_condition(3 * s > 2**62 + t, lambda _: "s") is False
    for relation in (s * t < 2**64, 100 * s < 2**64, sympy.Max(s, 2**64) > t):
        with pytest.raises(InexpressibleError):
            to_condition(relation, lambda _: "s")
    with pytest.raises(InexpressibleError):
        to_expression(s * 2**40 * 2**40, lambda _: "s")


ZERO: Any = Dim("n", min=0, max=64)
NEEDED: dict[str, tuple[Callable[..., Any], Sequence[int]]] = {
    # what is computed of x [n, 4]; the sizes among 0, 1, 2, 3, 7 that eager takes
    "first": (lambda x: x[0], (1, 2, 3, 7)),
    "last": (lambda x: x[-1], (1, 2, 3, 7)),
    "second": (lambda x: x[1], (2, 3, 7)),
    "second from the end": (lambda x: x.select(0, -2), (2, 3, 7)),
    "topk": (lambda x: x.topk(2, 0), (2, 3, 7)),
    "kthvalue": (lambda x: x.kthvalue(2, 0), (2, 3, 7)),
    "amax": (lambda x: x.amax(0), (1, 2, 3, 7)),
    "amax of all": (torch.amax, (1, 2, 3, 7)),
    "amax beside": (lambda x: x.amax(1), (0, 1, 2, 3, 7)),
    "amin": (lambda x: x.amin((0, 1)), (1, 2, 3, 7)),
    "aminmax": (lambda x: torch.aminmax(x, dim=0), (1, 2, 3, 7)),
    "max": (lambda x: x.max(0), (1, 2, 3, 7)),
    "max of all": (torch.max, (1, 2, 3, 7)),
    "argmin": (lambda x: x.argmin(0), (1, 2, 3, 7)),
    "argmax of all": (torch.argmax, (1, 2, 3, 7)),
    "median": (lambda x: x.median(0), (1, 2, 3, 7)),
    "quantile": (lambda x: x.quantile(0.3, 0), (1, 2, 3, 7)),
    "norm of infinite order": (lambda x: x.norm(float("inf"), 0), (1, 2, 3, 7)),
    "norm of negative order": (lambda x: torch.linalg.vector_norm(x, -1), (1, 2, 3, 7)),
    "norm": (lambda x: torch.linalg.vector_norm(x), (0, 1, 2, 3, 7)),
    "sum": (lambda x: x.sum(0), (0, 1, 2, 3, 7)),
    "adaptive pool": (lambda x: nn.functional.adaptive_avg_pool1d(x.t()[None], 3), (1, 2, 3, 7)),
    "resizing": (lambda x: nn.functional.interpolate(x.t()[None], size=3, mode="linear"), (1, 2, 3, 7)),
    "nearest": (lambda x: nn.functional.interpolate(x.t()[None], size=3), (1, 2, 3, 7)),
    "border": (lambda x: nn.functional.pad(x.t()[None], (3, 1), mode="replicate"), (1, 2, 3, 7)),
    "reflection": (lambda x: nn.functional.pad(x.t()[None], (0, 1), mode="reflect"), (2, 3, 7)),
    "reflection of a plane": (lambda x: nn.functional.pad(x[None], (1, 1, 1, 0), mode="reflect"), (2, 3, 7)),
    "written slice": (lambda x: x.slice_scatter(torch.zeros(2, 4), 0, 1, 3), (3, 7)),
    "written slice from the end": (lambda x: x.slice_scatter(torch.zeros(2, 4), 0, -2), (2, 3, 7)),
    "written steps": (lambda x: x.slice_scatter(torch.zeros(3, 4), 0, 1, None, 2), (7,)),
}
STRICTER: dict[str, tuple[Callable[..., Any], Sequence[int]]] = {
    # refused although eager takes the size: an extent of the result is ``n - 1`` to tracing
    "trapezoids": (lambda x: torch.trapezoid(x, dim=0), (1, 2, 3, 7)),
    "median of all": (torch.median, (1, 2, 3, 7)),
    "trace": (torch.trace, (1, 2, 3, 7)),
}


@pytest.mark.parametrize("name", [*NEEDED, *STRICTER])
def test_sizes_that_leave_too_few_elements_are_refused(name: str) -> None:
    function, sizes = (NEEDED | STRICTER)[name]
    compiled: Any = lowerkit.compile(Function(function), (torch.randn(7, 4),), dynamic_shapes=(({0: ZERO},),))
    for size in (0, 1, 2, 3, 7):
        x = torch.randn(size, 4)
        assert accepts(lambda x=x: compiled(x)) == (size in sizes), size
        if name in NEEDED:
            assert accepts(lambda x=x: function(x)) == (size in sizes), f"eager, {size}"


ROWS = torch.tensor([0, 1])
WRITTEN: dict[str, tuple[Callable[[torch.Tensor], Any], Sequence[tuple[int, int]]]] = {
    "rows": (lambda x: torch.index_put(x, (ROWS,), torch.ones(1, 4)), [(5, 4), (2, 4), (7, 4)]),
    "rows of one number": (lambda x: torch.index_put(x, (ROWS,), torch.ones(2, 1)), [(5, 4), (2, 3), (7, 5)]),
    "two lists": (lambda x: torch.index_put(x, (ROWS, ROWS), torch.ones(2)), [(5, 4), (2, 3), (7, 5)]),
    "a list behind": (lambda x: _written(x, (slice(None), ROWS), torch.ones(5, 2)), [(5, 4), (5, 3)]),
    "lists around": (
        lambda x: _written(x[None].repeat(2, 1, 1), (ROWS, slice(None), ROWS), x[:2, 0]),
        [(2, 4), (2, 3)],
    ),
    "what is open": (lambda x: torch.index_put(torch.zeros(3, 4), (ROWS,), x[:2]), [(5, 4), (2, 4)]),
    "a mask": (lambda x: torch.index_put(x, (x > 0,), torch.tensor(2.0)), [(5, 4), (2, 3)]),
}
OFFERED = [(5, 4), (2, 4), (7, 4), (2, 3), (5, 3), (7, 5)]


def _written(x: torch.Tensor, where: Any, values: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[where] = values
    return y


@pytest.mark.parametrize("name", WRITTEN)
def test_what_index_lists_write_fits_the_places(name: str) -> None:
    """torch's account of ``index_put`` does not compare them: a program would read beyond the values."""
    function, expected = WRITTEN[name]
    example = expected[0]
    dynamic = (({0: AUTO, 1: AUTO},),)
    compiled: Any = lowerkit.compile(Function(function), (torch.randn(*example),), dynamic_shapes=dynamic)
    for shape in OFFERED:
        x = torch.randn(*shape)
        if shape in expected:
            np.testing.assert_array_equal(compiled(x), function(x).numpy())
        elif not accepts(lambda x=x: function(x)):
            assert not accepts(lambda x=x: compiled(x)), shape


def test_a_resize_that_once_asked_whether_its_scale_is_one_takes_all_sizes() -> None:
    """PyTorch's own decomposition compares ``(n - 1) / 2`` with one; the taps by extents ask nothing."""
    model = Function(
        lambda x: nn.functional.interpolate(x, (3, 3), mode="bilinear", align_corners=True, antialias=True)
    )
    compiled: Any = lowerkit.compile(model, (torch.randn(2, 1, 10, 3),), dynamic_shapes=(({2: AUTO},),))
    for extent in (2, 3, 4, 7, 12):
        x = torch.randn(2, 1, extent, 3)
        np.testing.assert_allclose(compiled(x), model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_dim_that_inputs_have_only_in_an_expression() -> None:
    """``2 * Dim("half")``: the program takes even extents, and tells the dim from them."""

    def halves(x: torch.Tensor) -> list[torch.Tensor]:
        half = x.shape[0] // 2
        return [torch.cat([-x[half:], x[:half]]) * x, x.view(-1, 2, 3).sum(1)]

    extents = ({0: 2 * Dim("half", min=2, max=20)},)
    exported = torch.export.export(Function(halves), (torch.randn(8, 3),), dynamic_shapes=(extents,))
    compiled = lowerkit.compile(exported)
    for size in (4, 10, 40):
        x = torch.randn(size, 3)
        for ours, eager in zip(compiled.session.run(x), halves(x), strict=True):
            np.testing.assert_allclose(ours, eager.numpy(), rtol=1e-6)
    for size, said in ((5, "5 is no value of"), (42, "is 21 .* its range is 2..20")):
        with pytest.raises(RuntimeFault, match=said):
            compiled.session.run(torch.randn(size, 3))
