"""Fused modules to step tables, and these through the whole target into a session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.artifact.safetensors_blob import TensorSource
from lowerkit.artifact.writer import write_artifact
from lowerkit.codegen import assemble
from lowerkit.codegen.assemble import CompiledParts
from lowerkit.codegen.memory import arena_use
from lowerkit.codegen.schedule import Schedule, build_schedule
from lowerkit.codegen.weight_table import WeightTable
from lowerkit.dialect.context import new_context
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import COPY_KERNEL, HOST, Dim, Signature, TensorSpec
from lowerkit.runtimes.session import load
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.weight_packing import Packing
from lowerkit.targets.cpu.generic.generic import GenericFamily
from lowerkit.targets.cpu.levels import CpuFeatures, host_features
from lowerkit.targets.cpu.target import CpuTarget
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import LinkSettings
from tests.support.region_text import fused

Array = np.ndarray[Any, Any]

UNARY = """%{r} = "lk.region"(%{x}) ({{
  ^bb0(%in: tensor<?x8xf32>):
    %c0 = arith.constant 0 : index
    %d = tensor.dim %in, %c0 : tensor<?x8xf32>
    %e = tensor.empty(%d) : tensor<?x8xf32>
    %g = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}} ins(%in : tensor<?x8xf32>) outs(%e : tensor<?x8xf32>) {{
    ^bb1(%i: f32, %o: f32):
      %k = arith.constant {value} : f32
      %y = arith.addf %i, %k : f32
      linalg.yield %y : f32
    }} -> tensor<?x8xf32>
    "lk.yield"(%g) : (tensor<?x8xf32>) -> ()
  }}) {{kind = "elementwise"}} : (tensor<?x8xf32>) -> tensor<?x8xf32>
"""
MATMUL = """%{r} = "lk.region"(%{x}, %{w}) ({{
  ^bb0(%in: tensor<?x8xf32>, %filter: tensor<8x8xf32>):
    %m = "lk.matmul"(%in, %filter) {{transpose_lhs = false, transpose_rhs = false, accumulate = f32}}
      : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
    "lk.yield"(%m) : (tensor<?x8xf32>) -> ()
  }}) {{kind = "matmul"}} : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
