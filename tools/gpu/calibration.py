"""Words by which the simulated device is held to a card: approximate functions, and sums of tensor cores.

A probe is a PTX module with one kernel, the words that it reads and those that it wrote. On a card the second ones are
recorded; a test runs the same probe on the simulated device and compares: ``tests/golden/cards/*.npz``.

Vocabulary
    word       32 bits
    fragment   what the 32 lanes of a warp hold of a matrix, lane by lane
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer

Words = np.ndarray[Any, np.dtype[np.uint32]]

UNARY = (
    "ex2.approx.f32", "ex2.approx.ftz.f32", "lg2.approx.f32", "rcp.approx.f32", "rcp.approx.ftz.f32",
    "rsqrt.approx.f32", "sqrt.approx.f32", "sin.approx.f32", "cos.approx.f32", "tanh.approx.f32",
)  # fmt: skip
BINARY = ("div.full.f32", "div.approx.f32")


@dataclass(frozen=True)
class Matrix:
    """An ``mma.sync``: its name, and how many words of A, B, C and D a lane holds; how a factor is made of a float."""

    name: str
    words: tuple[int, int, int, int]
    factor: str


MATRICES = (
    Matrix("m16n8k16.row.col.f32.bf16.bf16.f32", (4, 2, 4, 4), "bf16"),
    Matrix("m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4, 4), "f16"),
    Matrix("m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2, 2), "f16"),
    Matrix("m16n8k8.row.col.f32.tf32.tf32.f32", (4, 2, 4, 4), "tf32"),
)
BLOCKS = 64
FUNCTION_WORDS = 4096
_HEAD = ".version 7.8\n.target {level}\n.address_size 64\n.visible .entry probe(.param .u64 in, .param .u64 out)\n{{\n"
_PLACE = (
    ".reg .b32 %t, %b, %n, %i;\n.reg .b64 %in, %out, %at;\nld.param.u64 %in, [in];\nld.param.u64 %out, [out];\n"
    "mov.u32 %t, %tid.x;\nmov.u32 %b, %ctaid.x;\nmov.u32 %n, %ntid.x;\nmad.lo.s32 %i, %b, %n, %t;\n"
)


@dataclass(frozen=True)
class Probe:
    """A kernel and what it reads; ``written`` words it writes."""

    ptx: str
    read: Words
    written: int
    blocks: int
    threads: int


def probes(level: str) -> dict[str, Probe]:
    """Returns the probes for a level by name."""
    found: dict[str, Probe] = {}
    for name in UNARY:
        found[name] = _function(level, name, function_words(name, 1))
    for name in BINARY:
        found[name] = _function(level, name, function_words(name, 2))
    for matrix in MATRICES:
        found[f"mma.{matrix.name}"] = _matrix(level, matrix)
    return found


def run_probe(driver: Driver, probe: Probe, level: str) -> Words:
    """Runs a probe on a device; returns what it wrote."""
    kernel = driver.kernel(driver.load(probe.ptx.encode(), b"", level), "probe")
    read, size = np.ascontiguousarray(probe.read).view(np.uint8), 4 * probe.written
    source, target = driver.allocate(read.size), driver.allocate(size)
    try:
        driver.write(source, read, 0)
        arguments = [
            LaunchBuffer(source, read.size, "operand 0", writable=False),
            LaunchBuffer(target, size, "result 0"),
        ]
        driver.launch(kernel, probe.blocks, probe.threads, 0, arguments, 0)
        found = np.zeros(size, np.uint8)
        driver.read(found, target, 0)
    finally:
        driver.free(source)
        driver.free(target)
    return found.view(np.uint32)


def save(path: Path, level: str, card: str, found: Mapping[str, tuple[Probe, Words]]) -> None:
    """Writes what a card gave, with the kernels and words that it was given."""
    arrays: dict[str, Any] = {"level": np.array(level), "card": np.array(card)}
    for name, (probe, words) in found.items():
        arrays[f"{name}/ptx"] = np.array(probe.ptx)
        arrays[f"{name}/read"], arrays[f"{name}/wrote"] = probe.read, words
        arrays[f"{name}/shape"] = np.array([probe.blocks, probe.threads])
    np.savez_compressed(path, **arrays)


def load(path: Path) -> tuple[str, dict[str, tuple[Probe, Words]]]:
    """Returns the level of a file that :func:`save` wrote, and each probe with what the card wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        names = sorted({key.rpartition("/")[0] for key in arrays.files if "/" in key})
        found: dict[str, tuple[Probe, Words]] = {}
        for name in names:
            wrote = arrays[f"{name}/wrote"]
            blocks, threads = (int(each) for each in arrays[f"{name}/shape"])
            probe = Probe(str(arrays[f"{name}/ptx"]), arrays[f"{name}/read"], wrote.size, blocks, threads)
            found[name] = probe, wrote
        return str(arrays["level"]), found


