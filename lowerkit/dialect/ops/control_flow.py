"""lk.cond and lk.while: functions of the module that run once, not at all, or again and again, as data decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.dialect.base import LkOperation, Operand, Operands, Results
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS, create_ragged, ragged_fields
from lowerkit.dialect.shapes import compatible_types, fail, ranked
from lowerkit.dialect.types import is_bool
from lowerkit.mlir import ext, ir

_PREDICATE_RUNS = 1


class CondOp(LkOperation, name="cond", traits=[ext.Pure]):
    """Runs one of two functions of the module, as a predicate decides.

    Both take the inputs and give the outputs, of the same types; equal dynamic dimensions are checked when an artifact
    is made. The function that is not chosen is not run. Functions read weights by themselves, and no states.

    Operands:
        predicate: a bool (i1) tensor of one element.
        inputs: the arguments of both functions.

    Results:
        outputs: what the chosen function returns.

    Attributes:
        then_function: the function of the module that runs where the predicate is true.
        else_function: the one that runs where it is false.

    FLOPs: unknown: they depend on the predicate.

    Bytes: operands and results, each once.
    """

    predicate: Operand
    __annotations__.update(ragged_fields("inputs", Operands, OPERAND_RUNS - _PREDICATE_RUNS))
    then_function: ir.StringAttr
    else_function: ir.StringAttr
    __annotations__.update(ragged_fields("outputs", Results, RESULT_RUNS))

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        predicate: ir.Value,
        inputs: Sequence[ir.Value],
        then_function: str,
        else_function: str,
        result_types: Sequence[ir.Type],
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> CondOp:
        """Builds the op."""
        attributes = {
            "then_function": ir.StringAttr.get(then_function),
            "else_function": ir.StringAttr.get(else_function),
        }
        return create_ragged(cls.OPERATION_NAME, inputs, result_types, attributes, first=[predicate], loc=loc, ip=ip)

    @property
    def inputs(self) -> list[ir.Value]:
        """The arguments of both functions, in order."""
        return list(self.operation.operands)[1:]

    def check(self) -> None:
        """The predicate is one bool; the functions, where they stand beside this one, take and give these types."""
        _require_one_bool("operand predicate", self.operation.operands[0].type)
        taken = [value.type for value in self.inputs]
        given = [value.type for value in self.operation.results]
        for name in ("then_function", "else_function"):
            _check_function(self.operation, name, taken, given)

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns None: they depend on the predicate."""
        return None


class WhileOp(LkOperation, name="while", traits=[ext.Pure]):
    """Runs a function of the module on its own results as long as another one says so.

    Some inputs are carried: the results of the body take their place in the next turn, and are the outputs in the end.
    The others are the same in every turn. Types and shapes of carried values never change. The condition is asked
    before each turn, so that the body may run no time at all.

    Operands:
        inputs: the initial carried values, then what stays the same; the arguments of both functions.

    Results:
        outputs: the final carried values.

    Attributes:
        condition_function: the function of the module that gives a bool (i1) tensor of one element.
        body_function: the function that gives the next carried values.

    FLOPs: unknown: they depend on the number of turns.

    Bytes: operands and results, each once.
    """

    __annotations__.update(ragged_fields("inputs", Operands, OPERAND_RUNS))
    condition_function: ir.StringAttr
    body_function: ir.StringAttr
    __annotations__.update(ragged_fields("outputs", Results, RESULT_RUNS))

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        inputs: Sequence[ir.Value],
        carried: int,
        condition_function: str,
        body_function: str,
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> WhileOp:
        """Builds the op; the first ``carried`` inputs are carried."""
        attributes = {
            "condition_function": ir.StringAttr.get(condition_function),
            "body_function": ir.StringAttr.get(body_function),
        }
        types = [value.type for value in inputs[:carried]]
        return create_ragged(cls.OPERATION_NAME, inputs, types, attributes, loc=loc, ip=ip)

    @property
    def inputs(self) -> list[ir.Value]:
        """The initial carried values, then what stays the same."""
        return list(self.operation.operands)

    def check(self) -> None:
        """Outputs are like the carried inputs; the functions, where they stand beside this one, fit."""
        taken = [value.type for value in self.operation.operands]
        given = [value.type for value in self.operation.results]
        if len(given) > len(taken) or not _all_compatible(given, taken[: len(given)]):
            fail(f"the outputs are ({_join(given)}), but the first inputs are ({_join(taken[: len(given)])})")
        _check_function(self.operation, "body_function", taken, given)
        results = _check_function(self.operation, "condition_function", taken, None)
        if results is not None:
            if len(results) != 1:
                fail(f"the condition gives {len(results)} values, expected one bool")
            _require_one_bool("the result of the condition", results[0])

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns None: they depend on the number of turns."""
        return None


def _require_one_bool(what: str, type_: ir.Type) -> None:
    tensor = ranked(what, type_)
    if not is_bool(tensor.element_type) or any(extent != 1 for extent in tensor.shape):
        fail(f"{what} must be a bool tensor of one element, found {type_}")


def _check_function(
    op: ir.Operation, attribute: str, taken: Sequence[ir.Type], given: Sequence[ir.Type] | None
) -> list[ir.Type] | None:
    """Checks a function against the types it is called with; returns what it gives.

    Types that are not builtin tensors yet (before conversion from the torch dialect), and functions of a module that
    was taken apart to run a pass on each, are not compared.
    """
    name = ir.StringAttr(op.attributes[attribute]).value
    if not name:
        fail(f"attribute {attribute} must name a function, found an empty string")
    function = _function_beside(op, name)
    if function is None:
        return None
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs, results = list(type_.inputs), list(type_.results)
    if not all(isinstance(kind, ir.RankedTensorType) for kind in (*inputs, *results)):
        return None
    if not _all_compatible(inputs, taken):
        fail(f"function @{name} takes ({_join(inputs)}), but the inputs are ({_join(taken)})")
    if given is not None and not _all_compatible(results, given):
        fail(f"function @{name} gives ({_join(results)}), but the outputs are ({_join(given)})")
    return results


def _function_beside(op: ir.Operation, name: str) -> ir.Operation | None:
    parent = op.parent
    while parent is not None and parent.name != "builtin.module":
        parent = parent.operation.parent
    if parent is None:
        return None
    functions = [inner.operation for inner in parent.operation.regions[0].blocks[0].operations]
    named = (inner for inner in functions if inner.name == "func.func")
    return next((inner for inner in named if ir.StringAttr(inner.attributes["sym_name"]).value == name), None)


def _all_compatible(one: Sequence[ir.Type], other: Sequence[ir.Type]) -> bool:
    return len(one) == len(other) and all(compatible_types(a, b) for a, b in zip(one, other, strict=True))


def _join(types: Sequence[ir.Type]) -> str:
    return ", ".join(map(str, types))
