"""Reports of a conformance run: the table by family, the comparison with an earlier run, JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from lowerkit.conformance.results import VERDICTS, CaseResult, summarize


@dataclass(frozen=True)
class Change:
    """A case whose verdict differs from an earlier run's; None where a run does not have the case."""

    name: str
    before: str | None
    after: str | None
    reason: str = ""


def compare_results(before: Sequence[CaseResult], after: Sequence[CaseResult]) -> list[Change]:
    """Returns the cases whose verdict changed, those that are new and those that are gone, by name."""
    old = {result.name: result for result in before}
    new = {result.name: result for result in after}
    changes = [
        Change(
            name,
            old[name].verdict if name in old else None,
            new[name].verdict if name in new else None,
            new[name].reason if name in new else "",
        )
        for name in sorted(old.keys() | new.keys())
    ]
    return [change for change in changes if change.before != change.after]


def family_rows(results: Sequence[CaseResult]) -> list[list[object]]:
    """Returns a row for each family, by name: family, total, and the count of each verdict."""
    families: dict[str, list[CaseResult]] = {}
    for result in results:
        families.setdefault(result.family, []).append(result)
    return [[family, *summarize(families[family]).values()] for family in sorted(families)]


def family_table(results: Sequence[CaseResult]) -> str:
    """Returns the table by family as Markdown, the total last."""
    columns = ["family", "total", *VERDICTS]
    rows = [*family_rows(results), ["**all**", *summarize(results).values()]]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(str(cell) if cell else "" for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def junit_xml(suite: str, results: Sequence[CaseResult]) -> bytes:
    """Returns JUnit XML: rejected and skipped are ``skipped``, wrong is ``failure``, crashed and hung are ``error``."""
    counts = summarize(results)
    root = ElementTree.Element(
        "testsuite",
        name=f"lowerkit.conformance.{suite}",
        tests=str(len(results)),
        failures=str(counts["wrong"]),
        errors=str(counts["crashed"] + counts["hung"]),
        skipped=str(counts["rejected"] + counts["skipped"]),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    kinds = {"rejected": "skipped", "skipped": "skipped", "wrong": "failure", "crashed": "error", "hung": "error"}
    for result in results:
        case = ElementTree.SubElement(
            root, "testcase", name=result.name, classname=result.family or suite, time=f"{result.seconds:.3f}"
        )
        if result.verdict in kinds:
            attributes = {"message": _printable(result.reason)}
            if kinds[result.verdict] != "skipped":
                attributes["type"] = result.verdict
            ElementTree.SubElement(case, kinds[result.verdict], attributes)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Drops the control characters that XML cannot hold."""
    return "".join(character for character in text if character.isprintable() or character in "\t\n")
