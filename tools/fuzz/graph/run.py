"""Captures, compiles and runs random functions in one of several ways, and says how that ended."""

from __future__ import annotations

import contextlib
import random
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import is_concrete_int

import lowerkit
from graph.exporters import by_onnxruntime, by_reference, exporter_differs, trace_differs
from graph.function import Function, Together, set_folder
from graph.judge import misses, run, run_moved
from graph.minimize import without_dead
from graph.witnesses import on_native_kernels, spelled_out
from guarded_memory import guarded_results
from lowerkit import pipeline
from lowerkit.errors import LowerkitError
from lowerkit.program.dtypes import to_numpy, to_torch
from lowerkit.runtimes.session import Session

OPTIONAL_PASSES = (
    "common-subexpressions", "fold-padding", "hoist-slices", "sink-reshapes", "propagate-transposes", "fold-batch-norm",
    "simplify-elementwise", "fuse-epilogue", "fuse-elementwise", "recognize-attention", "recognize-gelu",
    "recognize-layer-norm", "recognize-linear", "recognize-rms-norm", "recognize-rope", "channels-last", "move-views",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How a program is taken: the capture, whether sizes are symbolic, threads, CPU level, passes left out.

    A level with its target before it, such as ``cuda:sm_80``, runs on the simulated card.
    """

    capture: str = "export"  # export, file, trace, script, onnx
    symbolic: bool = False
    threads: int = 1
    cpu: str = "host"
    left_out: tuple[str, ...] = ()

    @staticmethod
    def drawn(rng: random.Random, *, scriptable: bool, cpus: Sequence[str]) -> Way:
        capture = rng.choice(("trace", "script")) if scriptable else rng.choice(("export",) * 12 + ("trace", "onnx"))
        symbolic = capture == "export" and rng.random() < 0.3
        left_out = tuple(p for p in OPTIONAL_PASSES if rng.random() < 0.4) if rng.random() < 0.25 else ()
        return Way(capture, symbolic, rng.choice((1, 1, 3)), rng.choice(cpus), left_out)

    @property
    def target(self) -> str:
        return self.cpu if ":" in self.cpu else f"cpu:{self.cpu}"

    @property
    def device(self) -> str | None:
        return "cuda-sim" if self.cpu.startswith("cuda:") else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Way:
        left_out = tuple(data["left_out"])
        return Way(data["capture"], data["symbolic"], data["threads"], data["cpu"], left_out)


@dataclass(frozen=True)
class Outcome:
    """``kind``: passed, wrong, internal, refused, not captured (by torch itself), crashed, hung."""

    kind: str
    code: str = ""
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.kind in ("wrong", "internal", "crashed", "hung")


def outcome_of(functions: list[Function], way: Way) -> Outcome:
    """Compiles the functions as one module and judges all their outputs on several inputs."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="graph-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        set_folder(Path(folder))
        try:
            return _outcome(functions, way)
        except LowerkitError as error:
            kind = "internal" if error.exit_code == 5 or error.code == "LK8016" else "refused"  # a device never fails
            return Outcome(kind, error.code, str(error)[:3000])
        except Exception:
            return Outcome("internal", "traceback", traceback.format_exc()[-3000:])


def _outcome(functions: list[Function], way: Way) -> Outcome:
    given = [given for function in functions for given in function.inputs]
    inputs = [entry.tensor() for entry in given]
    if not inputs:
        return Outcome("not captured", "", "no inputs")
    try:
        model, exported = _captured(functions, inputs, way)
    except Exception as error:
        return Outcome("not captured", type(error).__name__, str(error)[-600:])
    with _left_out(way.left_out):
        example = None if way.capture in ("export", "onnx") else inputs
        compiled = lowerkit.compile(
            model, example, target=way.target, device=way.device, threads=way.threads, workers=1, use_cache=False
        )
    session: Session = compiled.session
    module = Together(functions)
    calls = [("the example", 0, _same), ("other values", 1, _same)]
    if way.symbolic:
        calls += [
            ("padded", 2, lambda n: n + 1),
            ("doubled", 3, lambda n: 2 * n),
            ("split", 4, lambda n: max(n // 2, 2)),
            ("prime", 5, lambda n: n + 11),
        ]
    varying = _varying(exported, len(given)) if way.symbolic else [()] * len(given)
    for name, seed, scale in calls:
        shapes = [
            tuple(scale(n) if axis in axes else n for axis, n in enumerate(entry.shape))
            for entry, axes in zip(given, varying, strict=True)
        ]
        values = [entry.tensor(shape, seed) for entry, shape in zip(given, shapes, strict=True)]
        also = (
            [lambda by=by, v=values: by(model, v) for by in (by_onnxruntime, by_reference)]
            if way.capture == "onnx"
            else []
        )
        problem = _judged(
            functions, module, exported if seed > 1 else None, session, values, also, at_end=seed % 2 == 0
        )
        if problem is not None and way.capture == "onnx" and exporter_differs(functions, model, module, values):
            return Outcome("not captured", "exporter", f"torch's ONNX export differs from eager; {problem.detail}")
        if problem is not None and way.capture == "trace" and trace_differs(model, module, values):
            return Outcome("not captured", "trace", f"torch's trace differs from eager; {problem.detail}")
        if problem is not None:
            return Outcome(problem.kind, problem.code, f"with {name}: {problem.detail}")
    return Outcome("passed")


def _same(extent: int) -> int:
    return extent


def _varying(exported: Any, count: int) -> list[tuple[int, ...]]:
    """For each input the axes that the export left symbolic."""
    by_name = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    values = [by_name[name] for name in exported.graph_signature.user_inputs]
    assert len(values) == count, "every input of the module is one of the program"
    return [tuple(axis for axis, n in enumerate(value.shape) if not is_concrete_int(n)) for value in values]


def _judged(
    functions: list[Function],
    module: torch.nn.Module,
    exported: Any,
    session: Session,
    values: list[torch.Tensor],
    also: Sequence[Callable[[], list[torch.Tensor]]],
    *,
    at_end: bool,
) -> Outcome | None:
    """Runs one set of inputs; None if all is well. ``also`` are more runs of the captured model by others."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    states = session.state
    arrays = [np.asarray(to_numpy(value)) for value in values]
    if exported is not None:
        try:
            with torch.no_grad():
                exported.module()(*values)
        except Exception:
            try:
                guarded_results(session, arrays, at_end=True)
            except LowerkitError:
                return None
            finally:
                session.set_state(states)
            try:
                run(Together([without_dead(function) for function in functions]), values)
            except Exception as error:
                if "ZeroDivisionError" in str(error):
                    return None  # eager stops at a whole number divided by 0; ours gives one
                if re.search(r"index|out of (bounds|range)", str(error)):
                    if _runs_without_dead(exported, values):
                        return None  # what was checked is written to nothing that is returned
                    return Outcome("wrong", "index", str(error)[:300])
                return Outcome("wrong", "guard", "the exported program and eager refuse these sizes, ours runs")
    try:
        eager = run(module, values)
    except Exception:
        with torch.no_grad():  # it may have written its states before it failed
            for name, value in module.named_buffers():
                value.copy_(before[name])
        return None

    def another(*, double: bool = False) -> torch.nn.Module:
        made = Together(functions)
        if double:
            made.parts = torch.nn.ModuleList(function.module(double=True) for function in functions)
        with torch.no_grad():
            for name, value in made.named_buffers():
                value.copy_(before[name])
        return made

    def moved(count: int) -> list[list[torch.Tensor]]:
        found: list[list[torch.Tensor]] = []
        for seed in range(count):
            with contextlib.suppress(IndexError, RuntimeError):  # an index or a divisor that hangs on rounding
                found.append(run_moved(another(), values, seed))
        return found

    def double() -> list[torch.Tensor]:
        return run(another(double=True), [v.double() if v.is_floating_point() else v for v in values])

    try:
        ours = guarded_results(session, arrays, at_end=at_end)
    except LowerkitError as error:
        if exported is not None and error.code == "LK8004":
            return Outcome("refused", "LK8004", str(error)[:600])
        raise
    witnesses = [
        double,
        lambda: on_native_kernels(another(), values),
        lambda: spelled_out(another(), values),
        lambda: spelled_out(another(), [value.contiguous() for value in values]),
        *also,
    ]
    found = misses([to_torch(array) for array in ours], eager, moved, witnesses)
    return Outcome("wrong", "numbers", "; ".join(found)) if found else None


def _runs_without_dead(exported: Any, values: list[torch.Tensor]) -> bool:
    """Whether the exported program takes the values once writes are values, and those that nothing reads are gone."""
    functional = exported.run_decompositions({}).module()
    functional.graph.eliminate_dead_code()
    functional.recompile()
    try:
        with torch.no_grad():
            functional(*values)
    except (IndexError, RuntimeError):
        return False
    return True


def _captured(functions: list[Function], inputs: list[torch.Tensor], way: Way) -> tuple[Any, Any]:
    """The model as handed to lowerkit, and torch's exported program where there is one."""
    module = Together(functions).eval()
    if way.capture == "trace":
        with torch.no_grad():
            traced: Any = torch.jit.trace(module, tuple(inputs), check_trace=False)
            fresh = dict(Together(functions).named_buffers())
            for name, value in traced.named_buffers():
                value.copy_(fresh[name])  # tracing ran the module once
        return traced, None
    if way.capture == "script":
        (function,) = functions
        return torch.jit.script(function.module()), None
    shapes = None
    if way.symbolic:
        shapes = (tuple({axis: torch.export.Dim.AUTO for axis, n in enumerate(v.shape) if n > 1} for v in inputs),)
    exported = torch.export.export(module, tuple(inputs), dynamic_shapes=shapes, strict=False)
    if way.capture == "onnx":
        program = torch.onnx.export(exported, dynamo=True, verbose=False, optimize=True)
        assert program is not None, "dynamo=True gives a program"
        return program.model_proto, exported
    return exported, exported


class _left_out:  # noqa: N801
    """While it lasts, the default pipeline has no passes of these names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.whole = pipeline.stage_passes

    def __enter__(self) -> None:
        pipeline.stage_passes = lambda stage: [p for p in self.whole(stage) if p.name not in self.names]

    def __exit__(self, *_: object) -> None:
        pipeline.stage_passes = self.whole
