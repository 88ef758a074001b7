"""From sympy's expressions over shape symbols to the expressions and conditions of the signature.

Values are carried as fractions with a positive integer below, so that ``s * 0.5 + 1`` and ``s / 2 > 3`` are exact; what
makes a whole number of one (``floor``, ``int``) divides in the end. Floating point numbers are taken where products
with them are exact in Python too.
"""

# sympy has no types; the names of its classes are what tells them apart, torch's own among them.

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from lowerkit.runtimes.conditions import Condition, simplify_condition
from lowerkit.runtimes.expressions import Expr, ExpressionError, simplify

_LARGEST_TOP, _LARGEST_BOTTOM = 1 << 20, 1 << 10
"""Bounds of a float as a fraction: times a size below 2^33 it stays exact in double precision."""
_LARGEST_PRODUCT = 1 << 16
"""Bound of the top of a fraction that is near a float: times a size it stays below 2^49."""
_LARGEST_POWER = 16
_LARGEST_INTEGER, _LARGEST_EXTENT = (1 << 63) - 1, 1 << 48
"""What the signature counts with; and what x86 addresses, so that sums of a few extents reach no number above."""
_RELATIONS = {
    "Equality": ("eq", False),
    "Unequality": ("ne", False),
    "StrictLessThan": ("lt", False),
    "LessThan": ("le", False),
    "StrictGreaterThan": ("lt", True),
    "GreaterThan": ("le", True),
}
"""Class -> relation, and whether the sides change places."""


class _Fraction(NamedTuple):
    top: Expr
    bottom: int = 1


def floored_factor(factor: float) -> tuple[int, int] | None:
    """Returns (top, bottom) where ``int(size * factor)`` is ``size * top // bottom`` for sizes below 2^33, else None.

    The product in double precision is off by less than the distance of any other fraction to a whole number; where the
    fraction gives a whole number itself, the product must not be rounded to less.
    """
    short = Fraction(factor).limit_denominator(_LARGEST_BOTTOM)
    error = Fraction(factor) - short
    if not 0 < short.numerator < _LARGEST_PRODUCT or abs(error) > short / (1 << 52):
        return None
    return (short.numerator, short.denominator) if error >= -short / (1 << 54) else None


class InexpressibleError(Exception):
    """An expression has no counterpart among the signature's; the message is the part that has none."""


def to_expression(expression: Any, names: Callable[[Any], Expr | None]) -> Expr:
    """Translates a sympy expression whose value is an integer.

    Args:
        expression: the expression.
        names: the expression of a symbol; None where it has none.

    Raises:
        InexpressibleError: it has no counterpart.
    """
    try:
        top, bottom = _Translator(names).fraction(expression)
        return simplify(top if bottom == 1 else ("floordiv", top, bottom))  # integers only: the division is exact
    except ExpressionError as error:
        raise InexpressibleError(str(expression)) from error


def to_condition(expression: Any, names: Callable[[Any], Expr | None]) -> Condition | bool:
    """Translates a sympy relation; a bool where it holds, or fails, for all values.

    Raises:
        InexpressibleError: it has no counterpart.
    """
    try:
        return _Translator(names).condition(expression)
    except ExpressionError as error:
        raise InexpressibleError(str(expression)) from error


