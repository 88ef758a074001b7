"""Faults planted in kernels, launches, the memory plan and the driver's calls: the simulated device finds each.

A small model goes the way that users go: captured, compiled to a file, loaded, run. What is planted is found at its
kernel and the line of its text, and the session says the op and the line of the user's model. Nothing is said of the
model as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import binding
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.image import Function
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from lowerkit.targets.cuda import target
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx import link
from lowerkit.targets.cuda.ptx.compile import Compiled
from tests.support.targets.cuda_kernels import CudaRegion, compile_with

ROWS, DEPTH, COLUMNS = 70, 300, 24
X = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float32)
Edit = Callable[[str], str]


class Model(nn.Module):
    """Three kernels: a softmax, a product, and one that turns its result over and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(X[:COLUMNS].T.copy()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)  # the softmax
        z = torch.tanh(y @ self.w)  # the product
        return z.T.contiguous() + 1  # the turn


class Skip(nn.Module):
    """The softmax is read again behind the product, whose result is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(X[:COLUMNS].T.copy()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        z = torch.cumsum(y, -1) @ self.w
        return torch.tanh(y) * z[:, :1]  # the skip


LINES = {
    word: number
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1)
    for word in ("softmax", "product", "turn", "skip")
    if line.endswith(f"# the {word}")
}
KINDS = {"softmax": "softmax", "product": "matmul", "turn": "elementwise", "skip": "elementwise"}
FAMILIES = {"softmax": "softmax", "product": "gemm", "turn": "elementwise", "skip": "elementwise"}


class Plant:
    """Compiles and runs the model with something changed on the way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder
        self.module: Callable[[], nn.Module] = Model
        self.runs = 1
        self.sources: dict[str, str] = {}

    def source(self, which: str, edit: Edit) -> None:
        """Changes the text of a kernel before it is compiled."""
        self._planned(which, lambda planned: _with_source(planned, edit))

    def function(self, which: str, edit: Callable[[Function], Function]) -> None:
        """Changes the launches of a region."""
        self._planned(which, lambda planned: msgspec.structs.replace(planned, function=edit(planned.function)))

    def ptx(self, which: str, edit: Edit) -> None:
        """Changes the PTX of a kernel before it is put into the image."""
        real = link.compile_kernels

        def compiled(*arguments: Any) -> Mapping[tuple[str, str], Compiled]:
            found = dict(real(*arguments))
            for key, kernel in found.items():
                if kernel.family == FAMILIES[which]:
                    changed = edit(kernel.ptx)
                    assert changed != kernel.ptx, "nothing was planted"
                    found[key] = msgspec.structs.replace(kernel, ptx=changed, cubin=b"")
            return found

        self.monkeypatch.setattr(link, "compile_kernels", compiled)

    def run(self) -> Any:
        """Captures, compiles, saves, loads and runs."""
        self._planned("", lambda planned: planned)
        options = CompileOptions("cuda:sm_80", golden=False, device="cuda-sim")
        path = self.folder / "model.lk"
        compile_program(capture(self.module(), (torch.from_numpy(X),)), options).save(path)
        session = lowerkit.load(path, device="cuda-sim")
        return [session.run(X) for _ in range(self.runs)][-1][0]

    def found(self, which: str, words: str, text: str = "") -> KernelFault:
        """Runs, and holds what is found: the words, the op and the user's line, the kernel, and its line's text."""
        with pytest.raises(RuntimeFault) as caught:
            self.run()
        error, fault = caught.value, caught.value.__cause__
        while not isinstance(fault, KernelFault):
            assert fault is not None, f"{error}"
            fault = fault.__cause__ if fault.__cause__ is not None else getattr(fault, "error", None)
        assert re.search(words, fault.message), fault.message
        assert error.code == "LK8016"
        assert error.location == f"test_planted_faults.py:{LINES[which]}", error
        assert error.op is not None
        assert KINDS[which] in error.op, error.op
        assert re.search(words, error.message), error.message
        assert f"kernel {FAMILIES[which]}_" in (fault.op or ""), fault.op
        assert fault.location is not None
        number = int(fault.location.rpartition(":")[2])
        line = self.sources[FAMILIES[which]].splitlines()[number - 1]
        assert fault.location.startswith("kernel.py:")
        assert text in line, line
        return fault

    def _planned(self, which: str, edit: Callable[[PlannedRegion], PlannedRegion]) -> None:
        real = target.select_kernels

        def select(region: Any, level: str) -> Any:
            planned, refusals = real(region, level)
            if which and planned.family == FAMILIES[which]:
                changed = edit(planned)
                assert changed != planned, "nothing was planted"
                planned = changed
            for kernel in planned.kernels.values():
                if isinstance(kernel, FastKernel):
                    self.sources[kernel.kernel.family] = kernel.kernel.source
            return planned, refusals

        self.monkeypatch.setattr(target, "select_kernels", select)