"""
ROWS = [TensorSpec("x", "f32", ["n", 8])]


def add(r: str, x: str, value: float = 1.0) -> str:
    return UNARY.format(r=r, x=x, value=value)


def program(body: str, returned: Sequence[str], *, states: Sequence[TensorSpec] = (), types: str = "") -> Program:
    names = ", ".join(f"%{name}" for name in returned)
    kinds = types or ", ".join(["tensor<?x8xf32>"] * len(returned))
    text = f"func.func @main(%x: tensor<?x8xf32>) -> ({kinds}) {{\n{body}\nreturn {names} : {kinds}\n}}"
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(fused(text))
    weights = WeightStore()
    weights.add("w", np.arange(64, dtype=np.float32).reshape(8, 8) / 64)
    outputs = [TensorSpec(f"out{index}", "f32", ["n", 8]) for index in range(len(returned))]
    signature = Signature(ROWS, outputs, list(states), [Dim("n", 1, 1000)])
    return Program(context, module, weights, signature, "test", "fused")


def schedule_of(made: Program, *families: KernelFamily) -> Schedule:
    asked = [*families, GenericFamily()]
    compilers = {HOST: lambda region: select_kernel(region, host_features(), asked)}
    return build_schedule(made.module, made.signature, WeightTable(made.weights), compilers)


def compile_parts(made: Program, workers: int = 1) -> CompiledParts:
    return assemble.compile_parts(made, [CpuTarget()], [], LinkSettings(workers, use_cache=False))


def save(parts: CompiledParts, path: Path) -> Path:
    weights = {name: TensorSource(w.dtype, w.shape, w.read) for name, w in parts.weights.items()}
    write_artifact(path, parts.manifest, parts.code, weights)
    return path


def run(made: Program, path: Path, rows: int = 5) -> tuple[list[Array], list[Array]]:
    """What the artifact computes, and what the interpreter says."""
    x = np.random.default_rng(3).standard_normal((rows, 8)).astype(np.float32)
    session = load(save(compile_parts(made), path))
    return session.run(x), interpret(made.module, [x], made.weights.get, states={"cache": np.zeros((4, 8), np.float32)})


def check(made: Program, path: Path, rows: int = 5) -> None:
    actual, expected = run(made, path, rows)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_chain_shares_one_kernel_and_reuses_the_arena(tmp_path: Path) -> None:
    made = program(add("a", "x") + add("b", "a") + add("c", "b") + add("d", "c"), ["d"])
    schedule = schedule_of(made)
    assert len(schedule.plans) == 1
    assert [step.kernel for step in schedule.steps] == [0] * 4
    assert [buffer.kind for buffer in schedule.buffers] == ["input", "arena", "arena", "arena", "output"]
    assert [(b.first_step, b.last_step) for b in schedule.buffers if b.kind == "arena"] == [(0, 1), (1, 2), (2, 3)]
    use = arena_use(schedule.buffers, {"n": 10})
    assert (use.buffers, use.total_bytes, use.peak_bytes) == (3, 960, 640)
    assert schedule.steps[0].dims == ["n", "n"]
    check(made, tmp_path / "m.lk")


@pytest.mark.parametrize("returned", [["x"], ["a", "a"], ["x", "a", "x"], ["v", "a"]])
def test_results_that_no_step_owns_are_copied(returned: list[str], tmp_path: Path) -> None:
    view = (
        "%c0 = arith.constant 0 : index\n%n = tensor.dim %x, %c0 : tensor<?x8xf32>\n"
        "%u = tensor.expand_shape %x [[0], [1, 2]] output_shape [%n, 2, 4] : tensor<?x8xf32> into tensor<?x2x4xf32>\n"
        "%v = tensor.collapse_shape %u [[0], [1, 2]] : tensor<?x2x4xf32> into tensor<?x8xf32>\n"
    )
    made = program(add("a", "x") + view, returned)
    steps = schedule_of(made).steps
    assert sum(step.kernel == COPY_KERNEL for step in steps) == len(returned) - ("a" in returned)
    check(made, tmp_path / "m.lk")


def test_a_weight_in_two_layouts_is_two_tensors(tmp_path: Path) -> None:
    """One consumer takes the weight packed, another one reads it as it is."""
    weight = '%w = "lk.weight"() {symbol = "w"} : () -> tensor<8x8xf32>\n'
    body = weight + MATMUL.format(r="a", x="x", w="w") + MATMUL.format(r="b", x="a", w="w")

    class Packing8(KernelFamily):
        name = "packing"

        def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
            if not region.operands[1].is_weight:
                return Refusal("not a weight")
            plan = GenericFamily().plan(region, cpu)
            assert isinstance(plan, DeviceCode)
            layout = Packing.of("matmul_panels", panel=8, transposed=0)
            return DeviceCode("packing", plan.text, plan.task_count, plan.scratch_bytes, {1: layout})

    made = program(body, ["b", "w"], types="tensor<?x8xf32>, tensor<8x8xf32>")
    schedule = schedule_of(made, Packing8())
    assert len(schedule.weights) == 2
    assert schedule.weights["w"].shape == (8, 8)
    packed = next(weight for name, weight in schedule.weights.items() if name != "w")
    np.testing.assert_array_equal(
        packed.read(), Packing.of("matmul_panels", panel=8, transposed=0).apply(made.weights.get("w"))
    )
    assert packed.read().shape == packed.shape
    check(program(body, ["b"]), tmp_path / "m.lk")


def test_refusals_stand_in_the_ledger() -> None:
    class Never(KernelFamily):
        name = "never"

        def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
            return Refusal(f"{region.kind} on a {cpu.vector_bits}-bit machine")

    made = program(add("a", "x"), ["a"])
    schedule = schedule_of(made, Never())
    (entry,) = schedule.ledger
    assert entry.family == "generic"
    assert entry.refusals == (("never", f"elementwise on a {host_features().vector_bits}-bit machine"),)


STATE = '%s = "lk.state_read"() {symbol = "cache"} : () -> tensor<4x8xf32>\n'
GROW = """%t = "lk.region"(%s) ({
  ^bb0(%in: tensor<4x8xf32>):
    %e = tensor.empty() : tensor<4x8xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%in : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
    ^bb1(%i: f32, %o: f32):
      %k = arith.constant 2.0 : f32
      %y = arith.addf %i, %k : f32
      linalg.yield %y : f32
    } -> tensor<4x8xf32>
    "lk.yield"(%g) : (tensor<4x8xf32>) -> ()
  }) {kind = "elementwise"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
"lk.state_write"(%t) {symbol = "cache"} : (tensor<4x8xf32>) -> ()
"""


def test_a_state_lives_from_run_to_run(tmp_path: Path) -> None:
    """The old value is returned after the new one was written: it must have been copied before."""
    states = [TensorSpec("cache", "f32", [4, 8])]
    made = program(add("a", "x") + STATE + GROW, ["a", "s"], states=states, types="tensor<?x8xf32>, tensor<4x8xf32>")
    signature = made.signature
    outputs = [signature.outputs[0], TensorSpec("old", "f32", [4, 8])]
    made.signature = Signature(signature.inputs, outputs, states, signature.dims)
    session = load(save(compile_parts(made), tmp_path / "m.lk"))
    x = np.zeros((2, 8), np.float32)
    for value in (0, 2, 4):
        np.testing.assert_array_equal(session.run(x)[1], np.full((4, 8), value))


def test_a_state_that_is_not_read_again_is_not_copied() -> None:
    made = program(add("a", "x") + STATE + GROW, ["a"], states=[TensorSpec("cache", "f32", [4, 8])])
    steps = schedule_of(made).steps
    assert [step.kind for step in steps] == ["elementwise", "elementwise", "copy"]


def test_literals_are_stored(tmp_path: Path) -> None:
    literal = "%k = arith.constant dense<[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]]> : tensor<1x8xf32>\n"
    made = program(add("a", "x") + literal, ["a", "k"], types="tensor<?x8xf32>, tensor<1x8xf32>")
    signature = made.signature
    outputs = [signature.outputs[0], TensorSpec("k", "f32", [1, 8])]
    made.signature = Signature(signature.inputs, outputs, [], signature.dims)
    session = load(save(compile_parts(made), tmp_path / "m.lk"))
    np.testing.assert_array_equal(session.run(np.zeros((2, 8), np.float32))[1], [[1, 2, 3, 4, 5, 6, 7, 8]])


def test_names_and_places_come_from_locations() -> None:
    made = program(add("a", "x"), ["a"])
    with made.context:
        place = ir.Location.name("add_3@encoder.0", ir.Location.file("model.py", 12, 1))
        (region,) = [op for op in made.main.regions[0].blocks[0].operations if op.operation.name == "lk.region"]
        text = str(made.module.operation.get_asm(enable_debug_info=True))
        assert "model.py" not in text
        region.operation.location = place
    (step,) = schedule_of(made).steps
    assert (step.name, step.location) == ("add_3", "model.py:12")


def test_an_op_outside_of_a_region_is_an_error() -> None:
    made = program("%y = math.exp %x : tensor<?x8xf32>\n", ["y"])
    with pytest.raises(CodegenError, match=r"math\.exp") as caught:
        schedule_of(made)
    assert caught.value.code == "LK5002"


def model() -> Program:
    weight = '%w = "lk.weight"() {symbol = "w"} : () -> tensor<8x8xf32>\n'
    body = weight + add("a", "x") + MATMUL.format(r="b", x="a", w="w")
    body += "".join(add(f"v{number}", f"v{number - 1}" if number else "b", number + 0.5) for number in range(8))
    return program(body, ["v7", "b"])


def test_the_whole_model(tmp_path: Path) -> None:
    for rows in (1, 17, 1000):
        check(model(), tmp_path / f"{rows}.lk", rows)


def test_artifacts_do_not_depend_on_workers_or_hash_seeds(tmp_path: Path) -> None:
    reference = save(compile_parts(model()), tmp_path / "reference.lk").read_bytes()
    code = (
        "import sys, runpy, pathlib; space = runpy.run_path(sys.argv[1])\n"
        "space['save'](space['compile_parts'](space['model'](), int(sys.argv[3])), pathlib.Path(sys.argv[2]))\n"
    )
    for seed, workers in (("1", 1), ("2", 2)):
        path = tmp_path / f"{seed}.lk"
        root = Path(__file__).resolve().parents[3]
        subprocess.run(
            [sys.executable, "-c", code, __file__, str(path), str(workers)],
            check=True,
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        )
        assert path.read_bytes() == reference
