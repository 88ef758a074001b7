"""`emit-c`: built by the system's compiler and run, an artifact gives the bits that the runtime gives."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim

import lowerkit
from lowerkit.c_interface.c_text import identifier
from lowerkit.c_interface.emit import EmittedC, emit_c
from lowerkit.c_interface.half_conversions import ROUTINES, routine_ir
from lowerkit.c_interface.write_files import write_c
from lowerkit.cli.main import cli
from lowerkit.errors import UsageError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.expression_bounds import bounds
from lowerkit.runtimes.expressions import Expr, evaluate
from lowerkit.targets.cpu.levels import LEVELS, cpu_features, runs_on_host
from lowerkit.targets.cpu.objects.lower import llvm_ir_to_object
from tests.support.models import benchmark_models
from tests.support.native_routines import Routines

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="this machine has no C compiler")

POOL = """
#include <pthread.h>
#include "model.h"
typedef struct { int64_t begin, end; int thread; model_task *task; void *work; } share;
static void *work_on(void *p) { share *s = p; s->task(s->work, s->begin, s->end, s->thread); return 0; }
static void three_threads(void *pool, int64_t count, model_task *task, void *work) {
    pthread_t threads[3]; share shares[3];
    ++*(int *)pool;
    for (int i = 0; i < 3; ++i) {
        shares[i] = (share){count * i / 3, count * (i + 1) / 3, i, task, work};
        pthread_create(&threads[i], 0, work_on, &shares[i]);
    }
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], 0);
}
size_t arena_bytes(int threads) { return MODEL_ARENA_BYTES(threads); }
int run_with_threads(model_arguments *a) { int calls = 0; a->parallel = three_threads; a->pool = &calls;
    int status = model_run(a); return status ? -status : calls; }