def _with_source(planned: PlannedRegion, edit: Edit) -> PlannedRegion:
    """Returns a region whose one kernel has another text, under another name."""
    ((name, kernel),) = planned.kernels.items()
    assert isinstance(kernel, FastKernel)
    changed = msgspec.structs.replace(kernel.kernel, source=edit(kernel.kernel.source))
    if changed == kernel.kernel:
        return planned
    launches = [msgspec.structs.replace(each, kernel=f"{name}_planted") for each in planned.function.launches]
    function = msgspec.structs.replace(planned.function, launches=launches)
    return msgspec.structs.replace(planned, function=function, kernels={f"{name}_planted": FastKernel(changed)})


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    return Plant(monkeypatch, tmp_path)


def test_nothing_is_said_of_the_model_as_it_is(plant: Plant) -> None:
    y = np.exp(X - X.max(1, keepdims=True).astype(np.float64))
    z = np.tanh(y / y.sum(1, keepdims=True) @ X[:COLUMNS].T)
    np.testing.assert_allclose(plant.run(), z.T + 1, rtol=1e-5)


def test_a_lost_mask(plant: Plant) -> None:
    plant.source("turn", lambda text: re.sub(r"(tl\.load\(.*), mask=\w+\)", r"\1)", text))
    plant.found("turn", r"reads \d+ bytes .* the end of operand 0", "tl.load(")


def test_a_lost_tail(plant: Plant) -> None:
    """One block too few: who reads the result finds the rows that nothing has written."""
    plant.function("softmax", lambda each: _first(each, blocks=ROWS - 1))
    plant.found("product", r"reads \d+ bytes .* nothing has written there", "tl.load(")


def test_a_missing_barrier(plant: Plant) -> None:
    plant.ptx("softmax", lambda text: re.sub(r"^\s*bar\.sync.*\n", "", text, count=1, flags=re.MULTILINE))
    plant.found("softmax", "nothing orders|not ordered|race")


def test_a_wrong_shuffle(plant: Plant) -> None:
    """It names half of the lanes that run it."""
    plant.ptx("softmax", lambda text: re.sub(r"(shfl\.sync\.bfly[^;]*), -1;", r"\1, 65535;", text, count=1))
    plant.found("softmax", "lane")


def test_two_blocks_write_the_same_bytes(plant: Plant) -> None:
    plant.source("turn", lambda text: re.sub(r"tl\.store\(p1 \+ \((\w+)\)", r"tl.store(p1 + (\1 % 1024)", text))
    plant.found("turn", "nothing orders|not ordered|race", "tl.store(")


def test_an_arena_slot_that_is_used_again_too_early(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values end one step before they are read for the last time: a kernel writes what it reads."""
    real = binding.plan_memory

    def plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], alignment: int) -> Any:
        return real(sizes, first, [max(a, b - 1) for a, b in zip(first, last, strict=True)], alignment)

    monkeypatch.setattr(binding, "plan_memory", plan)
    plant.found("softmax", "nothing has written there", "tl.load(")


@pytest.mark.parametrize("planted", [True, False])
def test_a_stale_arena_slot(plant: Plant, monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    """The softmax ends where it is first read, so another lies over it; unplanted, a graph has no finding."""
    real = binding.plan_memory

    def plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], alignment: int) -> Any:
        early = sorted(range(len(first)), key=first.__getitem__)[1 % len(first)]  # behind the copy of the input
        if planted and len(first) > 2:
            last = [first[early] + 1 if number == early else each for number, each in enumerate(last)]
        return real(sizes, first, last, alignment)

    monkeypatch.setattr(binding, "plan_memory", plan)
    plant.module, plant.runs = Skip, 3
    if not planted:
        plant.run()
        return
    made, written = (r"step \d+ 'softmax' \(softmax", r"step \d+ 'matmul' \(matmul")
    fault = plant.found("skip", rf"it is the value of {made}.*, over which {written}.* wrote its own", "tl.load(")
    assert "operand 0" in fault.message or "reads" in fault.message


def test_a_stale_arena_slot_that_is_copied_out(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device holds for the host ends before it is copied there."""
    real = binding.plan_memory

    def plan(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], alignment: int) -> Any:
        return real(sizes, first, list(first), alignment)

    monkeypatch.setattr(binding, "plan_memory", plan)
    plant.module = Skip
    with pytest.raises(RuntimeFault, match="over which step|nothing has written there"):
        plant.run()


