"""The torch half: samples are the same whoever asks, and each verdict is what happened."""

from __future__ import annotations

import pytest
import torch

from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, NotACaseError, SuiteReference, WrongResultError
from lowerkit.conformance.torch_cases import find_sample, operator_names, samples
from lowerkit.conformance.torch_suite import TorchSuite, compare
from lowerkit.errors import UnsupportedError


def test_samples_are_spread_and_found_again() -> None:
    few, all_of_them = list(samples("scatter", 4)), list(samples("scatter", 1000))
    assert len(few) == 4 and few[-1].number > len(all_of_them) // 2
    again = find_sample(f"scatter[{few[2].number}]")
    for one, other in zip(few[2].inputs, again.inputs, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(few[2].module(*few[2].inputs), again.module(*again.inputs))


def test_undefined_results_are_not_asked_for() -> None:
    names = operator_names()
    assert "empty" not in names and "new_empty" not in names
    assert {"add", "nn.functional.pad.reflect", "scatter_reduce.amax"} <= set(names)


def test_verdicts() -> None:
    suite = TorchSuite()
    suite.run("add[0]")
    with pytest.raises(NotACaseError, match="random"):
        suite.run("nn.functional.dropout[0]")
    with pytest.raises(UnsupportedError):
        suite.run("fft.fft[0]")


def test_another_result_than_eagers_is_wrong() -> None:
    sample = find_sample("bitwise_xor[0]")
    exported = torch.export.export(sample.module, sample.inputs, strict=False)
    eager = sample.module(*sample.inputs)
    compare(sample, exported, [eager])
    with pytest.raises(WrongResultError, match="output 0"):
        compare(sample, exported, [eager + 1])
    with pytest.raises(WrongResultError, match="eager has 2"):
        compare(sample, exported, [eager, eager])
    with pytest.raises(WrongResultError, match="int32"):
        compare(sample, exported, [eager.int()])


def test_what_is_no_case_is_skipped() -> None:
    (result,) = run_suite(
        SuiteReference("lowerkit.conformance.torch_suite"), [Case("nn.functional.dropout[0]")], RunOptions()
    )
    assert (result.verdict, result.reason) == ("skipped", "the result is random")
