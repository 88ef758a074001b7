"""The six architectures, small, compiled for CUDA and run launch for launch on the simulated device, by gate A."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import Compiled, CompileOptions, compile_program
from lowerkit.errors import RuntimeFault
from lowerkit.parity.check import check_program
from lowerkit.quantization.quantize import quantize
from lowerkit.targets.cuda.ptx import libdevice
from tests.support.models import benchmark_models, decoders, tiny_program

SIMULATED = "cuda-sim"


@pytest.mark.parametrize(
    ("dtype", "level", "by_op"),
    [(torch.float32, "sm_80", True), (torch.bfloat16, "sm_90", True), (torch.bfloat16, "sm_80", False)],
    ids=["f32-sm_80", "bf16-sm_90", "bf16-sm_80"],
)
@pytest.mark.parametrize(
    "name",
    [
        *("resnet50", "bert_base", "llama"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mobilenet_v2", "vit_b16", "gpt2")),
    ],
)
def test_gate_a(name: str, dtype: torch.dtype, level: str, by_op: bool) -> None:
    """The simulated device holds every launch to its bounds, to what was written, and to an order among threads."""
    report = check_program(tiny_program(name, dtype), target=f"cuda:{level}", device=SIMULATED, per_op=by_op)
    failing = [(row.name, row.verdict.reason) for row in (*report.ops, *report.outputs) if not row.verdict.passed]
    assert report.outputs and not failing, failing
    assert len(report.ops) > 12 or not by_op


def test_a_second_run_is_one_graph() -> None:
    module, inputs = benchmark_models().tiny("gpt2")
    session = compiled(module, inputs).session
    memory = session._calls.memories["cuda"]  # pyright: ignore[reportPrivateUsage]
    first = session.run(*inputs)[0]
    for _ in range(2):
        np.testing.assert_array_equal(session.run(*inputs)[0], first)
    (sequence,) = memory.sequences._known.values()  # pyright: ignore[reportPrivateUsage]
    assert sequence.graph is not None and len(sequence.calls) > 10


def test_two_levels_in_one_artifact(tmp_path: Path) -> None:
    """Weights are there once, and each level has code of its own."""
    module, inputs = benchmark_models().tiny("bert_base")
    sizes: dict[str, int] = {}
    for target in ("cuda:sm_80", "cuda:sm_90,cuda:sm_80"):
        made = compile_program(capture(module, inputs), CompileOptions(target, golden=False, device=SIMULATED))
        path = tmp_path / f"{len(sizes)}.lk"
        made.save(path)
        session = lowerkit.load(path, device=SIMULATED)
        with torch.no_grad():
            np.testing.assert_allclose(session.run(*inputs)[0], module(*inputs).numpy(), rtol=1e-4, atol=1e-4)
        sizes[target] = sum(weight.end - weight.begin for weight in session._artifact.weights.values())  # pyright: ignore[reportPrivateUsage]
    assert len(set(sizes.values())) == 1


def compiled(module: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> Compiled:
    """Compiles a module; all of it must be taken."""
    program = capture(module.eval(), inputs, **options)
    made = compile_program(program, CompileOptions("cuda:sm_90", golden=False, device=SIMULATED))
    (summary,) = made.offload
    assert summary.ops == summary.all_ops, summary.render()
    return made


def hold(found: Any, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-5)


class Attends(nn.Module):
    """Attention over a sequence of any length, of any batch."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.last, self.norm = nn.Linear(16, 48), nn.Linear(16, 5), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.softmax(self.last(self.norm(x + y.transpose(1, 2).flatten(2))), -1)


def test_open_batch_and_sequence() -> None:
    module = Attends().eval()
    shapes = {"x": {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=128)}}
    session = compiled(module, (torch.randn(3, 5, 16),), dynamic_shapes=shapes).session
    for batch, length in ((3, 5), (2, 2), (1, 33), (3, 5)):
        x = torch.randn(batch, length, 16)
        hold(session.run(x)[0], module(x))


