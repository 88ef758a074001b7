"""The lk dialect object and what each of its op classes states.

``dialects.ext`` turns annotated fields of a class into an IRDL op definition. :class:`LkOperation` adds what the
contract with hardware needs on top: a shape rule over Python values, a verifier with readable messages, a generic
builder, and the hooks for the numpy reference, the lowering to linalg and the cost.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from lowerkit.dialect.attributes import attribute_kind_name, from_attribute, to_attribute
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.linalg_builder import cast
from lowerkit.dialect.reference.numeric import Array, round_to
from lowerkit.dialect.shapes import compatible_types, fail
from lowerkit.dialect.types import numpy_dtype, tensor_bytes
from lowerkit.errors import LowerkitError, VerifyError
from lowerkit.mlir import ext, ir

Operand: TypeAlias = ext.Operand[Any]
OptionalOperand: TypeAlias = ext.Operand[Any] | None
Operands: TypeAlias = Sequence[ext.Operand[Any]]
Result: TypeAlias = ext.Result[Any]
Results: TypeAlias = Sequence[ext.Result[Any]]


_NO_ATTRIBUTES: dict[str, type[ir.Attribute]] = {}


class Lk(ext.Dialect, name="lk"):  # pyright: ignore[reportGeneralTypeIssues, reportCallIssue]
    """The contract with hardware: ops that an accelerator's engineers recognise."""


