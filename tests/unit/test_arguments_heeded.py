"""No argument is dropped: each one of the Python functions, for each kind of model, is heeded or refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import LowerkitError
from lowerkit.program.program import Program

KINDS = ("module", "exported", "script", "onnx", "factory", ".pt2", ".pt", ".onnx")
FLEXIBLE = ("module", "factory")


class Weighted(torch.nn.Module):
    """Its arguments must not be mixed up: they have one shape, and none commutes with another."""

    def forward(self, x: torch.Tensor, minus: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
        return (x - 2 * minus) * torch.exp(power)


X, MINUS, POWER = (torch.full((2, 3), value) for value in (1.0, 2.0, 0.5))
EXPECTED = ((X - 2 * MINUS) * torch.exp(POWER)).numpy()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    module, zeros = Weighted().eval(), tuple(torch.zeros(2, 3) for _ in range(3))
    exported = torch.export.export(module, zeros)
    script = torch.jit.script(module)
    torch.export.save(exported, folder / "model.pt2")
    torch.jit.save(script, folder / "model.pt")
    torch.onnx.export(module, zeros, str(folder / "model.onnx"), dynamo=True, verbose=False)
    (folder / "made.py").write_text(
        "import torch\nfrom tests.unit.test_arguments_heeded import Weighted\n"
        "def model():\n    return Weighted().eval(), tuple(torch.zeros(2, 3) for _ in range(3))\n"
    )
    return {
        "module": module, "exported": exported, "script": script, "onnx": onnx.load(str(folder / "model.onnx")),
        "factory": f"{folder}/made.py:model", **{suffix: folder / f"model{suffix}" for suffix in KINDS[5:]},
    }  # fmt: skip


def captured(model: Any, inputs: Sequence[Any] | None, named: Mapping[str, Any] | None, shapes: Any = None) -> Program:
    """As compile, check and quantize do it."""
    if isinstance(model, str | Path):
        return capture_path(str(model), example_inputs=inputs, kwargs=named, dynamic_shapes=shapes)
    return capture(model, inputs, dynamic_shapes=shapes, kwargs=named)


@pytest.mark.parametrize("by_name", [0, 2], ids=lambda count: f"{count} by name")
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_by_position_and_by_name(models: dict[str, Any], kind: str, by_name: int) -> None:
    values = {"x": X, "minus": MINUS, "power": POWER}
    names = list(values)[3 - by_name :]
    named = {name: values[name] for name in reversed(names)}
    positional = tuple(values.values())[: 3 - by_name]
    program = captured(models[kind], positional or None, named or None)
    assert program.example_inputs is not None
    given = dict(zip([spec.name for spec in program.signature.inputs], program.example_inputs, strict=True))
    assert {name: float(array[0, 0]) for name, array in given.items()} == {"x": 1.0, "minus": 2.0, "power": 0.5}
    assert program.eager is not None
    np.testing.assert_allclose(program.eager(*program.example_inputs)[0], EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("positional", "named"), [((X, MINUS), {"absent": POWER}), ((X, MINUS, POWER), {"x": X}), ((X, MINUS), {"x": X})]
)
def test_what_does_not_fit_is_refused(
    models: dict[str, Any], kind: str, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(LowerkitError, match=r"LK(1003|2001)"):
        captured(models[kind], positional, named)


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_shapes_are_heeded_or_refused(models: dict[str, Any], kind: str) -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    shapes = {name: {0: batch} for name in ("x", "minus", "power")}
    inputs = (X, MINUS, POWER)
    if kind in FLEXIBLE:
        (dim,) = captured(models[kind], inputs, None, shapes).signature.dims
        assert (dim.name, dim.maximum) == ("batch", 8)
        return
    with pytest.raises(LowerkitError, match=r"LK1004.*the shapes of .* are fixed"):
        captured(models[kind], inputs, None, shapes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_hands_its_arguments_on(
    models: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That they then are heeded is what the tests above show."""
    seen: list[tuple[Any, Any, Any]] = []

    class SeenError(Exception):
        pass

    def saw(_model: Any, *given: Any, **further: Any) -> Any:
        inputs = further.get("example_inputs", given[0] if given else None)
        seen.append((inputs, further["kwargs"], further["dynamic_shapes"]))
        raise SeenError

    monkeypatch.setattr("lowerkit.capture.load_model.capture_path", saw)
    monkeypatch.setattr("lowerkit.capture.capture.capture", saw)
    inputs, named, shapes = (X,), {"minus": MINUS, "power": POWER}, {"x": {0: "batch"}}
    for call in (
        lambda model: lowerkit.compile(model, inputs, dynamic_shapes=shapes, kwargs=named),
        lambda model: lowerkit.check(model, inputs, dynamic_shapes=shapes, kwargs=named),
        lambda model: lowerkit.quantize(model, [], inputs, dynamic_shapes=shapes, kwargs=named),
    ):
        with pytest.raises(SeenError):
            call(models[kind])
    assert seen == [(inputs, named, shapes)] * 3


@pytest.mark.parametrize(
    "keyword", [{"threads": 0}, {"workers": 0}, {"workers": -1}, {"target": "tpu"}, {"target": "cpu:z80"}]
)
def test_numbers_out_of_range_are_refused(models: dict[str, Any], keyword: dict[str, Any]) -> None:
    with pytest.raises(LowerkitError, match=r"LK(1009|4003)"):
        lowerkit.compile(models["module"], (X, MINUS, POWER), **keyword)(X, MINUS, POWER)


def test_keyword_inputs_reach_a_compiled_model(models: dict[str, Any]) -> None:
    compiled = lowerkit.compile(models[".pt2"], (X,), kwargs={"power": POWER, "minus": MINUS})
    np.testing.assert_allclose(compiled(X, power=POWER, minus=MINUS), EXPECTED, rtol=1e-6)


class Keyed(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, minus: torch.Tensor, nested: dict[str, torch.Tensor]) -> torch.Tensor:
        return (x - 2 * minus) * torch.exp(nested["power"])


@pytest.mark.parametrize("peer", ["eager", "onnxruntime", "openvino"])
def test_peers_of_bench_get_keyword_inputs_by_name(peer: str) -> None:
    from lowerkit.bench.peers import BenchModel, prepare_peer

    module = Keyed().eval()
    program = capture(module, (X,), kwargs={"nested": {"power": POWER}, "minus": MINUS})
    assert program.arguments is not None
    arrays = program.example_inputs or []
    names = [spec.name for spec in program.signature.inputs]
    model = BenchModel(copy.deepcopy(module), None, arrays, names, program.arguments(arrays), "f32", 1)
    np.testing.assert_allclose(prepare_peer(peer, model)()[0], EXPECTED, rtol=1e-5)
