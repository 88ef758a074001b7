"""Fused modules as readable text: fills in the segment sizes that the ragged lk ops need."""

from __future__ import annotations

import itertools
import re

from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS

_REGION_END = re.compile(r'\{kind = "(\w+)"\} : \((.*?)\) -> (\(.*?\)|\S+)')
_YIELD = re.compile(r'("lk\.yield"\([^)]*\)) : \((.*?)\) -> \(\)')


def _runs(types: str, count: int) -> str:
    names = [name.strip() for name in types.split(", ") if name.strip()]
    lengths = [len(list(run)) for _, run in itertools.groupby(names)]
    return "array<i32: " + ", ".join(map(str, lengths + [0] * (count - len(lengths)))) + ">"


def fused(text: str) -> str:
    """Returns ``text`` with ``operandSegmentSizes`` and ``resultSegmentSizes`` on ``lk.region`` and ``lk.yield``."""

    def region(match: re.Match[str]) -> str:
        kind, operands, results = match.groups()
        sizes = f"operandSegmentSizes = {_runs(operands, OPERAND_RUNS)}"
        sizes += f", resultSegmentSizes = {_runs(results.strip('()'), RESULT_RUNS)}"
        return f'{{kind = "{kind}", {sizes}}} : ({operands}) -> {results}'

    def end(match: re.Match[str]) -> str:
        return f"{match[1]} {{operandSegmentSizes = {_runs(match[2], RESULT_RUNS)}}} : ({match[2]}) -> ()"

    return _YIELD.sub(end, _REGION_END.sub(region, text))