"""


class Mathematics(torch.nn.Module):
    """Calls of the C math library, conversions to 16 bits, an input named as a word of C, two alike outputs."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(16, 16, generator=generator))

    def forward(self, double: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.acosh((x @ self.weight).exp() + 1) + torch.atan2(x, x.flip(0))
        return y, double.to(torch.bfloat16), double.to(torch.float16), y > 0.5


class Joined(torch.nn.Module):
    """Shapes that depend on both dims, and are read behind each other."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, y.softmax(-1)], 0)
        return torch.nn.functional.avg_pool1d(both[None], 3, stride=2, padding=1)[0] + both.mean()


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.nn.Buffer(torch.full((2, 3), 0.5))
        self.calls = torch.nn.Buffer(torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.sum.add_(x)
        self.calls.add_(1)
        return self.sum.mul(2), self.calls.clone()


def emit(compiled: Any, folder: Path, **options: Any) -> EmittedC:
    compiled.save(folder / "model.lk")
    artifact = open_artifact(folder / "model.lk")
    try:
        emitted = emit_c(artifact, "model", **options)
    finally:
        artifact.close()
    write_c(emitted, folder / "c")
    return emitted


def build(folder: Path, *arguments: str) -> None:
    command = [str(COMPILER), "-Wall", "-Wextra", "-Werror", "-O1", *arguments, "model.o", "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


def shared_library(folder: Path) -> ctypes.CDLL:
    (folder / "pool.c").write_text(POOL)
    build(folder, "-shared", "-fPIC", "pool.c", "-pthread", "-o", "model.so")
    return ctypes.CDLL(str(folder / "model.so"))


def aligned(size: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size]


class Struct:
    """The struct of arguments: slots of eight bytes."""

    def __init__(self, *slots: int | np.ndarray[Any, Any]) -> None:
        self.kept = slots
        values = [slot if isinstance(slot, int) else slot.ctypes.data for slot in slots]
        self.data = ctypes.create_string_buffer(struct.pack(f"<{len(values)}q", *values))


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@needs_compiler
@pytest.mark.parametrize("name", ["resnet50", "llama"])
def test_the_example_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    module, inputs = benchmark_models().tiny(name)
    compiled = lowerkit.compile(module, inputs)
    files = emit(compiled, tmp_path)
    assert len(files.example.splitlines()) <= 35
    build(tmp_path / "c", "example.c", "-o", "example")
    inputs[0].numpy().tofile(tmp_path / "c" / "input.bin")
    subprocess.run(["./example", "input.bin"], cwd=tmp_path / "c", check=True, timeout=300, env={})
    expected = compiled.session.run(*inputs)
    for spec, array in zip(compiled.program.signature.outputs, expected, strict=True):
        assert (tmp_path / "c" / f"{spec.name}.bin").read_bytes() == array.tobytes()


@needs_compiler
@pytest.mark.parametrize("cpu", ["host", "x86-64-v3"])
def test_calls_of_the_math_library(cpu: str, tmp_path: Path) -> None:
    x = torch.randn(5, 16)
    wide = torch.tensor(
        [0.0, -0.0, 1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40, 1e300, -1e-8, torch.inf, torch.nan]
    ).double()
    compiled = lowerkit.compile(Mathematics(), (wide, x), target=f"cpu:{cpu}")
    assert compiled.parts.program.imports, "the test is of imports"
    files = emit(compiled, tmp_path)
    assert "const double *double_;" in files.header
    expected = compiled.session.run(wide, x)
    library = shared_library(tmp_path / "c")
    outputs = [np.zeros_like(array) for array in expected]
    arena = aligned(files.arena_bytes)
    status = library.model_run(Struct(wide.numpy(), x.numpy(), *outputs, arena, 0, 0).data)
    assert status == 0
    for actual, wanted in zip(outputs, expected, strict=True):
        assert_same_bits(actual, wanted)


@needs_compiler
@pytest.mark.parametrize("cpu", LEVELS)
def test_every_level_builds(cpu: str, tmp_path: Path) -> None:
    emit(
        lowerkit.compile(torch.nn.Linear(64, 64).bfloat16(), (torch.randn(4, 64).bfloat16(),), target=f"cpu:{cpu}"),
        tmp_path,
    )
    build(tmp_path / "c", "-std=c11", "-D_DEFAULT_SOURCE", "example.c", "-o", "example")


@needs_compiler
def test_threads_of_the_caller(tmp_path: Path) -> None:
    module, (x,) = benchmark_models().tiny("mobilenet_v2")
    compiled = lowerkit.compile(module, (x,))
    emit(compiled, tmp_path)
    library = shared_library(tmp_path / "c")
    (expected,) = compiled.session.run(x)
    output = np.zeros_like(expected)
    library.arena_bytes.restype = ctypes.c_size_t
    arena = aligned(library.arena_bytes(3))
    assert library.run_with_threads(Struct(x.numpy(), output, arena, 0, 0).data) > 10, "steps went through the pool"
    assert_same_bits(output, expected)


@needs_compiler
def test_one_object_for_many_shapes(tmp_path: Path) -> None:
    dims = {
        "x": {0: Dim("rows", min=1, max=9), 1: Dim("columns", min=3, max=40)},
        "y": {1: Dim("columns", min=3, max=40)},
    }
    compiled = lowerkit.compile(Joined(), (torch.randn(4, 7), torch.randn(2, 7)), dynamic_shapes=dims)
    files = emit(compiled, tmp_path)
    library = shared_library(tmp_path / "c")
    names = [dim.name for dim in compiled.program.signature.dims]
    x, y, output = torch.ones(1), torch.ones(1), np.ones(1)
    for rows, columns in itertools.product((1, 4, 9), (3, 7, 40)):
        x, y = torch.randn(rows, columns), torch.randn(2, columns)
        (expected,) = compiled.session.run(x, y)
        output, values = np.zeros_like(expected), {names[0]: rows, names[1]: columns}
        arguments = Struct(*values.values(), x.numpy(), y.numpy(), output, aligned(files.arena_bytes), 0, 0)
        assert library.model_run(arguments.data) == 0
        assert_same_bits(output, expected)
    for bad in ((0, 7), (10, 7), (4, 41)):
        assert library.model_run(Struct(*bad, x.numpy(), y.numpy(), output, aligned(files.arena_bytes), 0, 0).data) == 1
    assert library.model_run(Struct(4, 7, 0, y.numpy(), output, aligned(files.arena_bytes), 0, 0).data) == 2
    build(tmp_path / "c", "-x", "c++", "-fpermissive", "-w", "example.c", "-x", "none", "-o", "example")


class Collatz(torch.nn.Module):
    """A loop with a branch in it; how often it turns depends on the input."""

    def forward(self, n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def turn(n: torch.Tensor, count: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            after = torch.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, (n,))
            return after, count + 1, torch.tanh(y + x)

        return torch.while_loop(lambda n, count, y: n > 1, turn, (n, torch.tensor(0), x * 2))


@needs_compiler
def test_branches_and_loops(tmp_path: Path) -> None:
    dims = {"n": None, "x": {0: Dim("rows", min=1, max=9)}}
    compiled = lowerkit.compile(Collatz(), (torch.tensor(6), torch.randn(4, 3)), dynamic_shapes=dims)
    files = emit(compiled, tmp_path)
    library = shared_library(tmp_path / "c")
    for n, rows in ((1, 2), (6, 9), (27, 1)):
        inputs = [np.asarray(n), np.random.default_rng(n).standard_normal((rows, 3), np.float32)]
        expected = compiled.session.run(*inputs)
        outputs = [np.zeros_like(array) for array in expected]
        assert library.model_run(Struct(rows, *inputs, *outputs, aligned(files.arena_bytes), 0, 0).data) == 0
        for actual, wanted in zip(outputs, expected, strict=True):
            assert_same_bits(actual, wanted)


@needs_compiler
def test_states(tmp_path: Path) -> None:
    compiled = lowerkit.compile(Counter(), (torch.ones(2, 3),))
    files = emit(compiled, tmp_path)
    library = shared_library(tmp_path / "c")
    state, arena = aligned(1024), aligned(files.arena_bytes + 64)
    for _ in range(2):
        library.model_reset(ctypes.c_void_p(state.ctypes.data))
        compiled.session.reset()
        for _ in range(3):
            x = torch.randn(2, 3)
            expected = compiled.session.run(x)
            outputs = [np.zeros_like(array) for array in expected]
            assert library.model_run(Struct(x.numpy(), *outputs, state, arena, 0, 0).data) == 0
            for actual, wanted in zip(outputs, expected, strict=True):
                assert_same_bits(actual, wanted)


def test_an_open_dim_needs_a_maximum(tmp_path: Path) -> None:
    columns = Dim("columns", min=2)
    compiled = lowerkit.compile(torch.nn.Softmax(-1), (torch.randn(4, 7),), dynamic_shapes=({1: columns},))
    with pytest.raises(UsageError, match="the dim 'columns' has no maximum") as caught:
        emit(compiled, tmp_path, maxima={"batch": 3})
    assert "the model has no dim 'batch'" in str(caught.value)
    with pytest.raises(UsageError, match="not 1"):
        emit(compiled, tmp_path, maxima={"columns": 1})
    assert not (tmp_path / "c").exists()
    assert "int64_t columns; /* 2 to 64 */" in emit(compiled, tmp_path, maxima={"columns": 64}).header


def test_the_command(tmp_path: Path) -> None:
    lowerkit.compile(torch.nn.Linear(4, 3), (torch.randn(2, 4),)).save(tmp_path / "my-model.lk")
    result = CliRunner().invoke(cli, ["emit-c", str(tmp_path / "my-model.lk"), "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert sorted(first) == ["example.c", "my_model.h", "my_model.o"]
    CliRunner().invoke(cli, ["emit-c", str(tmp_path / "my-model.lk"), "-o", str(tmp_path / "again")])
    assert first == {name: (tmp_path / "again" / name).read_bytes() for name in first}, "equal input, equal bytes"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x", "x"),
        ("int", "int_"),
        ("input.1", "input_1"),
        ("7up", "_7up"),
        ("é", "value"),
        ("a*/b", "a_b"),
        ("", "value"),
    ],
)
def test_names_of_c(text: str, name: str) -> None:
    assert identifier(text) == name


EXPRESSIONS = st.recursive(
    st.one_of(st.integers(-5, 20), st.sampled_from(["a", "b"])),
    lambda inner: (
        st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner)
        | st.tuples(st.sampled_from(["floordiv", "ceildiv", "mod"]), inner, st.integers(1, 7))
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(EXPRESSIONS, st.integers(-3, 6), st.integers(0, 4), st.integers(-3, 6), st.integers(0, 4))
def test_bounds_hold(expr: Expr, a: int, a_width: int, b: int, b_width: int) -> None:
    low, high = bounds(expr, {"a": (a, a + a_width), "b": (b, b + b_width)})
    values = [evaluate(expr, {"a": x, "b": y}) for x in range(a, a + a_width + 1) for y in range(b, b + b_width + 1)]
    assert low <= min(values)
    assert max(values) <= high


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("this machine has no C compiler")
    folder = tmp_path_factory.mktemp("routines")
    text, symbols = routine_ir(list(ROUTINES), "own_")
    cpu = cpu_features("host")
    assert runs_on_host(cpu.name)
    text = text.replace("define hidden", "define")
    (folder / "routines.o").write_bytes(llvm_ir_to_object(text, cpu, tuple(symbols.values())))
    subprocess.run([COMPILER, "-shared", "routines.o", "-o", "routines.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "routines.so"))


@pytest.fixture(scope="module")
def native_routines(tmp_path_factory: pytest.TempPathFactory) -> Routines:
    return Routines(tmp_path_factory.mktemp("native"), list(ROUTINES))


@settings(deadline=None, max_examples=500)
@given(st.one_of(st.floats(), st.floats(-70000, 70000), st.floats(-1e-4, 1e-4), st.floats(-1e-38, 1e-38)))
def test_conversions_are_those_of_the_runtime(
    conversions: ctypes.CDLL, native_routines: Routines, value: float
) -> None:
    single = float(np.float32(value)) if abs(value) < 3e38 else value
    for name in ROUTINES:
        wide = ctypes.c_double if "df" in name.split("__trunc")[-1][:2] else ctypes.c_float
        if name.startswith("__extend"):
            argument, result = ctypes.c_float, ctypes.c_double if name.endswith("df2") else ctypes.c_float
            given_value = float(np.uint32(hash(value) & 0xFFFF).view(np.float32))
        else:
            argument, result, given_value = wide, ctypes.c_float, value if wide is ctypes.c_double else single
        ours = getattr(conversions, f"own_{name.strip('_')}")
        ours.argtypes, ours.restype = [argument], result
        wanted = native_routines.get(name, result, argument)
        left, right = (_low_bits(function(given_value), result, name) for function in (ours, wanted))
        assert left == right, (name, given_value)


def _low_bits(value: float, result: Any, name: str) -> int:
    bits = (
        int(np.float64(value).view(np.uint64)) if result is ctypes.c_double else int(np.float32(value).view(np.uint32))
    )
    return bits & 0xFFFF if name.startswith("__trunc") else bits


@needs_compiler
def test_a_guard_is_checked_before_anything_runs(tmp_path: Path) -> None:
    class Even(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if x.shape[0] % 2 == 0 else 3)

    path = tmp_path / "model.lk"
    lowerkit.compile(Even(), (torch.ones(4, 3),), dynamic_shapes=({0: Dim.AUTO},)).save(path)  # type: ignore[dict-item]
    emitted = emit_c(open_artifact(path), "model", {"x_0": 64})
    write_c(emitted, tmp_path)
    assert "x_0 % 2 == 0" in (tmp_path / "model.h").read_text()
    assert COMPILER is not None
    command = [COMPILER, "-O1", "example.c", "model.o", "-lm", "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for rows, status in ((6, 0), (7, 1)):
        np.ones((rows, 3), np.float32).tofile(tmp_path / "x.bin")
        ended = subprocess.run(["./example", str(rows), "x.bin"], cwd=tmp_path, capture_output=True, check=False)
        assert ended.returncode == status, ended.stderr
