"""Kernel text to objects: a corpus of what kernels use, so that LLVM 24's text stays readable for LLVM 22."""

from __future__ import annotations

import struct

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from lowerkit.errors import CodegenError
from lowerkit.runtimes import _native
from lowerkit.targets.cpu.harness import run_kernel_for_test
from lowerkit.targets.cpu.levels import LEVELS, cpu_features
from lowerkit.targets.cpu.objects.llvm_compat import to_llvm_22
from lowerkit.targets.cpu.objects.lower import llvm_ir_to_object, lower_to_llvm_ir, lower_to_object
from tests.support.scalar_kernels import unary_plan

VECTOR = "vector<16xf32>"
# One of each construct that emitters use; `%x` is f32.
CORPUS = {
    "constants": "%k = arith.constant 0x3FB8AA3B : f32\n%y = arith.mulf %x, %k : f32",
    "infinity_and_nan": (
        "%inf = arith.constant 0x7F800000 : f32\n%n = arith.constant 0x7FC00001 : f32\n"
        "%a = arith.minimumf %x, %inf : f32\n"
        "%u = arith.cmpf uno, %a, %n : f32\n%y = arith.select %u, %n, %a : f32"
    ),
    "special_vectors": f"%low = arith.constant dense<0xFF800000> : {VECTOR}\n"
    f"%v = vector.broadcast %x : f32 to {VECTOR}\n"
    f"%m = arith.maximumf %v, %low : {VECTOR}\n%y = vector.extract %m[0] : f32 from {VECTOR}",
    "half": "%h = arith.truncf %x : f32 to f16\n%k = arith.constant 0x3555 : f16\n%m = arith.mulf %h, %k : f16\n"
    "%y = arith.extf %m : f16 to f32",
    # Rounding to bf16 is a call of a library where the machine has no instruction for it; widening never is.
    "bfloat": "%k = arith.constant 0x3EAB : bf16\n%w = arith.extf %k : bf16 to f32\n%y = arith.mulf %x, %w : f32",
    "double": "%d = arith.extf %x : f32 to f64\n%k = arith.constant 0.1 : f64\n%m = arith.mulf %d, %k : f64\n"
    "%y = arith.truncf %m : f64 to f32",
    "vector": f"%v = vector.broadcast %x : f32 to {VECTOR}\n%w = vector.fma %v, %v, %v : {VECTOR}\n"
    f"%y = vector.reduction <add>, %w : {VECTOR} into f32",
    "vector_constants": f"%k = arith.constant dense<0x3FB8AA3B> : {VECTOR}\n"
    f"%v = vector.broadcast %x : f32 to {VECTOR}\n"
    f"%w = arith.mulf %v, %k : {VECTOR}\n%y = vector.extract %w[3] : f32 from {VECTOR}",
    "vector_of_halves": "%k = arith.constant dense<0x3EAB> : vector<16xbf16>\n"
    "%w = arith.extf %k : vector<16xbf16> to vector<16xf32>\n%v = vector.broadcast %x : f32 to vector<16xf32>\n"
    "%m = arith.mulf %v, %w : vector<16xf32>\n%y = vector.extract %m[1] : f32 from vector<16xf32>",
    "shuffle": f"%v = vector.broadcast %x : f32 to {VECTOR}\n"
    f"%w = vector.shuffle %v, %v [0, 17, 2, 19] : {VECTOR}, {VECTOR}\n"
    "%y = vector.extract %w[1] : f32 from vector<4xf32>",
    "mask": f"%m = vector.create_mask %j : vector<16xi1>\n%z = arith.constant dense<1.5> : {VECTOR}\n"
    f"%v = vector.broadcast %x : f32 to {VECTOR}\n%w = arith.select %m, %v, %z : vector<16xi1>, {VECTOR}\n"
    f"%y = vector.extract %w[0] : f32 from {VECTOR}",
    "fast_sum": "%a = arith.addf %x, %x fastmath<reassoc,contract> : f32\n"
    "%y = arith.mulf %a, %x fastmath<contract> : f32",
    "special_halves": "%h = arith.truncf %x : f32 to f16\n%n = arith.constant 0xFC00 : f16\n"
    "%m = arith.maximumf %h, %n : f16\n%b = arith.extf %m : f16 to f32\n%k = arith.constant 0x7F80 : bf16\n"
    "%c = arith.extf %k : bf16 to f32\n%y = arith.minimumf %b, %c : f32",
    "library": "%a = math.erf %x : f32\n%b = math.log1p %a : f32\n%c = math.powf %x, %b : f32\n"
    "%y = math.atan2 %c, %x : f32",
    "integers": "%n = arith.fptosi %x : f32 to i32\n%q = arith.floordivsi %n, %n : i32\n%c = math.ctlz %q : i32\n"
    "%y = arith.sitofp %c : i32 to f32",
    "branches": "%z = arith.constant 0.0 : f32\n%p = arith.cmpf ogt, %x, %z : f32\n"
    "%y = scf.if %p -> f32 { scf.yield %x : f32 } else { scf.yield %z : f32 }",
    "stack": "%m = memref.alloca() : memref<4x8xf32>\nmemref.store %x, %m[%c1, %c1] : memref<4x8xf32>\n"
    "%s = memref.subview %m[1, 1] [1, 4] [1, 1] : memref<4x8xf32> to memref<4xf32, strided<[1], offset: 9>>\n"
    "%y = memref.load %s[%c0] : memref<4xf32, strided<[1], offset: 9>>",
    "prefetch": '"llvm.intr.prefetch"(%scratch) <{cache = 1 : i32, hint = 3 : i32, rw = 0 : i32}> : '
    "(!llvm.ptr) -> ()\n%y = arith.negf %x : f32",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CORPUS)
