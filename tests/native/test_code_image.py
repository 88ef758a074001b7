"""The code loader, the executor's own checks, support routines, checksums and CPU features."""

from __future__ import annotations

import ctypes
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowerkit.runtimes import _native
from tests.support.handmade_code import PAGE, handmade_image
from tests.support.native_routines import Routines, load


def table_of(kernels: list[int], buffers: list[int], tasks: int, base_count: int = 2) -> _native.StepTable:
    def array(*values: int) -> Any:
        return np.array(values, np.int64)

    steps = len(kernels)
    return _native.StepTable(
        kernels, array(*[tasks] * steps), array(0, *[len(buffers)] * steps), array(*buffers),
        array(*[0] * len(buffers)), array(*[0] * (steps + 1)), array(), array(*[-1] * steps), array(*[-1] * steps),
        base_count,
    )  # fmt: skip


@pytest.mark.parametrize(("offset", "from_file"), [(0, False), (100, False), (0, True), (PAGE, True)])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_kernel_with_an_import_runs(tmp_path: Path, offset: int, from_file: bool, threads: int) -> None:
    image = handmade_image()
    loaded = load(tmp_path, image, offset, from_file)
    x = np.linspace(-3, 3, 1001, dtype=np.float32)
    y = np.zeros_like(x)
    table = table_of([loaded.entry(image.entries[3])], [0, 1], 1001)
    pool, scratch = _native.ThreadPool(threads), _native.Memory(0)
    table.run(pool, [x.ctypes.data, y.ctypes.data], scratch, 0)
    np.testing.assert_allclose(y, np.tanh(x.astype(np.float64)), rtol=3e-7)
    assert table.profile(pool, [x.ctypes.data, y.ctypes.data], scratch, 0)[0][0] > 0


def test_code_that_does_not_start_at_a_page_is_not_mapped_from_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="page"):
        load(tmp_path, handmade_image(), 64, from_file=True)


def test_code_that_changed_after_it_was_read_is_not_mapped(tmp_path: Path) -> None:
    image = handmade_image()
    path = tmp_path / "code.bin"
    path.write_bytes(image.data)
    with path.open("r+b") as file:
        loaded = _native.CodeImage(file.fileno(), 0, len(image.data))
        file.write(b"\xcc")
        file.flush()
        with pytest.raises(RuntimeError, match="changed"):
            loaded.link(file.fileno(), image.imports, image.import_table_offset, True)


def test_neither_code_nor_table_is_writable(tmp_path: Path) -> None:
    image = handmade_image()
    loaded = load(tmp_path, image)
    start = loaded.entry(0)
    rights: dict[int, str] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, rest = line.partition("-")
        end, permissions = rest.split()[:2]
        for page in (start, start + PAGE):
            if int(begin, 16) <= page < int(end, 16):
                rights[page] = permissions
    assert rights == {start: "r-xp", start + PAGE: "r--p"}


def test_misuse_of_an_image(tmp_path: Path) -> None:
    image = handmade_image()
    loaded = load(tmp_path, image)
    for offset in (-1, PAGE, 1 << 40):
        with pytest.raises(IndexError, match="outside"):
            loaded.entry(offset)
    with (tmp_path / "code.bin").open("rb") as file:
        with pytest.raises(RuntimeError, match="linked already"):
            loaded.link(file.fileno(), [], 0)
        fresh = _native.CodeImage(file.fileno(), 0, len(image.data))
        with pytest.raises(RuntimeError, match="not linked"):
            fresh.entry(0)
        with pytest.raises(ValueError, match="unknown routines: system, execve"):
            fresh.link(file.fileno(), ["tanhf", "system", "execve"], PAGE)
        with pytest.raises(RuntimeError, match="ends inside"):
            _native.CodeImage(file.fileno(), 100, len(image.data))
        for size in (0, -1, 1 << 40):
            with pytest.raises(ValueError, match="out of bounds"):
                _native.CodeImage(file.fileno(), 0, size)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.CodeImage(-1, 0, 10)


def test_step_tables_that_contradict_themselves() -> None:
    def array(*values: int) -> Any:
        return np.array(values, np.int64)

    one, none = array(1), array()
    copy = _native.copy_kernel_address()
    good: list[Any] = [
        [copy],
        one,
        array(0, 2),
        array(0, 1),
        array(0, 0),
        array(0, 1),
        array(8),
        array(-1),
        array(-1),
        2,
    ]
    _native.StepTable(*good)
    for index, value in [
        (0, [0]), (0, [copy, copy]), (1, none), (2, array(0, 3)), (2, array(0)), (2, array(1, 2)), (3, array(0, 2)),
        (3, array(0, -1)), (3, one), (5, array(0, 2)), (5, none), (7, none), (7, array(0)), (7, array(1)), (8, none),
        (9, 1),
    ]:  # fmt: skip
        bad = list(good)
        bad[index] = value
        with pytest.raises(ValueError, match="step|base"):
            _native.StepTable(*bad)
    pool, scratch = _native.ThreadPool(2), _native.Memory(1000)
    table = _native.StepTable(*good)
    with pytest.raises(ValueError, match="bases"):
        table.run(pool, [0], scratch, 0)
    for stride in (-1, 501, 1 << 62):
        with pytest.raises(ValueError, match="scratch"):
            table.run(pool, [0, 0], scratch, stride)