def test_a_missing_copy(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedDriver.write

    def write(self: SimulatedDriver, address: int, data: Any, queue: int) -> None:
        if data.size != X.nbytes:
            real(self, address, data, queue)

    monkeypatch.setattr(SimulatedDriver, "write", write)
    plant.found("softmax", "nothing has written there", "tl.load(")


def test_a_bound_that_is_off_by_one(plant: Plant) -> None:
    plant.source("turn", lambda text: text.replace(f"< {ROWS}", f"<= {ROWS}"))
    plant.found("turn", r"reads \d+ bytes .* the end of operand 0", "tl.load(")


def test_a_read_of_what_nothing_writes(plant: Plant) -> None:
    """The product loads its result, as if it added to it."""
    plant.source("product", lambda text: re.sub(
        r"( +)tl\.store\(p2 \+ \((\w+)\), (\w+), mask=(\w+)\)",
        r"\1old = tl.load(p2 + (\2), mask=\4)\n\1tl.store(p2 + (\2), \3 + old, mask=\4)", text,
    ))  # fmt: skip
    plant.found("product", "nothing has written there", "old = tl.load(")


@pytest.fixture(scope="module")
def regions() -> dict[str, CudaRegion]:
    """The regions of the model, as the target compiles them."""
    found: dict[str, CudaRegion] = {}
    with pytest.MonkeyPatch.context() as patch:
        real = target.select_kernels

        def select(region: Any, level: str) -> Any:
            planned, refusals = real(region, level)
            found[planned.family] = compile_with(planned, region, level)
            return planned, refusals

        patch.setattr(target, "select_kernels", select)
        options = CompileOptions("cuda:sm_80", golden=False, device="cuda-sim")
        compile_program(capture(Model(), (torch.from_numpy(X),)), options)
    return found


@pytest.mark.parametrize("ordered", [True, False])
def test_queues_without_an_event(regions: dict[str, CudaRegion], ordered: bool) -> None:
    """The softmax in one queue, the product that reads it in another."""
    device = SimulatedCudaDevice("sm_80")
    first, second = (device.load(np.frombuffer(regions[name].code, np.uint8)) for name in ("softmax", "gemm"))
    x, y, w, z = (device.allocate(4 * size) for size in (ROWS * DEPTH, ROWS * DEPTH, DEPTH * COLUMNS, ROWS * COLUMNS))
    device.copy_in(x, X.reshape(-1).view(np.uint8), 0)
    device.copy_in(w, np.ascontiguousarray(X[:COLUMNS].T).reshape(-1).view(np.uint8), 1)
    device.launch(first, [x, y], [], 0)
    if ordered:
        device.wait(device.record(0), 1)
        device.launch(second, [y, w, z], [], 1)
        return
    with pytest.raises(KernelFault, match="queue") as caught:
        device.launch(second, [y, w, z], [], 1)
    for words in ("a launch of gemm_", "a launch of softmax_", "operand 0", "result 0"):
        assert words in "\n".join([caught.value.message, *caught.value.details]), caught.value
    assert (caught.value.op or "").startswith("kernel gemm_")


def test_a_session_in_two_queues(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second launch goes to another queue: the fault has the kernel, both steps, and the user's lines."""
    real = SimulatedCudaDevice.launch
    count = 0

    def launch(self: SimulatedCudaDevice, program: Any, addresses: Any, dims: Any, queue: int) -> None:
        nonlocal count
        count += 1
        real(self, program, addresses, dims, queue + count % 2)

    monkeypatch.setattr(SimulatedCudaDevice, "launch", launch)
    with pytest.raises(RuntimeFault, match="without an order") as caught:
        plant.run()
    error = caught.value
    assert error.location == f"test_planted_faults.py:{LINES['softmax']}"
    assert re.search(r"a launch of softmax_\w+ of step \d+ 'softmax' \(softmax at test_planted_faults", error.message)
    assert re.search("a copy from the host of step 0 ", error.message) and "at kernel softmax_" in error.message


def _first(function: Function, **changes: Any) -> Function:
    launches = [msgspec.structs.replace(function.launches[0], **changes), *function.launches[1:]]
    return msgspec.structs.replace(function, launches=launches)
