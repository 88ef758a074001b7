"""Compiles near misses, several to a program, and judges each: eager is the judge, and float64 where eager rounds.

What rounding explains is measured, element by element, as for random graphs (``graph.judge``). A program that does not
compile, or gives wrong numbers, is taken apart, until each near miss has its own verdict. The witness in float64 runs
PyTorch's own formula of attention: its fast kernel for CPUs fills the causal triangle with -inf before it scales, so
that a scale of zero or less makes NaN of it.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from graph.judge import Outputs, Rounding, misses
from lowerkit.errors import LowerkitError
from lowerkit.program.dtypes import to_numpy, to_torch
from near_miss.pattern import SIZES, NearMiss
from near_miss.program import (
    Captured,
    NotCapturedError,
    Sizes,
    Way,
    arguments_of,
    captured,
    compiled,
    function_of,
    name_of,
)

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators of quantized_decomposed

FAILURES = ("wrong", "internal", "crashed", "hung")


@dataclass
class Outcome:
    """What became of one near miss.

    ``verdict``: ok, refused, not captured (by torch), invalid (eager raises), wrong or internal. ``sizes``: at how many
    of the way's sizes it ran.
    """

    near_miss: NearMiss
    verdict: str
    detail: str = ""
    sizes: int = 0


def judge(near_misses: Sequence[NearMiss], way: Way | None = None) -> list[Outcome]:
    """Compiles and judges; the outcomes are in the order of the near misses."""
    way = way or Way()
    found: dict[int, Outcome] = {}
    valid: list[NearMiss] = []
    for one in near_misses:
        try:
            _eager(one, SIZES)
            valid.append(one)
        except Exception as error:
            found[one.seed] = Outcome(one, "invalid", str(error)[:200])
    for outcome in _judge_valid(valid, way):
        found[outcome.near_miss.seed] = outcome
    return [found[one.seed] for one in near_misses]


def _judge_valid(near_misses: Sequence[NearMiss], way: Way) -> list[Outcome]:
    if not near_misses:
        return []
    try:
        model = captured(near_misses, way)
        runs = [compiled(model, passes) for passes in dict.fromkeys(((), way.left_out))]
        whole = [_results(run, near_misses, [SIZES] * len(near_misses)) for run in runs]
    except Exception as error:
        return _apart(near_misses, way, error)
    outcomes = [Outcome(one, "ok") for one in near_misses]
    ends = list(accumulate(len(_eager(one, SIZES)) for one in near_misses))
    for place, (outcome, end) in enumerate(zip(outcomes, ends, strict=True)):
        mine = slice(ends[place - 1] if place else 0, end)
        _judge_one(outcome, SIZES, [results[mine] for results in whole])
        for sizes in way.sizes()[1:] if model.varying[place] else []:
            # What others cannot run at further sizes does not keep one from being run.
            taken = [sizes if at == place else SIZES for at in range(len(near_misses))]
            try:
                found = [_results(run, near_misses, taken)[mine] for run in runs]
            except LowerkitError:
                continue  # a program that fixed its sizes says so
            _judge_one(outcome, sizes, found)
    if way.capture == "onnx":
        return [_of_exporter(outcome, model) if outcome.verdict == "wrong" else outcome for outcome in outcomes]
    return outcomes


def _apart(near_misses: Sequence[NearMiss], way: Way, error: Exception) -> list[Outcome]:
    """Judges those that an error does not name apart from those that it names; one alone has its verdict."""
    text = f"{type(error).__name__}: {error}"
    if len(near_misses) == 1:
        one = near_misses[0]
        if isinstance(error, NotCapturedError):
            return [Outcome(one, "not captured", text[:600])]
        refused = isinstance(error, LowerkitError) and error.exit_code != 5
        return [Outcome(one, "refused" if refused else "internal", text[:1500])]
    named = [one for one in near_misses if re.search(rf"{name_of(one)}\b", text)]
    if isinstance(error, LowerkitError) and error.exit_code != 5 and named:
        rest = _judge_valid([one for one in near_misses if one not in named], way)
        return [*(Outcome(one, "refused", text[:600]) for one in named), *rest]
    if named and len(named) < len(near_misses):
        parts = [named, [one for one in near_misses if one not in named]]
    else:
        middle = len(near_misses) // 2
        parts = [near_misses[:middle], near_misses[middle:]]
    return [outcome for part in parts for outcome in _judge_valid(part, way)]


def _results(run: Any, near_misses: Sequence[NearMiss], taken: Sequence[Sizes]) -> Outputs:
    tensors = [each.data(name, sizes) for each, sizes in zip(near_misses, taken, strict=True) for name in each.given]
    return [to_torch(array) for array in pytree.tree_leaves(run(*[to_numpy(value) for value in tensors]))]


def _judge_one(outcome: Outcome, sizes: Sizes, found: Sequence[Outputs]) -> None:
    """Judges the outputs at some sizes, of each of the runs."""
    one = outcome.near_miss
    try:
        eager = _eager(one, sizes)
    except Exception:
        return  # eager does not take these sizes
    for number, ours in enumerate(found):
        problem = _problem(one, sizes, ours, eager)
        if problem and outcome.verdict == "ok":
            what = "without recognition: " if number else ""
            outcome.verdict, outcome.detail = "wrong", f"{what}{sizes}: {problem}"[:1500]
    outcome.sizes += 1


def _problem(one: NearMiss, sizes: Sizes, ours: Outputs, eager: Outputs) -> str:
    def moved(count: int) -> list[Outputs]:
        return [_moved(one, sizes, seed) for seed in range(count)]

    def double() -> Outputs:
        values = [value.double() if value.is_floating_point() else value for value in arguments_of(one, sizes)]
        with sdpa_kernel(SDPBackend.MATH):
            return _outputs(function_of(one, double=True), values)

    return "; ".join(misses(ours, eager, moved, [double]))


def _eager(one: NearMiss, sizes: Sizes) -> Outputs:
    return _outputs(function_of(one), arguments_of(one, sizes))


def _moved(one: NearMiss, sizes: Sizes, seed: int) -> Outputs:
    """Eager's outputs with every rounding moved, that of the arguments included."""
    rounding, values = Rounding(seed), arguments_of(one, sizes)
    for value in values:
        if value.is_floating_point() and value.numel() and bool((value != value.round()).any()):
            rounding.move(value)
    with rounding:
        return _outputs(function_of(one), values)


def _outputs(function: Callable[..., Any], values: Sequence[torch.Tensor]) -> Outputs:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [value.clone().contiguous() for value in pytree.tree_leaves(function(*values))]


def _of_exporter(outcome: Outcome, model: Captured) -> Outcome:
    """The outcome of one that is wrong: not captured, where ONNX Runtime does not agree with eager either."""
    import onnxruntime

    one = outcome.near_miss
    alone = captured([one], Way("onnx"))
    try:
        peer = onnxruntime.InferenceSession(alone.model.SerializeToString(), providers=["CPUExecutionProvider"])
        given = [to_numpy(one.data(name, SIZES)) for name in one.given]
        feeds = {entry.name: value for entry, value in zip(peer.get_inputs(), given, strict=True)}
        theirs = [torch.from_numpy(array) for array in peer.run(None, feeds)]
    except Exception as error:
        return Outcome(one, "not captured", f"ONNX Runtime: {error}"[:300])
    problem = _problem(one, SIZES, theirs, _eager(one, SIZES))
    return Outcome(one, "not captured", f"torch's ONNX export: {problem}"[:300]) if problem else outcome
