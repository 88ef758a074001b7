"""Models that give the same bits on every mesh: on one rank and on several, with batches split and whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiled import Compiled, CompileOptions
from lowerkit.compiler import compile_program
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program
from lowerkit.runtimes.verify import verify_artifact
from lowerkit.spmd.sharding import sharding_of
from tests.support.mesh.processes import finished
from tests.support.models import benchmark_models, decoder_program, decoders, fresh

Plan = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(24, 48)
        self.down = nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + self.down(nn.functional.gelu(self.up(x))), dim=-1)


_HEAD: Plan = {"*.lm_head": "vocabulary"}
PLANS: dict[str, Plan] = {
    "mlp": {"up": "column", "down": "row"},
    "gpt2": {"*.c_attn": "column", "*.c_proj": "row", "*.c_fc": "column", "*.wte": "vocabulary", **_HEAD},
    "llama": {
        **dict.fromkeys(("*.[qkv]_proj", "*.gate_proj", "*.up_proj"), "column"),
        **dict.fromkeys(("*.o_proj", "*.down_proj"), "row"),
        "*.embed_tokens": "vocabulary",
        **_HEAD,
    },
    "bert_base": {
        **dict.fromkeys(("*.query", "*.key", "*.value", "*.intermediate.dense"), "column"),
        "*.output.dense": "row",
        "*.word_embeddings": "vocabulary",
    },
    "vit_b16": {"*.[qkv]_proj": "column", "*.o_proj": "row", "*.fc1": "column", "*.fc2": "row"},
    # Bottlenecks: the first 1x1 along outputs, the 3x3 along the channels that a rank has.
    "resnet50": {"*.layer.0.convolution": "column", "*.layer.1.convolution": "row", "*.classifier.1": "row"},
}


@cache
def make(name: str, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Program, torch.Tensor]:
    """A captured model and an input of which each element of the batch is another one."""
    module, x = module_of(name, batch, dtype)
    return capture(module, (x,)), x


def module_of(name: str, batch: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if name == "mlp":
        return Mlp().eval().to(dtype), torch.randn(3, 24)[:batch].to(dtype)
    module, (x, *_) = benchmark_models().tiny(name)
    stacked = torch.cat([x[:1].roll(step, -1) for step in range(batch)])
    return module.to(dtype), stacked.to(dtype) if x.is_floating_point() else stacked


def compiled(captured: Program, mesh: str, plan: Plan | str, *, invariant: bool = True) -> Compiled:
    program = fresh(captured)
    sharding = sharding_of(mesh, plan, program, invariant=invariant)
    return compile_program(program, CompileOptions(golden=False, sharding=sharding))


def run(made: Compiled, x: torch.Tensor) -> Array:
    """The output; ranks that differ from each other fail."""
    wide = x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    return made(wide.astype(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else wide)


def float_sums(made: Compiled) -> list[str]:
    """Collectives that add floats."""
    calls = [step.collective for step in made.parts.program.steps if step.collective is not None]
    return [call.operation for call in calls if call.operation in ("all_reduce", "reduce_scatter", "reduce")]


@pytest.mark.variants("dtype")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("mlp", "llama", "resnet50")),
        *(pytest.param(name, torch.float32, marks=pytest.mark.exhaustive) for name in ("bert_base", "gpt2", "vit_b16")),
        ("mlp", torch.bfloat16),
        ("llama", torch.bfloat16),
    ],
)
def test_the_same_bits_on_one_rank_and_on_several(name: str, dtype: torch.dtype) -> None:
    program, x = make(name, 3, dtype)
    meshes = ("tp=1", "tp=2", "tp=4", "tp=8") if name in ("mlp", "llama") else ("tp=1", "tp=4")
    found: dict[str, Array] = {}
    for mesh in meshes:
        made = compiled(program, mesh, PLANS[name])
        found[mesh] = run(made, x)
        look_ups = int(mesh != "tp=1" and any(choice == "vocabulary" for choice in PLANS[name].values()))
        assert len(float_sums(made)) == look_ups, "only what other ranks give zeros for is summed"
    assert len({array.tobytes() for array in found.values()}) == 1
    with torch.no_grad():
        expected = program.eager_module(x).float().numpy()
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    np.testing.assert_allclose(found["tp=1"].astype(np.float32), expected, rtol=bound, atol=bound)


class Inverted(nn.Module):
    """A block as MobileNet has them: 12 channels wide, which do not divide by eight, a depthwise 3x3, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(4, 12, 1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.reduce = nn.Conv2d(12, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.relu6(self.depthwise(nn.functional.relu6(self.expand(x))))
        return (x + self.reduce(hidden)).mean((2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_whose_channels_do_not_divide(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module, x = Inverted().eval().to(dtype), torch.randn(2, 4, 6, 6).to(dtype)
    plan: Plan = {"expand": "column", "depthwise": "column", "reduce": "row"}
    program = capture(module, (x,))
    found = {run(compiled(program, mesh, plan), x).tobytes() for mesh in ("tp=1", "tp=2", "tp=4")}
    found.add(run(compiled(program, "tp=8", {"reduce": "row"}), x).tobytes())
    assert len(found) == 1
    checked = check_program(program, sharding=sharding_of("tp=2", plan, program, invariant=True), per_op=True)
    assert checked.passed, [row.verdict.reason for row in checked.outputs]


@pytest.mark.parametrize("other", ["dp=2,sp=2", pytest.param("dp=2,tp=2", marks=pytest.mark.exhaustive)])
def test_plans_that_are_chosen_sum_the_same_on_every_mesh(other: str) -> None:
    """Where no axis sums over ranks what two ranks would, each rank makes the same tree by itself."""
    program, x = make("resnet50", 4)
    bits: dict[str, bytes] = {}
    trees: set[int] = set()
    for mesh in ("tp=2", other):
        made = compiled(program, mesh, "auto")
        bits[mesh] = run(made, x).tobytes()
        trees.add(sum(len(step.trees) for step in made.program.certificate.axes))
    assert len(set(bits.values())) == 1
    assert len(trees) == 1
    assert trees != {0}


def test_without_it_the_ranks_show_in_the_bits() -> None:
    program, x = make("llama", 1)
    found = [run(compiled(program, mesh, PLANS["llama"], invariant=False), x) for mesh in ("tp=1", "tp=4")]
    assert found[0].tobytes() != found[1].tobytes()


@pytest.mark.parametrize("name", ["mlp", "llama"])
def test_an_element_of_a_batch_has_the_bits_that_it_has_alone(name: str) -> None:
    program, x = make(name, 3)
    together = run(compiled(program, "tp=2", PLANS[name]), x)
    single = compiled(make(name, 1)[0], "tp=2", PLANS[name])
    for number in (0, 2):
        alone = run(single, x[number : number + 1])
        assert alone.tobytes() == np.ascontiguousarray(together[number : number + 1]).tobytes()


def test_batches_may_be_split_as_well() -> None:
    program, x = make("llama", 2)
    both: Plan = {"dp": {"input_ids": "batch"}, "tp": PLANS["llama"]}
    meshes = ("dp=2,tp=2", "tp=2,dp=2", "dp=2,tp=1", "dp=2")
    outputs = {run(compiled(program, mesh, both), x).tobytes() for mesh in meshes}
    outputs.add(run(compiled(program, "tp=1", PLANS["llama"]), x).tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_step_of_decoding(name: str) -> None:
    """One token, with the caches as states: they hold the same bits too."""
    example = decoders().example()
    found: set[bytes] = set()
    for mesh in ("tp=1", "tp=2"):
        made = compiled(decoder_program(name), mesh, PLANS[name])
        outputs = made.runner.run(**{key: value.numpy() for key, value in example.items()})
        states = [np.asarray(made.runner.state[key]) for key in sorted(made.runner.state)]
        assert len(states) >= 4
        found.add(b"".join(np.ascontiguousarray(array).tobytes() for array in (*outputs, *states)))
    assert len(found) == 1


class Branches(nn.Module):
    """Products inside of branches: functions of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x[0, 0] > 0, lambda y: self.one(y) * 2, lambda y: torch.relu(self.other(y)), (x,))


def test_products_in_branches() -> None:
    torch.manual_seed(0)
    module, x = Branches().eval(), torch.randn(3, 16)
    program = capture(module, (x,))
    made = [compiled(program, mesh, {"one": "row", "other": "row"}) for mesh in ("tp=1", "tp=2")]
    for sign in (1, -1):
        values = torch.cat([sign * x[:1].abs(), x[1:]])
        first, second = (run(each, values) for each in made)
        assert first.tobytes() == second.tobytes()
        np.testing.assert_allclose(first, module(values).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_rows_that_are_known_at_run_time() -> None:
    module, x = module_of("mlp", 3)
    symbolic = capture(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows", max=64)},))
    found: set[bytes] = set()
    for mesh in ("tp=1", "tp=2"):
        made = compiled(symbolic, mesh, PLANS["mlp"])
        families = {entry.family for entry in made.parts.ledger if entry.kind == "matmul"}
        assert families == {"matmul"}, "the tree's products are register-tiled also where rows are unknown"
        found.add(run(made, x).tobytes())
    found.add(run(compiled(capture(module, (x,)), "tp=4", PLANS["mlp"]), x).tobytes())
    assert len(found) == 1


def test_what_cannot_be_so_is_refused() -> None:
    program = fresh(make("mlp", 3)[0])
    sharding = sharding_of("tp=2", PLANS["mlp"], program, invariant=True)
    with pytest.raises(UnsupportedError, match="kernels of cuda") as caught:
        compile_program(program, CompileOptions("cuda:sm_90", device="cuda-sim", sharding=sharding))
    assert caught.value.code == "LK4007"


def test_an_axis_that_the_mesh_lacks_may_not_name_what_is_not_there() -> None:
    program, _ = make("mlp", 2)
    plan: Plan = {"dp": {"x": "batch"}, "tp": {"up": "column", "dwon": "row"}}
    with pytest.raises(UsageError, match="'dwon' names no module of the model; near: .*down"):
        compiled(program, "dp=2", plan)


def test_the_line_of_a_compilation_names_the_price() -> None:
    program, _ = make("mlp", 3)
    for invariant in (False, True):
        summary = compiled(program, "tp=2", PLANS["mlp"], invariant=invariant).sharding
        assert summary is not None
        assert ("the same bits on every mesh, for about" in summary.render()) == invariant
        assert (summary.to_json()["invariant_price"] is not None) == invariant


def test_ranks_as_processes(tmp_path: Path) -> None:
    captured, x = make("llama", 1)
    np.save(tmp_path / "ids.npy", x.numpy())
    single = run(compiled(captured, "tp=1", PLANS["llama"]), x)
    program = fresh(captured)
    sharding = sharding_of("tp=2", PLANS["llama"], program, invariant=True)
    compile_program(program, CompileOptions(sharding=sharding)).save(tmp_path / "two.lk")
    assert verify_artifact(tmp_path / "two.lk").passed
    given = ["--input", f"input_ids=@{tmp_path / 'ids.npy'}", "-o", tmp_path / "out"]
    code, _, err = finished(tmp_path, "run", tmp_path / "two.lk", "--nproc", 2, *given)
    assert code == 0, err
    (path,) = (tmp_path / "out").glob("*.npy")
    assert np.load(path).tobytes() == single.tobytes()