class Cache(nn.Module):
    """Keys that are kept from one run to the next, written at a position that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 8, 4))
        self.keys: torch.Tensor
        self.project = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, self.project(x))
        scores = x @ self.keys.transpose(1, 2)
        mask = torch.arange(8) > position
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ self.keys


def test_a_cache_of_keys() -> None:
    module = Cache().eval()
    with torch.no_grad():
        session = compiled(module, (torch.randn(1, 1, 4), torch.tensor([0]))).session
        module.keys.zero_()
        for position in range(4):
            x, at = torch.randn(1, 1, 4), torch.tensor([position])
            hold(session.run(x, at)[0], module(x, at))
    hold(session.state["keys"], module.keys)


def test_a_token_moves_no_cache() -> None:
    """The caches of a decoder stay on the device, where a step writes what is new alone; a second run is graphs."""
    module = decoders().decoder("llama", tiny=True)
    program = capture(module, (), kwargs=decoders().example())
    made = compile_program(program, CompileOptions("cuda:sm_90", golden=False, device=SIMULATED))
    steps, buffers = made.parts.program.steps, made.parts.program.buffers
    states = [[buffers[each] for each in step.buffers if buffers[each].kind == "state"] for step in steps]
    assert {each.memory for found in states for each in found} == {"cuda"}
    written = [found[0].index for step, found in zip(steps, states, strict=True) if step.kind == "scatter"]
    assert len(set(written)) == 4
    copied = {each.size for step, found in zip(steps, states, strict=True) if step.kind == "copy" for each in found}
    assert copied == {8}  # the counters alone
    session = made.session
    tokens, at = torch.tensor([[5]]), torch.tensor([0])
    with torch.no_grad():
        for position in range(3):
            tokens, at = torch.tensor([[5 + position]]), torch.tensor([position])
            found = session.run(input_ids=tokens, cache_position=at)[0]
            hold(found, module(input_ids=tokens, cache_position=at))
    hold(session.state["key_cache_0"], module.get_buffer("key_cache_0"))
    driver: Any = session._calls.memories["cuda"].device  # pyright: ignore[reportPrivateUsage]
    launches = driver.driver.launches
    session.reset()
    session.run(input_ids=tokens, cache_position=at)
    assert driver.driver.launches - launches == sum(step.kernel >= 0 for step in steps)


class Windows(nn.Module):
    """Two caches: the rows before their update are read behind it in one, not in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("old", torch.arange(128.0).reshape(8, 16))
        self.register_buffer("new", torch.zeros(8, 16))
        self.old: torch.Tensor
        self.new: torch.Tensor

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        before = self.old.clone()
        self.old.index_copy_(0, positions, x)
        self.new.index_copy_(0, positions, x * 2)
        return (self.old @ before.T) @ self.new


def test_caches_with_and_without_readers_of_the_old_rows() -> None:
    """The last of equal positions stands; a position out of range changes nothing, though updates are made in place."""
    module = Windows()
    session = compiled(module, (torch.randn(3, 16), torch.tensor([0, 1, 2]))).session
    for positions in ([4, 1, 4], [7, 0, 2], [5, 5, 5]):
        x, at = torch.randn(3, 16), torch.tensor(positions)
        np.testing.assert_allclose(session.run(x, at)[0], module(x, at).numpy(), rtol=1e-4, atol=1e-3)
        state = session.state
        with pytest.raises(RuntimeFault, match="LK8015"):
            session.run(x, torch.tensor([0, 8, 1]))
        for name, value in session.state.items():
            np.testing.assert_array_equal(value, state[name])
            hold(value, module.get_buffer(name))


class Turns(nn.Module):
    """A branch and a loop that depend on data: decided by the host, computed on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x.sum() > 0, lambda x: self.first(x).abs(), lambda x: self.second(x) * 2, (x,))

        def body(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.first(x)), n - 1

        return torch.while_loop(lambda x, n: n > 0, body, (x, n))[0] @ x


def test_branches_and_loops_by_data() -> None:
    module = Turns().eval()
    program = capture(module, (torch.ones(4, 4), torch.tensor(2)))
    session = compile_program(program, CompileOptions("cuda:sm_80", golden=False, device=SIMULATED)).session
    for sign, turns in ((1, 0), (-1, 3), (1, 1)):
        x = torch.rand(4, 4) * sign
        hold(session.run(x, torch.tensor(turns))[0], module(x, torch.tensor(turns)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.second(torch.relu(self.first(x)))), 2)
        return self.last(x.flatten(1))


def test_an_int8_model_gives_the_integers_of_the_cpu() -> None:
    """What comes of the last integers differs by the rounding of a product before a sum, which the CPU fuses."""
    module, samples = Convolutions().eval(), [[torch.randn(2, 3, 8, 8)] for _ in range(3)]
    x = torch.randn(2, 3, 8, 8)
    on_cpu = quantize(module, samples, (x,), keep_float=())
    on_gpu = quantize(module, samples, (x,), keep_float=(), target="cuda:sm_90", device=SIMULATED)
    assert on_gpu.compiled.offload[0].ops == on_gpu.compiled.offload[0].all_ops
    np.testing.assert_allclose(on_gpu.compiled(x), on_cpu.compiled(x), rtol=0, atol=1e-7)


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.exp(x @ y) @ x.sqrt()


def test_f64_functions_are_those_of_the_library() -> None:
    x, y = torch.rand(4, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
    made = lowerkit.compile(Doubles().eval(), (x, y), target="cuda:sm_90", device=SIMULATED)
    assert made.offload[0].ops == made.offload[0].all_ops
    np.testing.assert_allclose(made(x, y), Doubles()(x, y).numpy(), rtol=1e-14)


def test_f64_functions_without_the_library_run_on_the_host_and_stand_in_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libdevice, "available", lambda: False)
    x, y = torch.rand(4, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
    made = lowerkit.compile(Doubles().eval(), (x, y), target="cuda:sm_90", device=SIMULATED)
    assert "elementwise math.exp of f64: there is no code for the GPU" in [
        each.reason for each in made.offload[0].missing
    ]
    np.testing.assert_allclose(made(x, y), Doubles()(x, y).numpy(), rtol=1e-12)
    assert made.offload[0].ops == 3
