"""PyTorch's operator samples as a suite: capture, compile, run, and judge the numbers by gate A."""

# torch tells ops apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.diagnostics import first_line
from lowerkit.capture.torch_export.eager import quiet
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.conformance.suite import CaseReport, NotACaseError, WrongResultError
from lowerkit.conformance.torch_cases import Sample, find_sample
from lowerkit.parity.gates import judge_op
from lowerkit.parity.references.torch_nodes import float64_outputs
from lowerkit.program.dtypes import name_of, to_numpy
from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]


class TorchSuite:
    """The samples that :mod:`lowerkit.conformance.torch_cases` names."""

    def run(self, name: str) -> CaseReport:
        """Runs one sample.

        Raises:
            NotACaseError: ``torch.export`` cannot capture the sample, or its result is random.
            WrongResultError: an output does not hold gate A.
            LowerkitError: the sample was refused.
        """
        sample = find_sample(name)
        with quiet(), torch.no_grad():
            try:
                exported = torch.export.export(sample.module, sample.inputs, strict=False)
                eager = _tensors(sample.module(*(tensor.clone() for tensor in sample.inputs)))
            except Exception as error:  # torch raises what it likes
                raise NotACaseError(f"torch.export: {first_line(error)}") from error
        if _is_random(exported):
            raise NotACaseError("the result is random")
        compare(sample, exported, eager)
        return CaseReport()


def compare(sample: Sample, exported: ExportedProgram, eager: list[torch.Tensor]) -> None:
    """Compiles and runs a captured sample, and judges each output beside eager's.

    Raises:
        WrongResultError: with the first output that does not hold gate A.
        LowerkitError: the sample was refused.
    """
    program = capture_exported(exported)
    inputs = [np.array(to_numpy(tensor)) for tensor in sample.inputs]
    compiled = compile_program(program, CompileOptions(golden=False, workers=1))
    ours: list[Array] = compiled.session.run(*inputs)
    expected = [np.array(to_numpy(value)) for value in eager]
    if len(ours) != len(expected):
        raise WrongResultError(f"{len(ours)} outputs, eager has {len(expected)}")
    exact = _float64_outputs(program, inputs, len(expected))
    for index, (one, other, wanted) in enumerate(zip(ours, expected, exact, strict=True)):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise WrongResultError(f"output {index} is {one.dtype}{one.shape}, eager's {other.dtype}{other.shape}")
        usable = wanted if wanted is not None and wanted.shape == other.shape else None
        verdict = judge_op(name_of(other.dtype), one, other, usable)
        if not verdict.passed:
            raise WrongResultError(f"output {index}: {verdict.reason}")


def _float64_outputs(program: Program, inputs: list[Array], count: int) -> list[Array | None]:
    """Returns the outputs in float64; None for each where the operator cannot be computed so."""
    assert program.functional is not None, "it was captured from an exported program"
    run: Callable[..., list[Array] | None] = float64_outputs
    try:
        return list(run(program.functional, inputs, count) or [None] * count)
    except Exception:  # some operators take one element type only
        return [None] * count


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _is_random(exported: ExportedProgram) -> bool:
    return any(
        isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        for node in exported.graph.nodes
    )


def make_suite(argument: str) -> TorchSuite:
    """Makes the suite in a worker; it has no argument."""
    torch.set_num_threads(1)
    return TorchSuite()
