"""ONNX's cases as a suite: compile, run, compare as ONNX's own runner does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx.backend.test.runner import Runner

from lowerkit.conformance.onnx_backend import PreparedModel
from lowerkit.conformance.onnx_cases import read_case, read_index
from lowerkit.conformance.suite import CaseReport, WrongResultError


class OnnxSuite:
    """The cases of a folder that :mod:`lowerkit.conformance.onnx_cases` wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases = {case.name: case for case in read_index(folder)}

    def run(self, name: str) -> CaseReport:
        """Runs all data sets of a case.

        Raises:
            WrongResultError: an output differs in number, shape, element type, or by more than the case allows.
            LowerkitError: the model was refused.
        """
        case = self._cases[name]
        model, sets = read_case(self._folder, case)
        prepared = PreparedModel(model)
        for data in sets:
            outputs = prepared.run(data.inputs)
            compare_outputs(list(outputs), data.outputs, case.rtol, case.atol)
        notes = [f"input {fixed!r} is compiled in" for fixed in prepared.fixed_inputs]
        return CaseReport(notes)


def compare_outputs(outputs: list[Any], expected: list[Any], rtol: float, atol: float) -> None:
    """Compares with the function of ONNX's own runner.

    Raises:
        WrongResultError: with what it says.
    """
    try:
        Runner.assert_similar_outputs(expected, outputs, rtol, atol)
    except (AssertionError, AttributeError, TypeError) as error:
        raise WrongResultError(str(error)) from error


def make_suite(argument: str) -> OnnxSuite:
    """Makes the suite in a worker; ``argument`` is its folder."""
    return OnnxSuite(Path(argument))