def test_corpus_compiles(name: str, level: str) -> None:
    assert lower_to_object(unary_plan(CORPUS[name]).text, cpu_features(level))[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "name",
    [
        *("constants", "half", "bfloat", "double"),
        *("vector_constants", "vector_of_halves", "special_vectors", "special_halves"),
    ],
)
def test_literals_keep_their_bits(name: str) -> None:
    """A literal misread by the older parser would change the product."""
    x = np.linspace(-3, 3, 16, dtype=np.float32).reshape(1, 16)
    y = np.zeros_like(x)
    run_kernel_for_test(unary_plan(CORPUS[name]), [x, y], [1, 1])
    third = np.array([0x3EAB], np.uint16).view(ml_dtypes.bfloat16)[0]
    expected = {
        "constants": lambda: x * np.array([0x3FB8AA3B], np.uint32).view(np.float32),
        "vector_constants": lambda: x * np.array([0x3FB8AA3B], np.uint32).view(np.float32),
        "half": lambda: (x.astype(np.float16) * np.array([0x3555], np.uint16).view(np.float16)).astype(np.float32),
        "bfloat": lambda: x * third.astype(np.float32),
        "vector_of_halves": lambda: x * third.astype(np.float32),
        "special_vectors": lambda: x,
        "special_halves": lambda: x.astype(np.float16).astype(np.float32),
        "double": lambda: (x.astype(np.float64) * 0.1).astype(np.float32),
    }[name]()
    np.testing.assert_array_equal(y, expected)


def test_float_literals_are_respelled() -> None:
    patterns = [0x3FB8AA3B, 0x00000001, 0x007FFFFF, 0x00800000, 0x7F800000, 0xFF800000, 0x80000000, 0xC2B17218]
    for bits in patterns:
        wanted = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
        assert to_llvm_22(f"fadd float %x, f0x{bits:08X}") == f"fadd float %x, 0x{wanted:016X}"
    assert to_llvm_22("float f0x7FC00001") == "float 0x7FF8000020000000"
    assert to_llvm_22("double f0x3FB999999999999A") == "double 0x3FB999999999999A"
    assert to_llvm_22("fmul half %1, f0x3555") == "fmul half %1, 0xH3555"
    assert to_llvm_22("fmul bfloat %1, f0x3EAB") == "fmul bfloat %1, 0xR3EAB"
    assert to_llvm_22("fmul half %1, 3.332520e-01") == "fmul half %1, 0xH3555"
    assert to_llvm_22("fmul bfloat %1, 3.339840e-01") == "fmul bfloat %1, 0xR3EAB"
    assert to_llvm_22("fmul float %1, -1.000000e-01") == "fmul float %1, 0xBFB99999A0000000"
    assert to_llvm_22("fmul double %1, 1.000000e-01") == "fmul double %1, 1.000000e-01"
    assert to_llvm_22("store float +inf, ptr %p") == "store float 0x7FF0000000000000, ptr %p"
    assert to_llvm_22("store float -nan(0x1), ptr %p") == "store float 0xFFF8000020000000, ptr %p"
    assert to_llvm_22("fcmp oeq double %x, +snan(0x1)") == "fcmp oeq double %x, 0x7FF0000000000001"
    assert to_llvm_22("select i1 %c, half -inf, half +qnan") == "select i1 %c, half 0xHFC00, half 0xH7E00"
    assert to_llvm_22("<4 x bfloat> splat (bfloat +qnan)") == "<4 x bfloat> splat (bfloat 0xR7FC0)"
    assert to_llvm_22("call float @lowerkit.nan.inf(float %inf)") == "call float @lowerkit.nan.inf(float %inf)"
    assert to_llvm_22("call bfloat @f(half f0x3555, bfloat f0x3EAB)") == "call bfloat @f(half 0xH3555, bfloat 0xR3EAB)"


