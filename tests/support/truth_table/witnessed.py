"""The witness of ops over PyTorch's own samples of its operators: each distinct op that a sample's program holds.

A case is ``operator/form``: samples of an operator in some element types, exported with static (``drawn``) or open
extents (``symbolic:drawn``). The argument of the suite is a checkout whose lowering is judged; empty: this one's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch.export import ExportedProgram

from lowerkit.capture.torch_export.eager import quiet
from lowerkit.conformance.suite import CaseReport
from lowerkit.conformance.torch_cases import OperatorModule, known_operators
from lowerkit.parity.witness.distinct_op import DistinctOp
from lowerkit.parity.witness.distinct_ops import occurrences
from lowerkit.parity.witness.ops import lowering_of_torch, witness
from lowerkit.parity.witness.verdicts import Witnessed
from tests.support.truth_table.forms import SYMBOLIC
from tests.support.truth_table.operators import Drawn, drawn
from tests.support.truth_table.other_checkout import OtherCheckout

_SAMPLES = {
    "drawn": {"f32": 2, "i64": 1, "u8": 1, "bool": 1},
    f"{SYMBOLIC}drawn": {"f32": 1, "i64": 1},
}
"""Form -> element type -> how many samples of an operator."""


class OperatorVerdict(msgspec.Struct, frozen=True):
    """What the witness says of one distinct op of an operator's samples.

    Attributes:
        case: ``operator/form``.
        verdict: of the op; of an operator without ops one with an empty name, ``left out`` with the reason.
    """

    case: str
    verdict: Witnessed


def case_names() -> list[str]:
    """Returns the cases in order; an operator's forms stand together."""
    return [f"{name}/{form}" for name in sorted(known_operators()) for form in _SAMPLES]


class WitnessSuite:
    """The suite: the notes of a case are the verdicts on its distinct ops. An op of several operators is run once."""

    def __init__(self, checkout: Path | None) -> None:
        self.other = None if checkout is None else OtherCheckout(checkout).lower
        self.known: dict[str, Witnessed] = {}

    def run(self, name: str) -> CaseReport:
        """Witnesses the ops of one case."""
        found: dict[str, Witnessed] = {}
        ops: dict[str, DistinctOp] = {}
        refusal = "it has no samples of tensors in these element types"
        for exported in _programs(name):
            if isinstance(exported, str):
                refusal = exported
                continue
            for occurrence in occurrences(exported):
                op = occurrence.op
                if op is None:
                    made = Witnessed(occurrence.name, "", "left out", reason=occurrence.reason)
                    found.setdefault(f"{made.name} {made.reason}", made)
                else:
                    ops[op.key] = op
        new = [op for key, op in ops.items() if key not in self.known]
        lower = self.other or lowering_of_torch(new)
        self.known |= {op.key: witness(op, lower) for op in new}
        found |= {key: self.known[key] for key in ops}
        if not found:
            found[""] = Witnessed("", "", "left out", reason=refusal)
        return CaseReport([msgspec.json.encode(OperatorVerdict(name, verdict)).decode() for verdict in found.values()])


def _programs(case: str) -> Iterator[ExportedProgram | str]:
    """Yields the exported samples of a case, or why one has no program."""
    name, _, form = case.partition("/")
    for dtype, most in _SAMPLES[form].items():
        try:
            with quiet():
                samples = drawn(name, dtype)
        except Exception as error:  # the makers of samples raise what they like
            yield f"no samples: {_line(error)}"
            continue
        for sample in sorted(samples, key=_elements, reverse=True)[:most]:
            yield _exported(name, sample, is_open=form.startswith(SYMBOLIC))


def _elements(sample: Drawn) -> int:
    return sum(leaf.numel() for leaf in sample.leaves if isinstance(leaf, torch.Tensor))


def _exported(name: str, sample: Drawn, *, is_open: bool) -> ExportedProgram | str:
    module = OperatorModule(known_operators()[name].op, list(sample.leaves), sample.structure).eval()
    tensors = tuple(leaf.detach() for leaf in sample.leaves if isinstance(leaf, torch.Tensor))
    extents = tuple(dict.fromkeys(range(each.dim()), torch.export.Dim.AUTO) if is_open else None for each in tensors)
    try:
        with quiet(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, tensors, strict=False, dynamic_shapes=(extents,))
    except Exception as error:  # torch raises what it likes
        return f"torch.export: {_line(error)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def make_suite(argument: str) -> WitnessSuite:
    """Makes the suite in a worker."""
    torch.set_num_threads(1)
    return WitnessSuite(Path(argument) if argument else None)