def function_words(name: str, operands: int) -> Words:
    """Returns words for a function: every special value, and floats of every exponent."""
    random = np.random.default_rng(sum(name.encode()))
    special = np.array(
        [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x42FC0000, 0x43000000, 0x7F7FFFFF, 0x7F800000,
         0x7FC00000, 0x7F800001], np.uint32,
    )  # fmt: skip
    special = np.concatenate([special, special | np.uint32(1 << 31)])
    count = FUNCTION_WORDS * operands
    words = random.integers(0, 1 << 32, count, dtype=np.uint32)
    near = (random.standard_normal(count // 2) * 40).astype(np.float32).view(np.uint32)
    words[: near.size] = near
    words[: special.size] = special
    return random.permutation(words) if operands == 2 else words


def _function(level: str, name: str, read: Words) -> Probe:
    operands = read.size // FUNCTION_WORDS
    threads = 128
    loads = "".join(
        f"add.s32 %i, %i, {FUNCTION_WORDS if number else 0};\nmul.wide.s32 %at, %i, 4;\nadd.s64 %at, %in, %at;\n"
        f"ld.global.f32 %x{number}, [%at];\n"
        for number in range(operands)
    )
    back = f"sub.s32 %i, %i, {FUNCTION_WORDS * (operands - 1)};\n"
    arguments = ", ".join(f"%x{number}" for number in range(operands))
    ptx = (
        _HEAD.format(level=level) + f".reg .f32 %x<{operands}>, %y;\n" + _PLACE + loads + back
        + f"{name} %y, {arguments};\nmul.wide.s32 %at, %i, 4;\nadd.s64 %at, %out, %at;\nst.global.f32 [%at], %y;\n"
        + "ret;\n}\n"
    )  # fmt: skip
    return Probe(ptx, read, FUNCTION_WORDS, FUNCTION_WORDS // threads, threads)


def _matrix(level: str, matrix: Matrix) -> Probe:
    a, b, c, d = matrix.words
    each = a + b + c
    words = _fragments(matrix)
    registers = [f"%r{number}" for number in range(each)]
    results = [f"%d{number}" for number in range(d)]
    loads = "".join(f"ld.global.b32 {register}, [%at+{4 * n}];\n" for n, register in enumerate(registers))
    stores = "".join(f"st.global.b32 [%at+{4 * n}], {register};\n" for n, register in enumerate(results))
    groups = [registers[:a], registers[a : a + b], registers[a + b :]]
    operands = ", ".join("{" + ", ".join(group) + "}" for group in [results, *groups])
    ptx = (
        _HEAD.format(level=level) + f".reg .b32 %r<{each}>, %d<{d}>;\n" + _PLACE
        + f"mul.wide.s32 %at, %i, {4 * each};\nadd.s64 %at, %in, %at;\n{loads}"
        + f"mma.sync.aligned.{matrix.name} {operands};\n"
        + f"mul.wide.s32 %at, %i, {4 * d};\nadd.s64 %at, %out, %at;\n{stores}ret;\n}}\n"
    )  # fmt: skip
    return Probe(ptx, words, BLOCKS * 32 * d, BLOCKS, 32)


def _fragments(matrix: Matrix) -> Words:
    """Returns words of A, B and C, lane by lane: exponents near and far, sums that cancel, and special values."""
    random = np.random.default_rng(sum(matrix.name.encode()))
    a, b, c, _ = matrix.words
    per_word = 1 if matrix.factor == "tf32" else 2
    spread = np.repeat(np.linspace(0, 12, BLOCKS), 32)[:, None]

    def numbers(count: int) -> Any:
        exponents = np.rint(random.uniform(-1, 1, (BLOCKS * 32, count)) * spread)
        return (
            random.uniform(1, 2, exponents.shape) * 2.0**exponents * random.choice([-1, 1], exponents.shape)
        ).astype(np.float32)

    factors = numbers((a + b) * per_word)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0], np.float32)
    rows = random.choice(BLOCKS * 32, BLOCKS, replace=False)
    factors[rows, 0] = random.choice(special, rows.size)
    packed = _packed(factors, matrix.factor)
    sums = numbers(c * (1 if c == 4 else 2)) * np.float32(4)
    sums[random.choice(BLOCKS * 32, BLOCKS, replace=False), 0] = 0.0
    accumulators = sums.view(np.uint32) if c == 4 else _packed(sums, "f16")
    return np.ascontiguousarray(np.concatenate([packed, accumulators], 1)).reshape(-1)


def _packed(values: Any, kind: str) -> Any:
    if kind == "tf32":
        return values.view(np.uint32) & np.uint32(0xFFFFE000)
    if kind == "f16":
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(halves).view(np.uint32)