def test_an_op_without_a_conversion_is_named_and_does_not_crash() -> None:
    text = unary_plan("%t = tensor.empty() : tensor<4xf32>\n%y = tensor.extract %t[%c0] : tensor<4xf32>").text
    with pytest.raises(CodegenError, match=r"tensor\.") as caught:
        lower_to_object(text, cpu_features("x86-64-v3"))
    assert caught.value.code == "LK5001"


def test_text_that_does_not_parse() -> None:
    with pytest.raises(CodegenError, match="rejected"):
        lower_to_object("module { func.func @kernel( }", cpu_features("x86-64-v3"))


def test_products_and_sums_are_contracted_only_on_request() -> None:
    plain = lower_to_llvm_ir(unary_plan("%p = arith.mulf %x, %x : f32\n%y = arith.addf %p, %x : f32").text)
    assert "contract" not in plain
    x = (np.random.default_rng(1).standard_normal((4, 16)) * 3).astype(np.float32)
    y = np.zeros_like(x)
    run_kernel_for_test(unary_plan("%p = arith.mulf %x, %x : f32\n%y = arith.addf %p, %x : f32"), [x, y], [4, 4])
    np.testing.assert_array_equal(y, x * x + x)
    run_kernel_for_test(unary_plan("%y = math.fma %x, %x, %x : f32"), [x, y], [4, 4])
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y, (wide * wide + wide).astype(np.float32))


def test_helpers_become_internal() -> None:
    helper = "func.func private @twice(%v: f32) -> f32 { %s = arith.addf %v, %v : f32 return %s : f32 }\n"
    plan = unary_plan("%y = func.call @twice(%x) : (f32) -> f32", helpers=helper)
    assert b"twice" not in lower_to_object(plan.text, cpu_features("x86-64-v3"))


def test_levels_name_features_as_llvm_and_the_runtime_do() -> None:
    found = llvm.get_host_cpu_features()
    known = set(_native.known_cpu_features())
    required = {feature.lstrip("+") for name in LEVELS for feature in cpu_features(name).required}
    assert required <= known
    assert required <= found.keys()
    assert set(_native.cpu_features()) == {name for name in known if found.get(name)}


def test_znver4_code_runs_on_processors_of_intel() -> None:
    """LLVM took insertq (sse4a, which Intel never had) to add bools up: the level does not name that feature."""
    text = """
define void @kernel(ptr noalias %in, ptr noalias %out) {
  br label %rows
rows:
  %row = phi i64 [ 0, %0 ], [ %next_row, %stored ]
  %start = mul nuw nsw i64 %row, 5
  br label %columns
columns:
  %column = phi i64 [ 0, %rows ], [ %next, %columns ]
  %sum = phi i64 [ 0, %rows ], [ %added, %columns ]
  %at = add nuw nsw i64 %start, %column
  %place = getelementptr inbounds i8, ptr %in, i64 %at
  %byte = load i8, ptr %place
  %bit = trunc i8 %byte to i1
  %wide = zext i1 %bit to i64
  %added = add i64 %wide, %sum
  %next = add i64 %column, 1
  %more = icmp slt i64 %next, 5
  br i1 %more, label %columns, label %stored
stored:
  %target = getelementptr inbounds i64, ptr %out, i64 %row
  store i64 %added, ptr %target
  %next_row = add i64 %row, 1
  %again = icmp slt i64 %next_row, 3
  br i1 %again, label %rows, label %done
done:
  ret void
}
"""
    assert b"\xf2\x0f\x78" not in llvm_ir_to_object(text, cpu_features("znver4"))


REVERSED_ROWS = """
module {
  memref.global "private" constant @places : memref<3xi64> = dense<[2, 1, 0]>
  func.func @kernel(%in: !llvm.ptr {llvm.noalias}, %out: !llvm.ptr {llvm.noalias}) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c3 = arith.constant 3 : index
    %rows = arith.constant 12 : index
    %places = memref.get_global @places : memref<3xi64>
    scf.for %row = %c0 to %rows step %c1 {
      scf.for %column = %c0 to %c3 step %c1 {
        %from = memref.load %places[%column] : memref<3xi64>
        %first = arith.muli %row, %c3 : index
        %to = arith.addi %first, %column : index
        %to_place = arith.index_cast %to : index to i64
        %first_place = arith.index_cast %first : index to i64
        %from_place = arith.addi %first_place, %from : i64
        %source = llvm.getelementptr inbounds %in[%from_place] : (!llvm.ptr, i64) -> !llvm.ptr, bf16
        %target = llvm.getelementptr inbounds %out[%to_place] : (!llvm.ptr, i64) -> !llvm.ptr, bf16
        %value = llvm.load %source : !llvm.ptr -> bf16
        llvm.store %value, %target : bf16, !llvm.ptr
      }
    }
    return
  }
}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_bf16_in_reversed_rows(level: str) -> None:
    """LLVM makes vectors of scalars side by side; at levels with bf16, halving an odd one ended the process."""
    assert lower_to_object(REVERSED_ROWS, cpu_features(level))[:4] == b"\x7fELF"
