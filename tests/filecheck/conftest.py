"""FileCheck from pytest: run a pass pipeline over IR text and match the result with CHECK lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.passes.base import PassContext
from lowerkit.passes.registry import parse_pipeline
from lowerkit.program.weights import WeightStore


def match_checks(output: str, checks: str) -> None:
    """Raises AssertionError with FileCheck's own report when ``output`` does not satisfy the CHECK lines."""
    options = Options(match_filename="checks", input_file="output")
    parser = Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    result = Matcher(options, FInput("output", output), parser).run()
    assert result == 0, f"FileCheck failed on:\n{output}"


@pytest.fixture
def check() -> Callable[..., PassContext]:
    """Returns ``check(ir, pipeline, checks, weights=None)``; it gives back the context, with its remarks."""

    def run(ir_text: str, pipeline: str, checks: str, weights: Mapping[str, np.ndarray] | None = None) -> PassContext:
        store = WeightStore()
        for name, array in (weights or {}).items():
            store.add(name, array)
        context = PassContext(weights=store)
        module = parse_module(ir_text, new_context())
        for one_pass in parse_pipeline(pipeline):
            one_pass.run(module, context)
            assert module.operation.verify()
        match_checks(str(module), checks)
        return context

    return run
