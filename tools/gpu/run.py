"""Runs what prepare.py compiled on a card: parity, sanitizer, benchmark, calibration; writes JSON.

    python tools/gpu/run.py build/gpu_check [--device cuda:1] [--output FOLDER] [--only parity] [--repeats 20]

``--device cuda-sim`` rehearses it without a card: times then say nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import bundle  # pyright: ignore[reportMissingImports]  (beside this file)
import calibration  # pyright: ignore[reportMissingImports]  (beside this file)
import msgspec
import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.cuda.device import CudaDevice
from lowerkit.runtimes.device import open_device
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.session import load

PARTS = ("parity", "sanitizer", "benchmark", "calibration")
MARGIN = 3.0  # dB that results may be further from f64 than eager's
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")


def decibels(found: Any, exact: Any) -> float:
    """Returns the ratio of signal to error."""
    error = float(np.sum((found - exact) ** 2))
    return 300.0 if error == 0 else 10 * float(np.log10(float(np.sum(exact**2)) / error))


def as_float(array: Any) -> Any:
    """Returns results as f64; bf16 comes as a type of its own or as its bits."""
    if array.dtype.itemsize == 2 and array.dtype != np.float16:
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def check_parity(each: Any, folder: Path, device: str) -> dict[str, Any]:
    """Runs a model twice, the second time as a graph, and holds its results to f64."""
    session = load(folder / each.artifact, device=device)
    with np.load(folder / each.numbers) as arrays:
        exact, eager = arrays["exact"], arrays["eager"]
        inputs = [arrays[f"in{number}"] for number in range(len(arrays.files) - 2)]
    for number, spec in enumerate(session.signature.inputs):
        if spec.dtype == "bf16":
            inputs[number] = inputs[number].view(bfloat16())
    first, second = (session.run(*inputs)[0] for _ in range(2))
    ours, theirs = decibels(as_float(first), exact), decibels(eager, exact)
    same = first.tobytes() == second.tobytes()
    return {
        "name": each.name, "sqnr_db": round(ours, 1), "eager_db": round(theirs, 1), "same_bits_twice": same,
        "passed": bool(same and ours >= min(theirs, 100.0) - MARGIN),
    }  # fmt: skip


def bfloat16() -> Any:
    """The numpy type of bf16."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def measure(each: Any, folder: Path, name: str, repeats: int) -> dict[str, Any]:
    """Times the largest step of an artifact: launches one behind the other, the median of five rounds."""
    artifact = open_artifact(folder / each.artifact)
    program = artifact.manifest.programs[0]
    (spec,) = program.devices
    device = open_device(name, spec.level)
    assert isinstance(device, CudaDevice), "bundles are for CUDA"
    step = max((step for step in program.steps if step.kernel >= 0), key=lambda step: (step.flops, step.bytes))
    entry = program.kernels[step.kernel]
    code = artifact.entry_bytes(program.code[entry.device])[entry.offset : entry.offset + entry.size]
    loaded = device.load(code)
    random = np.random.default_rng(0)
    inputs = [evaluate(size, {}) for size in loaded.function.operands]
    sizes = [*inputs, *(evaluate(size, {}) for size in loaded.function.results)]
    addresses = [device.allocate(size) for size in sizes]
    for address, size in zip(addresses, inputs, strict=False):
        numbers = random.standard_normal(size // (2 if each.dtype == "bf16" else 4), np.float32)
        words = (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if each.dtype == "bf16" else numbers
        device.copy_in(address, words.view(np.uint8), 0)
    device.launch(loaded, addresses, [], 0)
    device.synchronize(0)
    rounds: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            device.launch(loaded, addresses, [], 0)
        device.synchronize(0)
        rounds.append((time.perf_counter() - start) / repeats)
    device.close()
    seconds = median(rounds)
    return {
        "name": each.name, "seconds": seconds, "spread": [min(rounds), max(rounds)],
        "tflops": each.flops / seconds / 1e12, "gb_per_second": each.bytes / seconds / 1e9, "predicted": each.predicted,
    }  # fmt: skip


def sanitize(folder: Path, device: str) -> list[dict[str, Any]]:
    """Runs the parity part below NVIDIA's checkers, where they are installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return [{"tool": "compute-sanitizer", "passed": None, "why": "it is not installed"}]
    found: list[dict[str, Any]] = []
    for name in SANITIZERS:
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, __file__, str(folder)]
        command += ["--device", device, "--only", "parity", "--output", str(folder / "sanitizer")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found.append({"tool": name, "passed": done.returncode == 0, "tail": (done.stdout + done.stderr)[-600:]})
    return found


def calibrate(name: str, path: Path) -> dict[str, Any]:
    """Records words of the card; those of the simulated device too, in a rehearsal."""
    device = open_device(name, "")
    assert isinstance(device, CudaDevice), "words are recorded of CUDA devices"
    major, minor = device.driver.capability or (9, 0)
    level = f"sm_{major}{minor}"
    found: dict[str, Any] = {}
    for probe_name, probe in calibration.probes(level).items():
        found[probe_name] = probe, calibration.run_probe(device.driver, probe, level)
    card = str(getattr(device.driver, "name", "simulated"))
    device.close()
    calibration.save(path, level, card, found)
    return {"file": path.name, "level": level, "card": card, "probes": len(found)}


def run(folder: Path, device: str, output: Path, parts: tuple[str, ...], repeats: int) -> dict[str, Any]:
    """Runs the parts and writes ``gpu_check.json``."""
    described = bundle.read_bundle(folder)
    output.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"device": device, "bundle": described.made_by, "python": sys.version.split()[0]}
    if "parity" in parts:
        result["parity"] = [check_parity(each, folder, device) for each in described.parity]
    if "sanitizer" in parts:
        result["sanitizer"] = sanitize(folder, device)
    if "benchmark" in parts:
        result["benchmark"] = [measure(each, folder, device, repeats) for each in described.timings]
    if "calibration" in parts:
        result["calibration"] = calibrate(device, output / "calibration.npz")
    (output / "gpu_check.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return result


def show(result: dict[str, Any]) -> bool:
    """Prints what was found; returns whether nothing failed."""
    for each in result.get("parity", []):
        print(
            f"{'ok  ' if each['passed'] else 'FAIL'} {each['name']}: {each['sqnr_db']} dB, eager {each['eager_db']} dB,"
            f" {'the same' if each['same_bits_twice'] else 'OTHER'} bits twice"
        )
    for each in result.get("sanitizer", []):
        word = {True: "ok  ", False: "FAIL", None: "none"}[each["passed"]]
        print(word, each["tool"], each.get("why", ""))
    for each in result.get("benchmark", []):
        predicted = ", ".join(f"{level} {seconds * 1e6:.1f}" for level, seconds in each["predicted"].items())
        print(
            f"     {each['name']}: {each['seconds'] * 1e6:.1f} us, {each['tflops']:.1f} TFLOP/s, "
            f"{each['gb_per_second']:.0f} GB/s; predicted us: {predicted}"
        )
    if "calibration" in result:
        print(f"     {result['calibration']['probes']} probes of {result['calibration']['card']} recorded")
    checks = [*result.get("parity", []), *result.get("sanitizer", [])]
    return all(each["passed"] is not False for each in checks)


def main() -> int:
    """Runs it all; the exit code is 6 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=Path("gpu_check"))
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    try:
        parts = tuple(arguments.only or PARTS)
        result = run(arguments.folder, arguments.device, arguments.output, parts, arguments.repeats)
    except LowerkitError as error:
        print(error.render(), file=sys.stderr)
        return 8
    return 0 if show(result) else 6


if __name__ == "__main__":
    sys.exit(main())
