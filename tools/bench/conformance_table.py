"""Writes the scores of `lowerkit conformance onnx` into docs/conformance.md.

    lowerkit conformance onnx --output onnx.json
    python tools/bench/conformance_table.py onnx.json --write

Without --write it prints what it would write. Tables: by kind, by family for node cases, and the reasons of what is
not passed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import onnx

from lowerkit.conformance.onnx_cases import KINDS, read_index, suite_folder
from lowerkit.conformance.report import family_table
from lowerkit.conformance.results import CaseResult, read_results, summarize

PAGE = Path(__file__).resolve().parents[2] / "docs/conformance.md"
BEGIN, END = "<!-- scores: begin -->", "<!-- scores: end -->"
REASONS: list[tuple[str, str]] = [
    (r"float8|float4", "element types of 8 bits and fewer (float8, float4)"),
    (r"u?int[24]\b", "element types of 8 bits and fewer (int4, int2)"),
    (r"of object|string", "strings"),
    (r"is a list|sequence_type|optional_type|NoneType|undefined|data type 0", "sequences and optionals"),
    (r"random values|aten\.dropout", "random values"),
    (r"aten\.scatter|scatter_reduce", "scatter"),
    (r"depends on data|unk__", "shapes that depend on data"),
    (r"ai\.onnx\.ml|ai\.onnx\.preview", "other operator domains"),
    (r"control flow", "control flow that depends on data"),
    (r"ImageDecoder", "ImageDecoder"),
]


def kind_table(results: list[CaseResult], kinds: dict[str, str]) -> str:
    """Returns the table by kind of case."""
    by_kind = [
        CaseResult(result.name, result.verdict, "", 0.0, kinds.get(result.name, "other"), []) for result in results
    ]
    ordered = {kind: number for number, kind in enumerate(KINDS)}
    return family_table(sorted(by_kind, key=lambda result: ordered.get(result.family, 9))).replace("family", "kind", 1)


def reason_of(result: CaseResult) -> str:
    """Returns the group that the reason of a case belongs to."""
    return next((name for pattern, name in REASONS if re.search(pattern, result.reason)), "single ops")


def document(results: list[CaseResult]) -> str:
    """Returns what stands between the markers."""
    kinds = {case.name: case.kind for case in read_index(suite_folder())}
    node = [result for result in results if kinds.get(result.name) == "node"]
    counts = summarize(node)
    rejected = Counter(reason_of(result) for result in results if result.verdict == "rejected")
    others = [result for result in results if result.verdict in ("wrong", "crashed", "hung")]
    lines = [
        f"onnx {onnx.__version__}: **{counts['passed']} of the {counts['total']} node cases pass**; "
        f"{counts['wrong']} are wrong, {counts['crashed']} crash, {counts['hung']} hang. Printed by "
        "`python tools/bench/conformance_table.py onnx.json` from the file that `lowerkit conformance onnx --output "
        "onnx.json` writes.",
        "",
        kind_table(results, kinds),
        "What is rejected, of all kinds:",
        "",
        "| reason | cases |",
        "|---|---|",
        *[f"| {name} | {count} |" for name, count in rejected.most_common()],
        "",
    ]
    if others:
        lines += ["What is wrong, crashed or hung:", "", "| case | verdict | what was found |", "|---|---|---|"]
        lines += [f"| {result.name} | {result.verdict} | {_cell(result.reason)} |" for result in others]
        lines += [""]
    unfinished = {result.family for result in node if result.verdict != "passed"}
    whole = sorted({result.family for result in node} - unfinished)
    lines += [
        f"Families of node cases that pass wholly ({len(whole)}): {', '.join(whole)}.",
        "",
        "The other families:",
        "",
        family_table([result for result in node if result.family in unfinished]),
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description="Scores of lowerkit conformance onnx for docs/conformance.md.")
    parser.add_argument("results", type=Path, help="a result file of all cases")
    parser.add_argument("--write", action="store_true", help="write into docs/conformance.md")
    arguments = parser.parse_args()
    text = document(read_results(arguments.results))
    if not arguments.write:
        print(text)
        return
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{text}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
