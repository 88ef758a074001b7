"""The object reader and the linker: relocations, imports, constants, refusals, determinism."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from lowerkit.errors import CodegenError
from lowerkit.targets.cpu.harness import LoadedImage, run_kernel_for_test
from lowerkit.targets.cpu.levels import cpu_features, host_features, runs_on_host
from lowerkit.targets.cpu.objects.linker import IMPORTABLE, PAGE, link_image
from lowerkit.targets.cpu.objects.lower import llvm_ir_to_object, lower_to_object
from lowerkit.targets.cpu.objects.object_file import R_X86_64_64, parse_object
from tests.support.scalar_kernels import add_constant, unary_plan


def compile_ir(text: str) -> bytes:
    return llvm_ir_to_object(text, cpu_features("x86-64-v3"))


def call(image: object, entry: int = 0) -> list[int]:
    """Runs a kernel that writes up to eight i64 through its first buffer."""
    import ctypes

    loaded = LoadedImage(image)  # type: ignore[arg-type]
    out = np.zeros(8, np.int64)
    table = (ctypes.c_void_p * 1)(out.ctypes.data)
    loaded.functions[entry](ctypes.addressof(table), 0, 3, 9, 0)
    return out.tolist()


HEAD = """define void @kernel(ptr %buffers, ptr %dims, i64 %begin, i64 %end, ptr %scratch) {
  %out = load ptr, ptr %buffers
"""


def test_constants_and_calls_between_functions() -> None:
    text = (
        """
@table = private constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
define i64 @pick(i64 %i) noinline {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
"""
        + HEAD
        + """
  %v = call i64 @pick(i64 %begin)
  store i64 %v, ptr %out
  ret void
}"""
    )
    assert call(link_image([compile_ir(text)]))[0] == 44


def test_jump_tables_are_relative() -> None:
    cases = "\n".join(f"    i64 {i}, label %b{i}" for i in range(8))
    blocks = "\n".join(f"b{i}:\n  call void @mark(ptr %out, i64 {i * i + 5})\n  br label %done" for i in range(8))
    text = f"""
define void @mark(ptr %p, i64 %v) noinline {{
  store volatile i64 %v, ptr %p
  ret void
}}
{HEAD}
  switch i64 %begin, label %done [
{cases}
  ]
{blocks}
done:
  ret void
}}"""
    image = link_image([compile_ir(text)])
    assert call(image)[0] == 3 * 3 + 5


def test_imports_go_through_the_table() -> None:
    plan = unary_plan("%e = math.cbrt %x : f32\n      %y = math.erf %e : f32")
    image = link_image([lower_to_object(plan.text, host_features())])
    assert image.imports == ("cbrtf", "erff")
    assert image.import_table_offset % PAGE == 0
    assert image.import_table_offset + PAGE == len(image.data)
    x = np.linspace(0, 2, 32, dtype=np.float32).reshape(2, 16)
    y = np.zeros_like(x)
    run_kernel_for_test(plan, [x, y], [2, 2])
    np.testing.assert_allclose(y, [[math.erf(v ** (1 / 3)) for v in row] for row in x], rtol=1e-6)


def test_the_address_of_an_import_is_its_slot() -> None:
    """A function pointer to an extern is a load from the global offset table."""
    text = (
        """
declare float @sinf(float)
"""
        + HEAD
        + """
  %same = icmp eq ptr @sinf, %scratch
  %wide = ptrtoint ptr @sinf to i64
  store i64 %wide, ptr %out
  ret void
}"""
    )
    image = link_image([compile_ir(text)])
    import ctypes

    expected = ctypes.cast(ctypes.CDLL("libm.so.6").sinf, ctypes.c_void_p).value
    assert call(image)[0] == expected


def test_equal_objects_and_constants_are_placed_once() -> None:
    objects = [lower_to_object(add_constant(value).text, host_features()) for value in (1, 2, 1)]
    image = link_image(objects)
    assert image.entries[0] == image.entries[2] != image.entries[1]
    assert len(image.data) == len(link_image(objects[:2]).data)
    assert all(entry % 64 == 0 for entry in image.entries)
    assert image.imports == ()
    assert image.import_table_offset == len(image.data)


def test_linking_is_deterministic_and_order_is_the_callers() -> None:
    objects = [lower_to_object(add_constant(value).text, host_features()) for value in range(3)]
    assert link_image(objects) == link_image(objects)
    assert objects == [lower_to_object(add_constant(value).text, host_features()) for value in range(3)]


def test_several_kernels_run_from_one_image() -> None:
    texts = [HEAD + f"  store i64 {value}, ptr %out\n  ret void\n}}" for value in (5, 6, 7)]
    image = link_image([compile_ir(text) for text in texts])
    assert [call(image, entry)[0] for entry in range(3)] == [5, 6, 7]


def test_an_unknown_extern_is_named() -> None:
    text = "declare void @launch_rockets()\n" + HEAD + "  call void @launch_rockets()\n  ret void\n}"
    with pytest.raises(CodegenError, match="launch_rockets"):
        link_image([compile_ir(text)])


def test_writable_data_is_refused() -> None:
    text = "@counter = global i64 7\n" + HEAD + "  store i64 8, ptr @counter\n  ret void\n}"
    with pytest.raises(CodegenError, match="writable data"):
        link_image([compile_ir(text)])


def test_an_absolute_relocation_is_refused() -> None:
    """A constant table of addresses: its entries would have to be written at load time."""
    text = (
        """
define void @a() noinline { ret void }
define void @b() noinline { ret void }
@functions = constant [2 x ptr] [ptr @a, ptr @b]
"""
        + HEAD
        + """
  %slot = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %begin
  %f = load ptr, ptr %slot
  call void %f()
  ret void
}"""
    )
    data = compile_ir(text)
    parsed = parse_object(data)
    assert any(r.type == R_X86_64_64 for section in parsed.sections for r in section.relocations)
    with pytest.raises(CodegenError, match="absolute relocation"):
        link_image([data])


def test_a_missing_kernel_is_named() -> None:
    data = llvm_ir_to_object("define void @other() { ret void }", cpu_features("x86-64-v3"), ("other",))
    with pytest.raises(CodegenError, match="'kernel'"):
        link_image([data])


@pytest.mark.parametrize("sixteenth", range(16))
def test_a_cut_object_is_damaged(sixteenth: int) -> None:
    data = lower_to_object(add_constant(1).text, host_features())
    with pytest.raises(CodegenError):
        link_image([data[: len(data) * sixteenth // 16]])


def test_a_foreign_object_is_refused() -> None:
    data = bytearray(lower_to_object(add_constant(1).text, host_features()))
    struct.pack_into("<H", data, 18, 183)  # AArch64
    with pytest.raises(CodegenError, match="x86-64"):
        parse_object(bytes(data))


def test_what_may_be_imported_is_what_the_runtime_binds() -> None:
    native = pytest.importorskip("lowerkit.runtimes._native")
    assert set(native.support_routine_names()) == IMPORTABLE


def test_levels() -> None:
    from lowerkit.errors import UnsupportedError

    assert runs_on_host(host_features().name)
    with pytest.raises(UnsupportedError, match="x86-64-v4") as caught:
        cpu_features("pentium")
    assert caught.value.code == "LK4003"