def test_memory_is_zeroed_aligned_and_bounded() -> None:
    for size in (0, 1, 5000, (4 << 20) + 1):
        memory = _native.Memory(size)
        assert memory.size == size
        assert memory.address % 4096 == 0
        assert not memory.bytes().any()
    kept = _native.Memory(100).bytes()
    kept[:] = 7  # the view keeps the memory alive
    assert kept.sum() == 700
    for size in (1 << 62, (1 << 64) - 1):
        with pytest.raises(MemoryError):
            _native.Memory(size)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 63, 64, 65, 1000, 4 << 20, (4 << 20) + 1, (9 << 20) + 77])
@pytest.mark.parametrize("threads", [1, 3])
def test_checksums_are_those_of_zip(size: int, threads: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)[3:]
    assert _native.crc32(data, _native.ThreadPool(threads)) == zlib.crc32(data.tobytes())


def test_cpu_features_are_those_that_linux_sees() -> None:
    features, known = _native.cpu_features(), _native.known_cpu_features()
    assert features == sorted(set(features))
    assert set(features) <= set(known)
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    for ours, theirs in [
        ("avx2", "avx2"), ("fma", "fma"), ("f16c", "f16c"), ("bmi2", "bmi2"), ("avx512f", "avx512f"),
        ("avx512vnni", "avx512_vnni"), ("avx512bf16", "avx512_bf16"), ("amx-tile", "amx_tile"), ("lzcnt", "abm"),
        ("amx-bf16", "amx_bf16"), ("avxvnni", "avx_vnni"), ("avx512fp16", "avx512_fp16"), ("sse4.1", "sse4_1"),
    ]:  # fmt: skip
        assert (ours in features) == (theirs in flags), ours
    if "amx-tile" in features:
        assert _native.request_amx()


@pytest.fixture(scope="module")
def routines(tmp_path_factory: pytest.TempPathFactory) -> Routines:
    return Routines(tmp_path_factory.mktemp("routines"), _native.support_routine_names())


def test_the_linker_of_the_compiler_imports_nothing_else() -> None:
    image = pytest.importorskip("lowerkit.targets.cpu.objects.linker")
    assert set(image.IMPORTABLE) <= set(_native.support_routine_names())


def test_math_routines_are_what_their_names_say(routines: Routines) -> None:
    for name in ("acos", "asin", "atan", "cos", "sin", "tan", "tanh", "exp", "expm1", "log", "log1p", "erf", "sqrt"):
        function = routines.get(name, ctypes.c_double, ctypes.c_double)
        assert function(0.5) == getattr(math, name)(0.5), name
        single = routines.get(name + "f", ctypes.c_float, ctypes.c_float)
        assert single(0.5) == pytest.approx(getattr(math, name)(0.5), rel=1e-6), name
    for name, arguments in (("atan2", (1.0, 2.0)), ("pow", (1.5, 2.5)), ("fmod", (7.5, 2.0)), ("hypot", (3.0, 4.0))):
        function = routines.get(name, ctypes.c_double, ctypes.c_double, ctypes.c_double)
        assert function(*arguments) == getattr(math, name)(*arguments), name


def in_register(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


ALL_16_BITS = np.arange(1 << 16, dtype=np.uint16)


def test_half_to_float_is_exact_for_all_values(routines: Routines) -> None:
    function = routines.get("__extendhfsf2", ctypes.c_float, ctypes.c_float)
    wanted = ALL_16_BITS.view(np.float16).astype(np.float32)
    for bits, value in zip(ALL_16_BITS[::7].tolist(), wanted[::7].tolist(), strict=True):
        result = function(in_register(bits))
        assert result == value or (math.isnan(result) and math.isnan(value)), hex(bits)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.floats(width=32), st.floats(-70000, 70000, width=32), st.floats(-(2**-13), 2**-13, width=32)))
def test_rounding_to_16_bits_is_that_of_numpy(routines: Routines, value: float) -> None:
    with np.errstate(over="ignore"):
        assert_rounds("__truncsfhf2", routines, value, np.float32(value).astype(np.float16), ctypes.c_float)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert_rounds("__truncsfbf2", routines, value, np.float32(value).astype(ml_dtypes.bfloat16), ctypes.c_float)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.floats(), st.floats(-70000, 70000), st.floats(-1e-4, 1e-4)))
def test_doubles_are_rounded_once(routines: Routines, value: float) -> None:
    with np.errstate(over="ignore", under="ignore"):
        assert_rounds("__truncdfhf2", routines, value, np.float64(value).astype(np.float16), ctypes.c_double)


def test_a_double_just_above_a_tie_is_not_rounded_twice(routines: Routines) -> None:
    # Via float, 1 + 2^-11 + 2^-40 would become the tie 1 + 2^-11 and then, to even, 1.
    assert_rounds("__truncdfhf2", routines, 1 + 2**-11 + 2**-40, np.float16(1 + 2**-10), ctypes.c_double)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert_rounds("__truncdfbf2", routines, 1 + 2**-8 + 2**-40, ml_dtypes.bfloat16(1 + 2**-7), ctypes.c_double)


def assert_rounds(name: str, routines: Routines, value: float, wanted: Any, argument: Any) -> None:
    result = np.float32(routines.get(name, ctypes.c_float, argument)(value)).view(np.uint32) & 0xFFFF
    if np.isnan(np.float64(wanted)):
        assert np.isnan(np.float64(np.uint16(result).view(wanted.dtype))), f"{name}({value!r})"
    else:
        assert int(result) == int(wanted.view(np.uint16)), f"{name}({value!r})"
