"""Quantization: the reference against exact arithmetic and the sources' formulas, the lowering against both."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lowerkit.dialect import DequantizeOp, IntegerConvOp, IntegerMatmulOp, QuantizeOp, RequantOp
from lowerkit.dialect.reference import quantize as reference
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

EXTREMES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 0.5, 1.5, 2.5, -0.5, 1e-40], np.float32)


def parameters(random: np.random.Generator, *shape: int) -> list[Any]:
    return [random.uniform(0.01, 0.2, shape).astype(np.float32), random.integers(-3, 4, shape).astype(np.int32)]


@pytest.mark.parametrize("formula", reference.FORMULAS)
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_quantize(formula: str, unsigned: bool, dynamic: bool, check_lowering: Any, random: Any) -> None:
    x = np.concatenate([EXTREMES, random.standard_normal(30).astype(np.float32) * 9]).reshape(6, 7)
    for shape, axis in (((), 0), ((7,), 1)):
        check_lowering(
            lambda x, s, z, axis=axis: QuantizeOp.build(x, s, z, axis=axis, formula=formula, unsigned=unsigned),
            [x, *parameters(random, *shape)],
            dynamic=dynamic,
            relative=0,
            absolute=0,
        )


def test_quantize_saturates_and_gives_the_minimum_for_nan(check_lowering: Any) -> None:
    arrays: list[Any] = [EXTREMES, np.array(0.25, np.float32), np.array(3, np.int32)]
    numbers = reference.quantize(*arrays, axis=0, formula="divide", minimum=-5, maximum=7)
    assert numbers.tolist() == [-5, 7, -5, 3, 3, 7, -5, 5, 7, 7, 1, 3]
    check_lowering(lambda x, s, z: QuantizeOp.build(x, s, z, minimum=-5, maximum=7), arrays, relative=0, absolute=0)


def test_the_two_formulas_differ_near_ties(random: Any) -> None:
    scale = random.uniform(0.001, 1, 4000).astype(np.float32)
    x = ((random.integers(-100, 100, 4000) + 0.5) * scale).astype(np.float32)
    zero = np.zeros((), np.int32)
    both = [
        np.concatenate(
            [
                reference.quantize(x[i : i + 1], scale[i], zero, axis=0, formula=formula, minimum=-128, maximum=127)
                for i in range(4000)
            ]
        )
        for formula in reference.FORMULAS
    ]
    assert 0 < np.count_nonzero(both[0] != both[1]) < 1000
    assert np.abs(both[0] - both[1]).max() == 1


def test_formulas_are_those_of_their_sources(random: Any) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the ops
    scale = 0.0371
    ties = (np.arange(-200, 200) + 0.5) * scale
    x = np.concatenate([ties, random.standard_normal(2000)]).astype(np.float32)
    theirs = torch.ops.quantized_decomposed.quantize_per_tensor(torch.from_numpy(x), scale, 7, -128, 127, torch.int8)
    ours = reference.quantize(x, np.array(scale), np.array(7), axis=0, formula="reciprocal", minimum=-128, maximum=127)
    np.testing.assert_array_equal(ours, theirs.numpy())
    back = torch.ops.quantized_decomposed.dequantize_per_tensor(theirs, scale, 7, -128, 127, torch.int8)
    np.testing.assert_array_equal(reference.dequantize(ours, np.array(scale), np.array(7), axis=0), back.numpy())


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
@pytest.mark.parametrize("scale_type", [np.float32, np.float64])
def test_dequantize(unsigned: bool, dtype: Any, scale_type: Any, check_lowering: Any, random: Any) -> None:
    limits = np.iinfo(dtype)
    numbers = random.integers(limits.min, limits.max, (5, 6), endpoint=True).astype(dtype)
    for shape, axis in (((), 0), ((5,), 0)):
        scale, zero = parameters(random, *shape)
        check_lowering(
            lambda x, s, z, axis=axis: DequantizeOp.build(x, s, z, axis=axis, unsigned=unsigned),
            [numbers, scale.astype(scale_type), zero],
            dynamic=True,
            relative=0,
            absolute=0,
        )


@pytest.mark.parametrize("rounding", reference.ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_requant(rounding: str, dtype: Any, check_lowering: Any, random: Any) -> None:
    limits = np.iinfo(dtype)
    numbers = random.integers(limits.min, limits.max, (40, 6), endpoint=True).astype(dtype)
    numbers[0] = [limits.min, limits.max, 0, 1, -1, 2]
    for shape, axis in (((), 0), ((6,), 1)):
        multiplier = random.integers(1 << 30, 1 << 31, shape).astype(np.int32)
        shift = random.integers(25, 62, shape, endpoint=True).astype(np.int32)
        for storage, unsigned in (("i8", False), ("i8", True), ("i32", False)):
            check_lowering(
                lambda x, m, s, z, a=axis, t=storage, u=unsigned: RequantOp.build(
                    x, m, s, z, axis=a, rounding=rounding, unsigned=u, storage=ir.Type.parse(t)
                ),
                [numbers, multiplier, shift, np.full(shape, 5, np.int32)],
                dynamic=True,
                relative=0,
                absolute=0,
            )


def test_requant_in_f64_is_exact(check_lowering: Any, random: Any) -> None:
    """The vector form of 24-bit multipliers, on random sums, on ties and at the edge of what it is for."""
    edge = (1 << 29) - 1
    numbers = random.integers(-edge, edge, (60, 6), endpoint=True).astype(np.int32)
    numbers[0], numbers[1] = edge, -edge
    numbers[2:20] = random.integers(-4000, 4000, (18, 6)) * 2 + 1
    multiplier = random.integers(1 << 23, 1 << 24, 6).astype(np.int32)
    multiplier[0] = 1 << 23
    shift = np.array([24, 30, 40, 50, 1, 62], np.int32)
    check_lowering(
        lambda x, m, s, z: RequantOp.build(x, m, s, z, axis=1, mult_bits=25),
        [numbers, multiplier, shift, np.full(6, 5, np.int32)],
        relative=0,
        absolute=0,
    )


@pytest.mark.parametrize("bits", [16, 25])
@pytest.mark.parametrize("shape", [(), (6,)])
def test_requant_in_f32(shape: tuple[int, ...], bits: int, check_lowering: Any, random: Any) -> None:
    """Ties, numbers of more than 24 bits, and what saturates."""
    limits = np.iinfo(np.int32)
    numbers = random.integers(limits.min, limits.max, (60, 6), endpoint=True).astype(np.int32)
    numbers[0] = [limits.min, limits.max, 0, (1 << 24) + 1, -(1 << 24) - 1, (1 << 25) + 2]
    numbers[2:40] = random.integers(-4000, 4000, (38, 6)) * 2 + 1
    multiplier = random.integers(1 << (bits - 2), 1 << (bits - 1), shape).astype(np.int32)
    shift = random.integers(bits - 1, bits + 12, shape).astype(np.int32)
    if shape:
        multiplier[0], shift[0], shift[1], shift[2] = 1 << (bits - 2), bits - 1, 62, 1
    for storage, unsigned in (("i8", False), ("i8", True), ("i16", False)):
        limits = np.iinfo(storage.replace("i", "uint" if unsigned else "int"))
        check_lowering(
            lambda x, m, s, z, t=storage, u=unsigned: RequantOp.build(
                x, m, s, z, axis=len(shape), rounding="float32", mult_bits=bits, unsigned=u, storage=ir.Type.parse(t)
            ),
            [numbers, multiplier, shift, np.full(shape, 5, np.int32)],
            dynamic=True,
            relative=0,
            absolute=0,
        )  # fmt: skip
        bounds: dict[str, int] = {"minimum": limits.min, "maximum": limits.max}
        given = reference.requantize(
            numbers.astype(np.int64), multiplier, shift, np.array(5), axis=1, rounding="float32", **bounds
        )
        product = numbers.astype(np.float32) * (multiplier / 2.0**shift).astype(np.float32)
        np.testing.assert_array_equal(given, np.clip(np.rint(product) + 5, limits.min, limits.max).astype(np.int64))


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-126, 2.0**127, width=32), st.integers(0, 2**32 - 1))
def test_a_quotient_of_f32_is_a_product_in_f64(scale: float, seed: int) -> None:
    """What the lowering of quantize relies on; beside ties, where the two could differ at all."""
    divisor = np.float32(scale)
    numbers = np.random.default_rng(seed).integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        middle = ((np.arange(-300, 300) + 0.5) * float(divisor)).astype(np.float32)
        numbers = np.concatenate([numbers, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
        wanted = numbers.astype(np.float32) / divisor
        found = (numbers.astype(np.float64) * (1.0 / np.float64(divisor))).astype(np.float32)
    normal = ~(np.abs(wanted) < np.finfo(np.float32).tiny)
    np.testing.assert_array_equal(found[normal], wanted[normal])
    assert np.all(np.abs(found[~normal]) < 0.25)


def exactly(product: int, shift: int, rounding: str) -> int:
    """The definition, on exact rational numbers."""
    value = Fraction(product, 1 << shift)
    down = value.numerator // value.denominator
    match rounding:
        case "floor":
            return down
        case "half_even":
            return round(value)
        case "half_away":
            away = (abs(value) + Fraction(1, 2)).__floor__()
            return away if product >= 0 else -away
        case "single":
            return (value + Fraction(1, 2)).__floor__()
        case _:
            extra = (1 << 30) * (1 if product >= 0 else -1) if shift > 31 else 0
            return (Fraction(product + extra, 1 << shift) + Fraction(1, 2)).__floor__()


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.one_of(st.integers(0, (1 << 31) - 1), st.sampled_from([1 << 30, (1 << 31) - 1])),
    st.integers(1, 62),
    st.sampled_from(reference.ROUNDINGS),
)
def test_shift_right_rounds_as_it_says(number: int, multiplier: int, shift: int, rounding: str) -> None:
    product = number * multiplier
    assert int(reference.shift_right(np.int64(product), np.int64(shift), rounding)) == exactly(product, shift, rounding)


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-60, 2.0**13.9), st.sampled_from([16, 25, 32]))
def test_multiplier_is_the_nearest(ratio: float, bits: int) -> None:
    multiplier, shift = reference.multiplier_of(np.array(ratio), bits)
    assert 1 <= shift <= reference.LARGEST_SHIFT
    found = Fraction(int(multiplier), 1 << int(shift))
    if multiplier == 0:
        assert ratio < 2.0 ** (bits - 64)
    else:
        assert 1 << (bits - 2) <= multiplier < 1 << (bits - 1)
        assert abs(found - Fraction(ratio)) <= Fraction(1, 1 << (int(shift) + 1))


@pytest.mark.parametrize("ratio", [0.0, -1.0, np.nan, np.inf, 2.0**30])
def test_multiplier_refuses_what_it_cannot_hold(ratio: float) -> None:
    with pytest.raises(ValueError, match="factors must be positive"):
        reference.multiplier_of(np.array([0.5, ratio]))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_integer_matmul(unsigned: bool, dynamic: bool, check_lowering: Any, random: Any) -> None:
    lhs, rhs = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 5, 70), (70, 3)))
    check_lowering(
        lambda a, b: IntegerMatmulOp.build(a, b, unsigned=unsigned), [lhs, rhs], dynamic=dynamic, relative=0, absolute=0
    )
    check_lowering(
        lambda a, b: IntegerMatmulOp.build(a, b, unsigned=unsigned, transpose_rhs=True),
        [lhs, np.ascontiguousarray(rhs.T)],
        dynamic=dynamic,
        relative=0,
        absolute=0,
    )


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_integer_conv(unsigned: bool, channels_last: bool, check_lowering: Any, random: Any) -> None:
    shape = (2, 6, 7, 4) if channels_last else (2, 4, 6, 7)
    data, taps = (random.integers(-128, 128, shape).astype(np.int8) for shape in (shape, (8, 2, 3, 3)))
    check_lowering(
        lambda x, f: IntegerConvOp.build(
            x, f, channels_last=channels_last, padding=[1, 0, 2, 1], strides=[1, 2], groups=2,
            padding_value=200 if unsigned else -100, unsigned=unsigned,
        ),
        [data, taps],
        relative=0,
        absolute=0,
    )  # fmt: skip


def test_padding_with_the_zero_point_is_padding_with_zero(module_of: Any, random: Any) -> None:
    from lowerkit.dialect import ConvOp
    from lowerkit.dialect.interpreter.interpreter import interpret

    data, taps = (random.integers(0, 100, shape).astype(np.int8) for shape in ((1, 2, 5, 5), (3, 2, 3, 3)))
    point = 17
    integers = module_of(lambda x, f: IntegerConvOp.build(x, f, padding=1, padding_value=point), [data, taps])
    (sums,) = interpret(integers, [data, taps])
    corrected = sums - point * taps.astype(np.int32).sum((1, 2, 3)).reshape(1, 3, 1, 1)
    shifted = data - np.int8(point)
    (wanted,) = interpret(module_of(lambda x, f: ConvOp.build(x, f, padding=1), [shifted, taps]), [shifted, taps])
    np.testing.assert_array_equal(corrected, wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"formula": "guess"}, "attribute formula must be one of divide, reciprocal"),
        ({"maximum": 300}, "does not lie within -128 to 127"),
        ({"axis": 5}, "is one number for all: it must be 0"),
        ({"storage": "i32"}, "storage must be i8 or i16"),
    ],
)
def test_quantize_refuses(changes: dict[str, Any], message: str, context: ir.Context) -> None:
    settings = {"axis": 0, "formula": "divide", "minimum": -128, "maximum": 127, "unsigned": False, "storage": "i8"}
    settings.update(changes)
    settings["storage"] = ir.Type.parse(str(settings["storage"]))
    types = [ir.Type.parse(text) for text in ("tensor<4x5xf32>", "tensor<f32>", "tensor<i32>")]
    with pytest.raises(VerifyError, match=message):
        QuantizeOp.infer_result_types(*types, **settings)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("tensor<4x5xi64>", "tensor<i32>", "tensor<i32>"), "integer elements of 8 to 32 bits"),
        (("tensor<4x5xi32>", "tensor<i32>", "tensor<5xi32>"), "their shapes must be equal"),
        (("tensor<4x5xi32>", "tensor<7xi32>", "tensor<7xi32>"), "has another size"),
        (("tensor<4x5xi32>", "tensor<i64>", "tensor<i32>"), "must have i32 elements"),
    ],
)
def test_requant_refuses(types: tuple[str, str, str], message: str, context: ir.Context) -> None:
    data, multiplier, shift = (ir.Type.parse(text) for text in types)
    with pytest.raises(VerifyError, match=message):
        RequantOp.infer_result_types(
            data, multiplier, shift, shift, axis=0, rounding="floor", mult_bits=32, minimum=-128, maximum=127,
            unsigned_input=False, unsigned=False, storage=ir.Type.parse("i8"),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounding": "float32", "mult_bits": 32}, "a multiplier of rounding float32 has 25 bits at most"),
        ({"rounding": "float32", "mult_bits": 25, "storage": "i32", "maximum": 1 << 25}, "does not lie within 24 bits"),
        ({"rounding": "f32"}, "attribute rounding must be one of float32, half_even"),
    ],
)
def test_requant_in_f32_refuses(changes: dict[str, Any], message: str, context: ir.Context) -> None:
    settings: dict[str, Any] = {"rounding": "floor", "mult_bits": 32, "minimum": -128, "maximum": 127, "storage": "i8"}
    settings.update(changes)
    settings["storage"] = ir.Type.parse(str(settings["storage"]))
    data, parameter = ir.Type.parse("tensor<4x5xi32>"), ir.Type.parse("tensor<i32>")
    with pytest.raises(VerifyError, match=message):
        RequantOp.infer_result_types(
            data, parameter, parameter, parameter, axis=0, unsigned_input=False, unsigned=False, **settings
        )


def test_integer_products_refuse_other_elements(context: ir.Context) -> None:
    wide, narrow = ir.Type.parse("tensor<4x5xi16>"), ir.Type.parse("tensor<5x4xi8>")
    with pytest.raises(VerifyError, match="lhs must have i8 elements"):
        IntegerMatmulOp.infer_result_types(wide, narrow)
    image, taps = ir.Type.parse("tensor<1x4x8xi8>"), ir.Type.parse("tensor<4x4x3xi8>")
    with pytest.raises(VerifyError, match="padding_value is 200, which does not lie within -128 to 127"):
        IntegerConvOp.infer_result_types(image, taps, strides=[1], padding=[1, 1], dilation=[1], padding_value=200)