class _Translator:
    def __init__(self, names: Callable[[Any], Expr | None]) -> None:
        self.names = names

    def condition(self, expression: Any) -> Condition | bool:
        kind = type(expression).__name__
        if kind in ("BooleanTrue", "BooleanFalse", "bool"):
            return bool(expression)
        if kind in _RELATIONS:
            decided = _beyond_any_extent(expression)
            if decided is not None:
                return decided
            relation, swapped = _RELATIONS[kind]
            left, right = (self.fraction(part) for part in expression.args)
            if swapped:
                left, right = right, left
            return simplify_condition((relation, _times(left.top, right.bottom), _times(right.top, left.bottom)))
        if kind == "Not":
            return _joined("not", [self.condition(expression.args[0])])
        if kind in ("And", "Or"):
            return _joined(kind.lower(), [self.condition(part) for part in sorted(expression.args, key=str)])
        raise InexpressibleError(str(expression))

    def fraction(self, expression: Any) -> _Fraction:
        kind = type(expression).__name__
        if expression.is_Integer:
            if abs(int(expression)) > _LARGEST_INTEGER:
                raise InexpressibleError(str(expression))
            return _Fraction(int(expression))
        if expression.is_Rational:
            return _Fraction(int(expression.p), int(expression.q))
        if expression.is_Float:
            top, bottom = float(expression).as_integer_ratio()
            if abs(top) > _LARGEST_TOP or bottom > _LARGEST_BOTTOM:
                raise InexpressibleError(str(expression))
            return _Fraction(top, bottom)
        if expression.is_Symbol:
            found = self.names(expression)
            if found is None:
                raise InexpressibleError(str(expression))
            return _Fraction(found)
        rule = _RULES.get(kind)
        if rule is None:
            raise InexpressibleError(str(expression))
        return rule(self, expression)

    def parts(self, expression: Any) -> list[_Fraction]:
        return [self.fraction(part) for part in expression.args]

    def whole(self, expression: Any) -> Expr:
        """An argument that is an integer."""
        top, bottom = self.fraction(expression)
        return top if bottom == 1 else ("floordiv", top, bottom)

    def sum(self, expression: Any) -> _Fraction:
        return _folded("add", self.parts(expression))

    def extreme(self, expression: Any) -> _Fraction:
        return _folded(type(expression).__name__.lower(), self.parts(expression))

    def product(self, expression: Any) -> _Fraction:
        divisors = [part for part in expression.args if _is_reciprocal(part)]
        top: Expr = 1
        bottom = 1
        for part in expression.args:
            if not _is_reciprocal(part):
                factor = self.fraction(part)
                top, bottom = _times(top, factor.top), bottom * factor.bottom
        for part in divisors:  # sympy writes a quotient so that is exact by construction
            power = _Fraction(self.whole(part.args[0]))
            for _ in range(-int(part.args[1])):
                top, bottom = ("floordiv", top, _times(power.top, bottom)), 1
        return _Fraction(simplify(top), bottom)

    def power(self, expression: Any) -> _Fraction:
        base, exponent = expression.args
        if _is_reciprocal(expression):
            raise InexpressibleError(str(expression))
        if not exponent.is_Integer or not 0 <= int(exponent) <= _LARGEST_POWER:
            raise InexpressibleError(str(expression))
        factor = self.fraction(base)
        top: Expr = 1
        for _ in range(int(exponent)):
            top = _times(top, factor.top)
        return _Fraction(top, factor.bottom ** int(exponent))

    def quotient(self, expression: Any) -> _Fraction:
        """A true division: by a number; by a size only where it is rounded at once."""
        top, bottom = self.parts(expression)
        if not isinstance(bottom.top, int) or bottom.top < 1:
            raise InexpressibleError(str(expression))
        return _Fraction(_times(top.top, bottom.bottom), top.bottom * bottom.top)

    def floor_division(self, expression: Any) -> _Fraction:
        return self._rounded("floordiv", *self.parts(expression))

    def ceiling_division(self, expression: Any) -> _Fraction:
        return self._rounded("ceildiv", *self.parts(expression))

    def floor(self, expression: Any) -> _Fraction:
        return self._rounded("floordiv", *self._floored(expression.args[0]))

    def ceiling(self, expression: Any) -> _Fraction:
        return self._rounded("ceildiv", *self._ratio(expression.args[0]))

    def truncated(self, expression: Any) -> _Fraction:
        top, bottom = self._floored(expression.args[0])
        if expression.args[0].is_nonnegative or bottom == _Fraction(1):
            return self._rounded("floordiv", top, bottom)
        if not isinstance(bottom.top, int):
            raise InexpressibleError(str(expression))
        up = self._rounded("ceildiv", _Fraction(simplify(("min", top.top, 0)), top.bottom), bottom)
        down = self._rounded("floordiv", _Fraction(simplify(("max", top.top, 0)), top.bottom), bottom)
        return _folded("add", [up, down])

    def modulo(self, expression: Any) -> _Fraction:
        left, right = (self.whole(part) for part in expression.args)
        return _Fraction(simplify(("mod", left, right)))

    def modular_index(self, expression: Any) -> _Fraction:
        value, divisor, modulus = (self.whole(part) for part in expression.args)
        return _Fraction(simplify(("mod", ("floordiv", value, divisor), modulus)))

    def lowest_bits(self, expression: Any) -> _Fraction:
        value, mask = expression.args
        if value.is_Integer:
            value, mask = mask, value
        if not mask.is_Integer or int(mask) < 0 or int(mask) & (int(mask) + 1):
            raise InexpressibleError(str(expression))
        return _Fraction(simplify(("mod", self.whole(value), int(mask) + 1)))

    def absolute(self, expression: Any) -> _Fraction:
        top, bottom = self.fraction(expression.args[0])
        return _Fraction(simplify(("max", top, _times(top, -1))), bottom)

    def shifted(self, expression: Any) -> _Fraction:
        value, count = expression.args
        if not count.is_Integer or not 0 <= int(count) < 32:
            raise InexpressibleError(str(expression))
        return _Fraction(_times(self.whole(value), 1 << int(count)))

    def same(self, expression: Any) -> _Fraction:
        return self.fraction(expression.args[0])

    def _floored(self, expression: Any) -> tuple[_Fraction, _Fraction]:
        """As :meth:`_ratio`, of what is rounded down: any float will do there, times a size."""
        number, size = expression.as_coeff_Mul()
        fraction = floored_factor(float(number)) if number.is_Float else None
        if fraction is None or type(size).__name__ != "ToFloat" or not size.args[0].is_nonnegative:
            return self._ratio(expression)
        return _Fraction(_times(self.whole(size.args[0]), fraction[0]), fraction[1]), _Fraction(1)

    def _ratio(self, expression: Any) -> tuple[_Fraction, _Fraction]:
        """What is rounded, as above and below: a division by a size is possible here."""
        if type(expression).__name__ in ("IntTrueDiv", "FloatTrueDiv"):
            above, below = self.parts(expression)
            return above, below
        return self.fraction(expression), _Fraction(1)

    @staticmethod
    def _rounded(operator: str, top: _Fraction, bottom: _Fraction) -> _Fraction:
        above, below = _times(top.top, bottom.bottom), _times(bottom.top, top.bottom)
        return _Fraction(simplify((operator, above, below)))


