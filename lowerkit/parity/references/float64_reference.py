"""The float64 reference: what the user's own model computes without rounding, by its own framework.

Vocabulary
    reference  the model's outputs in float64, made of the model as it was handed in, never of what was captured of it:
               a wrong capture cannot excuse itself.
    perturbed  a run of the model that is as right as eager's (:mod:`perturbations`).

| the model                 | the reference                                                                      |
|---|---|
| module, factory           | the module run in float64                                                          |
| TorchScript               | the script run in float64 by TorchScript's interpreter                             |
| ``.pt2``, ExportedProgram | torch's own module of the exported program, run in float64: there is no other      |
| ONNX                      | ONNX's reference evaluator on the model widened to float64                         |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.parity.metrics import compare
from lowerkit.parity.references.perturbed_inputs import perturbed_inputs

if TYPE_CHECKING:
    from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]

PERTURBED_RUNS = 8


@dataclass(frozen=True)
class Float64Reference:
    """The reference of one set of inputs.

    Attributes:
        values: the outputs, then the final states, in float64; None for each that there is none for.
        made_by: what computed them.
        missing: why there is none, empty otherwise: then a value can only be within the tolerance of eager.
    """

    values: Sequence[Array | None]
    made_by: str
    missing: str = ""


def float64_reference_of(
    program: Program, inputs: Sequence[Array], eager: Sequence[Array], onnx_exact: Mapping[str, Array]
) -> Float64Reference:
    """Runs the model in float64.

    Args:
        program: as it was captured.
        inputs: in the order of the signature.
        eager: eager's outputs, then its final states.
        onnx_exact: of an ONNX model its values in float64, by name; see :func:`onnx_float64_values`.
    """
    if program.onnx_model is not None:
        from lowerkit.parity.compare.taps import credible

        names = [spec.name for spec in program.signature.outputs]
        values = [credible(onnx_exact.get(name), expected) for name, expected in zip(names, eager, strict=False)]
        return Float64Reference(values, "ONNX's reference evaluator, on the model widened to float64")
    from lowerkit.parity.references.float64_run import torch_float64_outputs

    made_by = _torch_name(program)
    try:
        values = torch_float64_outputs(program.eager, inputs)
    except Exception as error:  # models raise what they like in a type that they were not written for
        text = next(iter(str(error).splitlines()), "")
        return Float64Reference([None] * len(eager), made_by, f"{made_by} fails: {type(error).__name__}: {text}")
    if [value.shape for value in values] != [value.shape for value in eager]:
        return Float64Reference([None] * len(eager), made_by, f"{made_by} gives outputs of other shapes")
    return Float64Reference(values, made_by)


def _torch_name(program: Program) -> str:
    if program.eager_module is None:
        return "the exported program, run by torch in float64 (the model behind it is not in the file)"
    import torch

    return f"the {'script' if isinstance(program.eager_module, torch.jit.ScriptModule) else 'module'} in float64"


def perturbed_outputs(program: Program, inputs: Sequence[Array]) -> list[list[Array]]:
    """Returns the outputs, then the final states, of each perturbed run of the model."""
    eager = program.eager
    assert eager is not None, "a check has an eager side"
    if program.onnx_model is not None:
        from lowerkit.parity.references.onnx_nodes import onnx_perturbed_values

        names = [spec.name for spec in program.signature.outputs]
        runs = [onnx_perturbed_values(program, inputs, names, seed) for seed in range(PERTURBED_RUNS)]
        return [[run[name] for name in names] for run in runs]
    return perturbed_runs(inputs, lambda moved: eager(*moved))


def permitted_outputs(program: Program, inputs: Sequence[Array], allowed: Collection[str]) -> list[list[Array]]:
    """Returns the outputs, then the final states, of eager with what is allowed; none of an ONNX model."""
    eager = program.eager
    assert eager is not None, "a check has an eager side"
    if program.onnx_model is not None or not allowed:
        return []
    from lowerkit.parity.references.permitted_runs import permitted_runs

    return permitted_runs(allowed, lambda: eager(*inputs))


def perturbed_runs(inputs: Sequence[Array], run: Callable[[Sequence[Array]], Any]) -> list[Any]:
    """Returns what ``run``, which computes with PyTorch, gives on moved inputs: reordered, and rounded, in turn."""
    from lowerkit.parity.references.perturbations import Reordering, StochasticRounding

    found: list[Any] = []
    for seed in range(PERTURBED_RUNS):
        mode: AbstractContextManager[Any] = (StochasticRounding if seed % 2 else Reordering)(seed)
        moved = perturbed_inputs(inputs, np.random.default_rng(seed))
        with mode:
            found.append(run(moved))
    return found


def agrees(graph: Array, reference: Array, eager: Array) -> bool:
    """Whether a graph in float64 is what the reference computes: at most twice as far as eager, or 110 dB near."""
    if graph.shape != reference.shape:
        return False
    ours, theirs = compare(graph, reference), compare(eager, reference)
    return ours.special_equal and (ours.sqnr_db >= EXACT_DB or ours.rms <= 2 * theirs.rms)


EXACT_DB = 110.0
"""Two float64 runs of one computation agree at least so well, unless it magnifies what was rounded to start with."""
