"""The generated page is up to date and complete, and each example is an op that survives text and byte code."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerkit.dialect import DIALECT_VERSION, Lk, LkOperation, SoftmaxOp, documentation, load_dialect
from lowerkit.dialect.context import new_context
from lowerkit.dialect.documentation import PAGE, entries, fields, main, render, sections
from lowerkit.dialect.examples import EXAMPLES
from lowerkit.mlir import ir


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m lowerkit.dialect.documentation --write"


def test_check_fails_on_another_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "dialect.md"
    monkeypatch.setattr(documentation, "PAGE", page)
    assert main(["--check"]) == 1
    assert main(["--write"]) == 0
    assert main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "more", encoding="utf-8")
    assert main(["--check"]) == 1


def test_a_field_without_description_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = SoftmaxOp.__doc__ or ""
    monkeypatch.setattr(SoftmaxOp, "__doc__", described.replace("log: the logarithm", "logarithm: the logarithm"))
    with pytest.raises(ValueError, match="SoftmaxOp: the docstring lists Attributes"):
        render()


def test_every_op_is_documented() -> None:
    assert set(EXAMPLES) == set(Lk.operations)
    text = PAGE.read_text(encoding="utf-8")
    for op in EXAMPLES:
        assert f"## `{op.OPERATION_NAME}`" in text
        assert f'"{op.OPERATION_NAME}"(' in text


def test_docstring_parts() -> None:
    parts = sections(SoftmaxOp)
    assert parts[""].startswith("Softmax or its logarithm")
    assert list(entries(parts["Attributes"])) == ["axis", "log"]
    assert entries("a: one\n  more\nb: two") == {"a": "one more", "b": "two"}


@pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: op.OPERATION_NAME)
def test_example_survives_text_and_byte_code(op: type[LkOperation], context: ir.Context) -> None:
    module = EXAMPLES[op].module()
    assert module.operation.verify()
    text = str(module)
    assert op.OPERATION_NAME in text
    again = ir.Module.parse(text)
    assert str(again) == text
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    assert str(ir.Module.parse(stream.getvalue())) == text
    # An accessor must work on parsed ops too.
    found = [
        view
        for view in again.body.operations[0].regions[0].blocks[0].operations
        if isinstance(view, op) or view.operation.name == "lk.region"
    ]
    assert found


def test_loading_twice_and_in_several_contexts() -> None:
    for _ in range(2):
        context = new_context()
        load_dialect(context)
        load_dialect(context)
        with context, ir.Location.unknown():
            assert EXAMPLES[SoftmaxOp].module().operation.verify()


def test_the_fields_of_all_ops_are_those_of_the_version(golden: Callable[[str, str], None]) -> None:
    """Whoever changes them raises ``DIALECT_VERSION``, and writes the file of the new version with --update-golden."""
    lines = [
        f"{op.OPERATION_NAME} {title.lower()}: {', '.join(f'{name} {kind}'.strip() for name, kind in found.items())}"
        for op in sorted(Lk.operations, key=lambda op: op.OPERATION_NAME)
        for title, found in fields(op).items()
        if found
    ]
    golden(f"dialect_{DIALECT_VERSION}.txt", "\n".join(lines) + "\n")