def _beyond_any_extent(relation: Any) -> bool | None:
    """Decides a relation between extents and a number that none reaches: a slice to the end of what counts as one."""
    difference = (relation.lhs - relation.rhs).expand()
    number, rest = difference.as_coeff_Add()
    if not number.is_Integer or abs(int(number)) <= _LARGEST_INTEGER // 2:
        return None
    terms = rest.as_coefficients_dict()
    if not all(term.is_Symbol for term in terms) or sum(map(abs, terms.values())) > 64:
        return None
    assert abs(int(number)) > 64 * _LARGEST_EXTENT, "the number decides"
    return bool(relation.func(number, 0))


def _times(expr: Expr, factor: Expr) -> Expr:
    return simplify(("mul", expr, factor))


def _folded(operator: str, parts: Sequence[_Fraction]) -> _Fraction:
    """Sums and extremes of fractions over a common number below."""
    bottom = 1
    for part in parts:
        bottom *= part.bottom
    tops = [_times(part.top, bottom // part.bottom) for part in parts]
    result = tops[0]
    for top in tops[1:]:
        result = simplify((operator, result, top))
    return _Fraction(result, bottom)


def _joined(head: str, parts: Sequence[Condition | bool]) -> Condition | bool:
    known = [("eq", 0, 0 if part else 1) if isinstance(part, bool) else part for part in parts]
    result: Condition = (head, known[0]) if head == "not" else known[0]
    for part in known[1:]:
        result = (head, result, part)
    return simplify_condition(result)


def _is_reciprocal(expression: Any) -> bool:
    return bool(expression.is_Pow) and bool(expression.args[1].is_Integer) and int(expression.args[1]) < 0


_RULES: dict[str, Callable[[_Translator, Any], _Fraction]] = {
    "Add": _Translator.sum,
    "Mul": _Translator.product,
    "Pow": _Translator.power,
    "PowByNatural": _Translator.power,
    "Max": _Translator.extreme,
    "Min": _Translator.extreme,
    "FloorDiv": _Translator.floor_division,
    "CleanDiv": _Translator.floor_division,
    "CeilDiv": _Translator.ceiling_division,
    "IntTrueDiv": _Translator.quotient,
    "FloatTrueDiv": _Translator.quotient,
    "Mod": _Translator.modulo,
    "PythonMod": _Translator.modulo,
    "ModularIndexing": _Translator.modular_index,
    "FloorToInt": _Translator.floor,
    "floor": _Translator.floor,
    "CeilToInt": _Translator.ceiling,
    "ceiling": _Translator.ceiling,
    "TruncToInt": _Translator.truncated,
    "TruncToFloat": _Translator.truncated,
    "BitwiseFn_bitwise_and": _Translator.lowest_bits,
    "Abs": _Translator.absolute,
    "LShift": _Translator.shifted,
    "ToFloat": _Translator.same,
    "Identity": _Translator.same,
}
