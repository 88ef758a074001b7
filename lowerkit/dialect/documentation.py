"""Generates ``docs/dialect.md`` from the op classes.

``python -m lowerkit.dialect.documentation --write`` writes the page, ``--check`` fails if it is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lowerkit.dialect import DIALECT_VERSION
from lowerkit.dialect.attributes import attribute_kind_name
from lowerkit.dialect.base import LkOperation
from lowerkit.dialect.context import new_context
from lowerkit.dialect.examples import EXAMPLES
from lowerkit.mlir import ext, ir

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dialect.md"

_SECTIONS = ("Operands", "Results", "Attributes", "FLOPs", "Bytes")

_INTRODUCTION = f"""\
# The lk dialect, version {DIALECT_VERSION}

This page is generated from the op classes in `lowerkit/dialect/ops` by
`python -m lowerkit.dialect.documentation --write`; do not edit it.

The dialect holds the few ops that an accelerator's engineers recognise. Everything else stays in `linalg`, `tensor`
and `arith`. Each op has three implementations that check each other: the numpy reference, which defines what it
computes; the lowering to linalg, which runs on any target; and the kernels of a target.

Rules that hold for all ops:

- Tensors are builtin ranked tensors of f64, f32, f16, bf16, i64, i32, i16, i8 or i1 (one byte in memory). Any
  dimension may be dynamic unless the op says otherwise.
- Only a dimension that is statically 1 broadcasts. Two dynamic dimensions that must agree are equal at run time.
- Attributes are always present. Axes count from 0.
- f16 and bf16 are storage types: sums, norms and softmax are carried in f32 and rounded once at the end. A kernel of
  attention may round the weights to the type of the values before it multiplies them, as eager does.
- FLOPs count each addition, multiplication, comparison and elementary function as one. Bytes count each operand and
  result once unless the op says otherwise. Both are unknown where a dimension is dynamic.
- Three levels, checked where stages end (LK3005): **graph** (floats, or explicit `lk.quantize` and `lk.dequantize`),
  **integer** (`lk.integer_matmul`, `lk.integer_conv`, `lk.requant`), **region** (everything computes inside of
  `lk.region`). Stages `raised`, `canonical` and `partitioned` are at the first two, `fused` is at the third.
- The version of the dialect stands in stage files, which another version refuses, and in artifacts (`producer`).
- Text form: `operandSegmentSizes` states which optional operands are present in ops that have two of them, and how
  operands of unlike types follow each other in `lk.region`, `lk.yield` and `lk.call`.
"""


def render() -> str:
    """Returns the page.

    Raises:
        ValueError: a docstring does not describe exactly the fields of its op.
    """
    parts = [_INTRODUCTION, "## Ops\n", _summary_table()]
    with new_context(), ir.Location.unknown():
        parts += [_op_section(op) for op in EXAMPLES]
    return "\n".join(parts)


def sections(op: type[LkOperation]) -> dict[str, str]:
    """Returns the parts of an op's docstring by title; what stands before the first title is under ``""``."""
    title, found = "", dict[str, list[str]]({"": []})
    for line in inspect.cleandoc(op.__doc__ or "").splitlines():
        match = re.match(rf"({'|'.join(_SECTIONS)}):\s*(.*)", line)
        if match:
            title = match[1]
            found[title] = [match[2]] if match[2] else []
        else:
            found[title].append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in found.items()}


def entries(text: str) -> dict[str, str]:
    """Returns ``name: description`` entries, whose further lines are indented."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        match = re.match(r"(\w+): (.*)", line)
        if match:
            name = match[1]
            found[name] = match[2]
        elif line.strip():
            found[name] += " " + line.strip()
    return found


def _summary_table() -> str:
    lines = ["| op | what it does |", "| --- | --- |"]
    for op in EXAMPLES:
        # `` `lk.max_pool` `` -> max_pool-section: GitHub drops the dot of the heading.
        anchor = op.OPERATION_NAME.replace(".", "")
        first = re.split(r"[.:](?:\s|$)", sections(op)[""])[0].replace("\n", " ")
        lines.append(f"| [`{op.OPERATION_NAME}`](#{anchor}) | {_inline(first)}. |")
    return "\n".join(lines) + "\n"


def _op_section(op: type[LkOperation]) -> str:
    parts = sections(op)
    lines = [f"## `{op.OPERATION_NAME}`", "", _inline(parts[""]), ""]
    for title, found in fields(op).items():
        described = entries(parts.get(title, ""))
        if list(described) != list(found):
            raise ValueError(f"{op.__name__}: the docstring lists {title} {list(described)}, the op {list(found)}")
        if not found:
            continue
        lines += [f"| {title.lower()[:-1]} | | |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {kind} | {_inline(described[name])} |" for name, kind in found.items()]
        lines.append("")
    for title in ("FLOPs", "Bytes"):
        if not parts.get(title):
            raise ValueError(f"{op.__name__}: the docstring does not state {title}")
    lines += [f"**FLOPs**: {_inline(parts['FLOPs'])} **Bytes**: {_inline(parts['Bytes'])}", ""]
    lines += ["```mlir", _example(op), "```", ""]
    return "\n".join(lines)


def fields(op: type[LkOperation]) -> dict[str, dict[str, str]]:
    """Returns the fields of an op by the title of their group, and of which kind each is."""
    operands, attributes, results, _ = ext.partition_fields(op._fields)
    kinds = {name: attribute_kind_name(kind) for name, kind in op.attribute_kinds.items()}
    return {
        "Operands": _variadicities(operands),
        "Attributes": {field.name: kinds[field.name] for field in attributes},
        "Results": _variadicities(results),
    }


def _variadicities(of_group: Sequence[ext.FieldDef]) -> dict[str, str]:
    """Returns how many values each field takes; the runs of a ragged op are one field."""
    words = {ext.Variadicity.single: "", ext.Variadicity.optional: "optional", ext.Variadicity.variadic: "any number"}
    return {re.sub(r"_\d+$", "", field.name): words[field.variadicity] for field in of_group}


def _example(op: type[LkOperation]) -> str:
    text = EXAMPLES[op].module().operation.get_asm()
    lines = [line for line in text.splitlines()[2:] if line.strip() not in ("return", "}", "")]
    if op.OPERATION_NAME in ("lk.region", "lk.yield"):
        lines = [line for line in text.splitlines()[2:-3] if line.strip()]
    # Segment sizes of ragged ops end in a long row of zeros.
    return "\n".join(re.sub(r"(, 0){4,}>", ", 0, ...>", line[4:]) for line in lines)


def _inline(text: str) -> str:
    """Returns docstring text as Markdown: a wrapped line that begins with an operator is no list."""
    text = re.sub(r"(?<!\n)\n(?!\n|- )", " ", text)
    return re.sub(r":\w+:`\.?(\w+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lowerkit.dialect.documentation", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    mode.add_argument("--check", action="store_true", help="exit with 1 if the page is out of date")
    options = parser.parse_args(arguments)
    text = render()
    if options.write:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE} is out of date: run python -m lowerkit.dialect.documentation --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
