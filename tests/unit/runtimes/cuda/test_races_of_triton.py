"""Triton kernels that order their blocks by themselves, and those that do not need to: silent as they are shipped,
found where an order is taken away."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.support.cuda.triton_kernels import TritonKernel, compile_triton, run_triton
from tests.support.cuda.triton_texts import last_block, matmul, scan, softmax, split_sum

FLOATS, WORDS = "*fp32", "*i32"
RANDOM = np.random.default_rng(3)
LEVELS = pytest.mark.parametrize("sm", [80, 90])


def gpu() -> SimulatedGpu:
    return SimulatedGpu(check_races=True, refuse_unwritten=True, instruction_limit=1_000_000)


def whole(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Numbers whose sums are exact."""
    return RANDOM.integers(0, 9, shape).astype(np.float32)


def split(blocks: int, sm: int, order: str, *, locked: bool) -> None:
    types = {"x": FLOATS, "o": FLOATS, "lock": WORDS, "n": "i32"}
    kernel = compile_triton(split_sum, types, {"B": 256, "LOCKED": locked, "ORDER": order}, sm)
    x = whole(blocks, 256)
    found, lock = run_triton(gpu(), kernel, blocks, [x], [np.zeros(256, np.float32), np.zeros(1, np.int32)], [1])
    assert (found == x.sum(0)).all()
    assert lock[0] == 0


@LEVELS
def test_split_k_by_a_lock(sm: int) -> None:
    for blocks in (1, 2, 40):
        split(blocks, sm, "acq_rel", locked=True)
    split(1, sm, "acq_rel", locked=False)
    with pytest.raises(KernelFault, match="race: .* no release and acquire order the two blocks"):
        split(2, sm, "acq_rel", locked=False)
    with pytest.raises(KernelFault, match="race: .* no release and acquire order the two blocks"):
        split(40, sm, "relaxed", locked=True)


def last(blocks: int, sm: int, order: str) -> None:
    types = {"x": FLOATS, "parts": FLOATS, "count": WORDS, "o": FLOATS, "n": "i32"}
    kernel = compile_triton(last_block, types, {"B": 512, "ORDER": order}, sm)
    x = whole(blocks, 512)
    results = [np.zeros(blocks, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)]
    found = run_triton(gpu(), kernel, blocks, [x], results, [blocks])
    assert found[2][0] == x.sum()


@LEVELS
def test_the_block_that_counts_last(sm: int) -> None:
    for blocks in (1, 7, 300):
        last(blocks, sm, "acq_rel")
    with pytest.raises(KernelFault, match="race: .* no release and acquire order the two blocks"):
        last(300, sm, "relaxed")


def look_back(blocks: int, sm: int, order: str) -> None:
    types = {"x": FLOATS, "o": FLOATS, "sums": FLOATS, "flags": WORDS, "n": "i32"}
    kernel = compile_triton(scan, types, {"B": 256, "ORDER": order}, sm)
    x = whole(blocks, 256)
    results = [np.zeros_like(x), np.zeros(2 * blocks, np.float32), np.zeros(blocks, np.int32)]
    found = run_triton(gpu(), kernel, blocks, [x], results, [blocks])
    assert (found[0].reshape(-1) == np.cumsum(x)).all()


@LEVELS
def test_a_scan_by_decoupled_look_back(sm: int) -> None:
    for blocks in (1, 2, 40):
        look_back(blocks, sm, "acq_rel")
    look_back(1, sm, "relaxed")
    with pytest.raises(KernelFault, match="race: .* no release and acquire order the two blocks"):
        look_back(3, sm, "relaxed")


def barriers(kernel: TritonKernel) -> list[str]:
    """The text with each barrier deleted in turn."""
    lines = kernel.ptx.splitlines()
    places = [number for number, line in enumerate(lines) if "bar.sync" in line]
    return ["\n".join(lines[:at] + lines[at + 1 :]) for at in places]


def test_each_barrier_of_a_softmax() -> None:
    """Every barrier is needed, whatever the numbers say."""
    kernel = compile_triton(softmax, {"x": FLOATS, "o": FLOATS, "n": "i32"}, {"B": 1024})
    x = RANDOM.standard_normal((3, 777)).astype(np.float32)

    def run(ptx: str | None) -> None:
        run_triton(gpu(), kernel, 3, [x], [np.zeros_like(x)], [777], ptx=ptx)

    run(None)
    texts = barriers(kernel)
    assert len(texts) == 3
    for text in texts:
        with pytest.raises(KernelFault, match="race: .* of shared memory"):
            run(text)


def test_barriers_of_a_pipelined_gemm() -> None:
    """Asynchronous copies into three stages: silent, and a race without barriers."""
    types = {"a": FLOATS, "b": FLOATS, "c": FLOATS, "m": "i32", "n": "i32", "k": "i32", "tiles": "i32"}
    kernel = compile_triton(matmul, types, {"M": 32, "N": 32, "K": 32}, num_stages=3)
    assert "cp.async" in kernel.ptx
    a, b = whole(40, 200), whole(200, 50)

    def run(ptx: str | None) -> None:
        (found,) = run_triton(gpu(), kernel, 4, [a, b], [np.zeros((40, 50), np.float32)], [40, 50, 200, 2], ptx=ptx)
        assert (found == a @ b).all()

    run(None)
    texts = barriers(kernel)
    assert texts
    with pytest.raises(KernelFault, match="race: "):
        run(kernel.ptx.replace("bar.sync", "// bar.sync"))
