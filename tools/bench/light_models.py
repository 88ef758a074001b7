"""The nine `light` models of the onnx wheel: as they are against their shipped outputs, then with random weights.

Shipped, every weight is one constant: a comparison of outputs says little. So each model runs a second time with
seeded random weights (:mod:`random_weights`) against ONNX Runtime on two random inputs that the weights were not fitted
to, and the outputs have to depend on the input. What goes into a final softmax is compared as well.

    python tools/bench/light_models.py [--only resnet50] [--json light.json]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import lowerkit
from lowerkit.parity.gates import Verdict, judge_model
from lowerkit.parity.metrics import compare

sys.path.insert(0, str(Path(__file__).parent))
from random_weights import random_image, with_random_weights

Array = np.ndarray[Any, Any]
FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx"))
LEAST_DEPENDENCE = 0.2
"""How much two inputs' outputs have to differ, relative to their rms; less, and the comparison says little."""
CALIBRATION_IMAGES = 4


def random_model(name: str, seed: int) -> onnx.ModelProto:
    """Returns a light model with random weights; the operand of a final Softmax is a second output."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    generator = np.random.default_rng(seed)
    shape = next(iter(runner_inputs(model).values())).shape
    images = [random_image(generator, shape) for _ in range(CALIBRATION_IMAGES)]
    model = with_random_weights(model, generator, images)
    last = next(node for node in model.graph.node if node.output[0] == model.graph.output[0].name)
    if last.op_type == "Softmax":
        logits = model.graph.output.add()
        logits.CopyFrom(model.graph.output[0])
        logits.name = last.input[0]
    return model


def compare_with_runtime(path: Path, seed: int) -> tuple[list[Verdict], float, float]:
    """Returns the verdicts on two inputs, the dependence of the outputs on the input, and the compile seconds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    assert len(names) == 1
    generator = np.random.default_rng([seed, 1])
    images = [random_image(generator, session.get_inputs()[0].shape) for _ in range(2)]
    started = time.perf_counter()
    compiled = lowerkit.compile(path, images[:1])
    seconds = time.perf_counter() - started
    verdicts: list[Verdict] = []
    expected = [[np.asarray(value) for value in session.run(None, {names[0]: image})] for image in images]
    for image, wanted in zip(images, expected, strict=True):
        actual = compiled.session.run(image)
        verdicts += [judge_model("f32", ours, theirs) for ours, theirs in zip(actual, wanted, strict=True)]
    dependence = min(10 ** (-compare(one, other).sqnr_db / 20) for one, other in zip(*expected, strict=True))
    return verdicts, dependence, seconds


def check_model(name: str, seed: int) -> dict[str, Any]:
    """Runs one model both ways; returns a row of the table."""
    shipped = shipped_output(FOLDER / f"light_{name}.onnx")
    with tempfile.TemporaryDirectory(prefix="lowerkit-light-") as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(random_model(name, seed), path)
        verdicts, dependence, seconds = compare_with_runtime(path, seed)
    return {
        "model": name,
        "shipped": shipped,
        "random": [verdict.reason for verdict in verdicts],
        "passed": shipped["passed"] and all(verdict.passed for verdict in verdicts) and dependence >= LEAST_DEPENDENCE,
        "dependence": dependence,
        "compile_seconds": seconds,
    }


def shipped_output(path: Path) -> dict[str, Any]:
    """Compares with the output that ships beside the model, on the input its test runner makes for it."""
    expected = numpy_helper.to_array(onnx.load_tensor(path.with_name(path.stem + "_output_0.pb")))
    feeds = runner_inputs(onnx.load(path))
    compiled = lowerkit.compile(path, list(feeds.values()))
    actual = compiled.session.run(*feeds.values())[0]
    # The tolerance is that of onnx's own runner for these models.
    passed = bool(np.allclose(actual, expected.reshape(actual.shape), rtol=1e-3, atol=1e-5))
    return {"passed": passed, "max_error": compare(actual, expected.reshape(actual.shape)).max_abs}


def runner_inputs(model: onnx.ModelProto) -> dict[str, Array]:
    """Returns the inputs as onnx's test runner makes them: rising values over [0, 1)."""
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        count = int(np.prod(shape))
        feeds[value.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    return feeds


@click.command()
@click.option("--only", multiple=True, help="A model's name; repeat. All nine without it.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(only: tuple[str, ...], seed: int, json_path: Path | None) -> None:
    """Check the light models; exit code 6 when one fails."""
    rows: list[dict[str, Any]] = []
    for name in only or NAMES:
        row = check_model(name, seed)
        rows.append(row)
        verdict = "ok  " if row["passed"] else "FAIL"
        click.echo(
            f"{verdict} {name:15} shipped max error {row['shipped']['max_error']:.1e}; random weights: "
            f"{'; '.join(row['random'])}; outputs change by {row['dependence']:.2f} of their rms; "
            f"compiled in {row['compile_seconds']:.1f} s"
        )
    if json_path is not None:
        json_path.write_text(json.dumps({"models": rows}, indent=2))
    if not all(row["passed"] for row in rows):
        raise SystemExit(6)


if __name__ == "__main__":
    main()