class LkOperation(Lk.Operation):
    """Base of every op of the dialect.

    A subclass declares its operands, attributes and results as annotated fields and gives:

    - ``infer_result_types(*operand_types, **parameters)``, the shape rule. It takes types and Python values, so
      that a pass can ask for the result of an op that does not exist yet, and raises ``VerifyError`` with both
      sides of a mismatch;
    - ``build(...)``, the typed builder;
    - ``reference``, ``build_linalg``, ``flops`` and, where moving each operand once is not the truth,
      ``bytes_moved``.
    """

    # Not annotated: `ext` takes every annotation of this class for a field.
    attribute_kinds = _NO_ATTRIBUTES
    """The attribute class of each attribute field."""

    optional_kinds = _NO_ATTRIBUTES
    """The attribute class of each attribute that an op has in some of its forms only."""

    infers_results = True
    """False for ops such as weight whose result types are stated, not derived."""

    @classmethod
    def __init_subclass__(cls, *, name: str | None = None, traits: list[type] | None = None, **keywords: Any) -> None:
        # `ext` wants evaluated hints of fields only, and cannot state a constraint for the attribute classes that
        # have no name of their own (bool, dense arrays): those kinds are checked by our verifier.
        hints = typing.get_type_hints(cls)
        own = inspect.get_annotations(cls)
        fields = {key: hints[key] for key in own if typing.get_origin(hints[key]) is not ClassVar}
        kinds = {key: hint for key, hint in fields.items() if isinstance(hint, type) and issubclass(hint, ir.Attribute)}
        cls.attribute_kinds = kinds
        cls.__annotations__ = {key: Any if key in kinds else hint for key, hint in fields.items()}
        super().__init_subclass__(name=name, traits=traits, **keywords)
        if name is not None:
            cls._relax_segment_accessors()

    @classmethod
    def _relax_segment_accessors(cls) -> None:
        """Lets one variadic or optional field be read where parsed text has no segment sizes attribute."""
        operands, _, results, _ = ext.partition_fields(cls._fields)
        for fields, values in ((operands, "operands"), (results, "results")):
            open_fields = [index for index, field in enumerate(fields) if field.variadicity != ext.Variadicity.single]
            if len(open_fields) != 1:
                continue
            for index, field in enumerate(fields):
                setattr(cls, field.name, _single_segment_property(values, index, open_fields[0], fields))

    # Shape rule and verifier.

    @classmethod
    def infer_result_types(cls, *operand_types: Any, **parameters: Any) -> list[ir.Type]:
        """Returns the result types of the op for these operand types and Python attribute values.

        Raises:
            VerifyError: the operands and parameters do not fit together.
        """
        raise NotImplementedError(f"{cls.OPERATION_NAME} states its result types itself")

    def parameters(self) -> dict[str, Any]:
        """Returns the attributes as Python values: int, float, bool, str, list or ir.Type."""
        attributes = self.operation.attributes
        present = [*self.attribute_kinds, *(name for name in self.optional_kinds if name in attributes)]
        return {name: from_attribute(attributes[name]) for name in present}

    def operand_types(self) -> list[Any]:
        """Returns one type per operand field; None for an absent operand, a list for a variadic field."""
        operands, _, _, _ = ext.partition_fields(self._fields)
        return [_type_of(getattr(self, field.name)) for field in operands]

    def check(self) -> None:
        """Raises ``VerifyError`` if the op does not fit together. Overridden by ops with further rules."""
        if not self.infers_results:
            return
        expected = type(self).infer_result_types(*self.operand_types(), **self.parameters())
        actual = [result.type for result in self.operation.results]
        for index, (wanted, found) in enumerate(zip(expected, actual, strict=True)):
            if not compatible_types(wanted, found):
                fail(f"result {index} has type {found}, but the operands and attributes give {wanted}")

    @classmethod
    def verify_invariants(cls, op: Any) -> bool:
        """The verifier hook of MLIR: emits one diagnostic at the op's location and returns whether the op is valid."""
        operation = op.operation
        try:
            for name, kind in {**cls.attribute_kinds, **cls.optional_kinds}.items():
                if name not in operation.attributes:
                    if name in cls.optional_kinds:
                        continue
                    fail(f"attribute {name} is missing; it must be {attribute_kind_name(kind)}")
                attribute = operation.attributes[name]
                if not isinstance(attribute, kind):
                    fail(f"attribute {name} must be {attribute_kind_name(kind)}, found {attribute}")
            operation.opview.check()
        except LowerkitError as error:
            operation.location.emit_error(f"'{operation.name}' op {error.message}")
            return False
        except Exception as error:  # an exception must not unwind through the C++ pass manager
            operation.location.emit_error(f"'{operation.name}' op verifier failed: {type(error).__name__}: {error}")
            return False
        return True

    # Building.

    @classmethod
    def create(
        cls,
        operands: Mapping[str, Any],
        parameters: Mapping[str, Any],
        *,
        result_types: Sequence[ir.Type] | None = None,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> Any:
        """Builds the op from named operands and Python attribute values; infers result types that are not given.

        Raises:
            VerifyError: the operands and parameters do not fit together.
        """
        operands = {name: _as_value(operand) for name, operand in operands.items()}
        try:
            if result_types is None:
                types = [_type_of(operand) for operand in operands.values()]
                result_types = cls.infer_result_types(*types, **parameters)
            kinds = {**cls.attribute_kinds, **cls.optional_kinds}
            attributes = {name: to_attribute(kinds[name], name, value) for name, value in parameters.items()}
        except VerifyError as error:
            place = loc if loc is not None else ir.Location.current
            raise VerifyError(
                error.code, error.message, op=cls.OPERATION_NAME, location=str(place), hint=error.hint
            ) from None
        # Not through the class's own `__init__`: `ext` takes an attribute that is false for a missing one.
        operand_fields, _, _, region_fields = ext.partition_fields(cls._fields)
        groups = [_as_group(operands[field.name]) for field in operand_fields]
        if sum(field.variadicity != ext.Variadicity.single for field in operand_fields) > 1:
            attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([len(group) for group in groups])
        operation = ir.Operation.create(
            cls.OPERATION_NAME,
            results=list(result_types),
            operands=[operand for group in groups for operand in group],
            attributes=attributes,
            regions=len(region_fields),
            loc=loc,
            ip=ip,
        )
        return operation.opview

    # Meaning.

    def reference(self, *arrays: Any, **keywords: Any) -> tuple[Array, ...]:
        """Computes the results in numpy: one array per operand field, None for an absent optional operand."""
        raise NotImplementedError(f"{self.OPERATION_NAME} has no numpy reference: it is not a computing op")

    def rounded(self, *arrays: Array) -> tuple[Array, ...]:
        """Returns arrays rounded to the element types of the results."""
        results = self.operation.results
        return tuple(
            round_to(array, numpy_dtype(result.type.element_type))
            for array, result in zip(arrays, results, strict=True)
        )

    def to_linalg(self) -> list[ir.Value]:
        """Builds the same computation as linalg, tensor, arith, math and scf ops before this op.

        The op itself stays where it is; the caller replaces its results by the returned values and erases it.
        """
        with ir.InsertionPoint(self.operation), self.operation.location:
            values = self.build_linalg()
            # Lowerings derive types from sizes; the op may know less of its shape, or more.
            results = self.operation.results
            return [cast(value, result.type) for value, result in zip(values, results, strict=True)]

    def build_linalg(self) -> list[ir.Value]:
        """Builds the lowering at the current insertion point. Implemented by each computing op."""
        raise NotImplementedError(f"{self.OPERATION_NAME} has no lowering to linalg: it is not a computing op")

    # Cost.

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns the number of arithmetic operations, or None where a dimension is dynamic."""
        return 0

    def bytes_moved(self) -> int | None:
        """Returns the bytes read and written when each operand and result moves once; None for dynamic shapes."""
        sizes = [tensor_bytes(value.type) for value in (*self.operation.operands, *self.operation.results)]
        return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def _as_value(operand: Any) -> Any:
    """Accepts an op with one result in place of its value."""
    if operand is None or isinstance(operand, ir.Value):
        return operand
    if isinstance(operand, (ir.OpView, ir.Operation)):
        return operand.result
    return [_as_value(item) for item in operand]


def _as_group(operand: Any) -> list[Any]:
    if operand is None:
        return []
    return [operand] if isinstance(operand, ir.Value) else list(operand)


def _type_of(value: Any) -> Any:
    if value is None:
        return None
    return value.type if isinstance(value, ir.Value) else [item.type for item in value]


def _single_segment_property(values: str, index: int, open_index: int, fields: Sequence[Any]) -> property:
    def getter(self: Any) -> Any:
        items = list(getattr(self.operation, values))
        after = len(fields) - 1 - open_index
        if index < open_index:
            return items[index]
        if index > open_index:
            return items[index - len(fields)]
        segment = items[open_index : len(items) - after]
        if fields[index].variadicity == ext.Variadicity.variadic:
            return segment
        return segment[0] if segment else None

    return property(getter)
