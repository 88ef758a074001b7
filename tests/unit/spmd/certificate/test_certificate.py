"""A certificate is proved again from its own programs, for any number of ranks; one that was changed is refused."""

from __future__ import annotations

import sys
import time

import msgspec
import pytest

from lowerkit.errors import ParityError, UsageError
from lowerkit.spmd.certificate.certificate import Certificate, prove_again
from tests.support.mesh.certified import certified, changed
from tests.support.mesh.split_programs import GATHERED_PLAN, LOOK_UP, LOOK_UP_PLAN, MLP_PLAN, PROGRAMS

MAPS = "#id = affine_map<(d0, d1) -> (d0, d1)>\n#last = affine_map<(d0, d1) -> (d1)>\n"
MLP = MAPS + PROGRAMS["mlp"][0]
GATHERED = MAPS + PROGRAMS["gathered"][0]


def again(certificate: Certificate) -> None:
    assert prove_again(msgspec.json.decode(msgspec.json.encode(certificate), type=Certificate)) == certificate.meetings


def test_two_axes_are_proved_one_behind_the_other() -> None:
    certificate = certified(MLP, MLP_PLAN, {"dp": 2, "tp": 4})
    again(certificate)
    assert [(step.before, step.after) for step in certificate.axes] == [(0, 1), (1, 2)]
    assert [meeting.axis for meeting in certificate.meetings[0].meetings] == ["tp", "dp"]
    assert certificate.shared["up@dp.1@tp.1"] == ["dp", "tp"]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("version", 7, "version 7"),
        ("mesh.0.size", 4, "the mesh has 4 ranks"),
        ("mesh.0.name", "dp", "the mesh has 0 ranks"),
        ("axes.0.ranks", 4, "the mesh has 2 ranks"),
        ("axes.0.axis", "dp", "the mesh has 0 ranks"),
        ("axes.0.before", 1, ""),
        ("axes.0.after", 0, ""),
        ("axes.0.after", 9, "damaged"),
        ("axes.0.facts", [], ""),
        ("axes.0.facts.0.axis", 0, ""),
        ("axes.0.facts.0.axis", 5, "no dimension 5"),
        ("axes.0.facts.0.source", "gate", ""),
        ("axes.0.lemmas.1", "alike", "the lemmas"),
        ("axes.0.relations.2", "%1 whole", "the relations"),
        ("axes.0.relations", [], "the relations"),
        ("graphs.1.returned", [0], "result 0"),
        ("graphs.1.ops.0.1", [99], "damaged"),
        ("graphs.1.types.0", "f32[4,9]", ""),
        ("graphs.0.ops.2.1", [0, 3], ""),
        ("shared", {}, ""),
    ],
)
def test_a_changed_certificate_is_refused(path: str, value: object, reason: str) -> None:
    certificate = certified(MLP, MLP_PLAN, {"tp": 2})
    again(certificate)
    if path == "shared":
        certificate = changed(certificate, "shared", {"up@tp.1": ["dp"]})
    else:
        certificate = changed(certificate, path, value)
    with pytest.raises(ParityError, match=reason or "does not hold") as error:
        prove_again(certificate)
    assert error.value.code == "LK6004"


def collective(certificate: Certificate, kind: str) -> tuple[int, int]:
    """Returns the number of the first op of a collective of this kind in the last program, and that of its form."""
    graph = certificate.graphs[-1]
    for number, op in enumerate(graph.ops):
        if graph.forms[op.form].attributes.get("kind") == kind:
            return number, op.form
    raise AssertionError(kind)


@pytest.mark.parametrize(("kind", "attribute", "value"), [
    ("all_reduce", "reduction", "max"),
    ("all_reduce", "axis", "dp"),
    ("all_reduce", "kind", "all_gather"),
    ("all_reduce", "ranks", 2),
    ("reduce_scatter", "reduction", "product"),
    ("all_gather", "kind", "all_to_all"),
])  # fmt: skip
def test_another_collective_is_refused(kind: str, attribute: str, value: object) -> None:
    certificate = certified(GATHERED, GATHERED_PLAN, {"tp": 4})
    _, form = collective(certificate, kind)
    other = changed(certificate, f"graphs.1.forms.{form}.attributes.{attribute}", value)
    with pytest.raises(ParityError):
        prove_again(other)


def test_collectives_in_another_order_are_other_meetings() -> None:
    certificate = certified(GATHERED, GATHERED_PLAN, {"tp": 4})
    stated = certificate.meetings[0].meetings
    assert len(stated) == 3
    assert prove_again(certificate)[0].meetings == stated
    other = changed(certificate, "meetings.0.meetings.0", msgspec.to_builtins(stated[-1]))
    assert prove_again(other) != other.meetings  # what the caller compares


def deep(ranks: int) -> Certificate:
    """A table, its look-up, attention of one head a rank, and a product with the table, of any number of ranks."""
    heads, width = ranks, 2 * ranks
    text = LOOK_UP.replace("13x4", f"{3 * ranks - 1}x4").replace("5x13", f"5x{3 * ranks - 1}")
    attention = f"""
      %u = "lk.weight"() {{symbol = "u"}} : () -> tensor<4x{width}xf32>
      %q = "lk.matmul"(%r, %u) {{accumulate = f32, transpose_lhs = false, transpose_rhs = false}}
          : (tensor<5x4xf32>, tensor<4x{width}xf32>) -> tensor<5x{width}xf32> loc("m@up")
      %q1 = tensor.expand_shape %q [[0, 1], [2, 3]] output_shape [1, 5, {heads}, 2]
          : tensor<5x{width}xf32> into tensor<1x5x{heads}x2xf32>
      %q2 = tensor.empty() : tensor<1x{heads}x5x2xf32>
      %q3 = linalg.transpose ins(%q1 : tensor<1x5x{heads}x2xf32>) outs(%q2 : tensor<1x{heads}x5x2xf32>)
          permutation = [0, 2, 1, 3]
      %a = "lk.attention"(%q3, %q3, %q3) {{causal = true, empty_rows = "zero", fill = 0.0 : f64, masking = "add",
          scale = 0.5 : f64}} : (tensor<1x{heads}x5x2xf32>, tensor<1x{heads}x5x2xf32>, tensor<1x{heads}x5x2xf32>)
          -> tensor<1x{heads}x5x2xf32>
      return %a, %y : tensor<1x{heads}x5x2xf32>, tensor<5x{3 * ranks - 1}xf32>"""
    results = f"-> (tensor<1x{heads}x5x2xf32>, tensor<5x{3 * ranks - 1}xf32>) {{"
    first, *body, _, _ = text.splitlines()
    text = "\n".join([f"{first.partition('->')[0]}{results}", *body, attention, "}"])
    return certified(text, {**LOOK_UP_PLAN, "up": "column"}, {"tp": ranks})


def test_the_proof_does_not_hang_on_the_number_of_ranks() -> None:
    certificates = {ranks: deep(ranks) for ranks in (4, 4096)}
    seconds: dict[int, float] = {}
    for ranks, certificate in certificates.items():
        started = time.process_time()
        again(certificate)
        seconds[ranks] = time.process_time() - started
    few, many = certificates[4], certificates[4096]
    assert few.axes[0].lemmas == many.axes[0].lemmas
    assert "look-up" in few.axes[0].lemmas
    kinds = [[meeting.kind for meeting in each.meetings[0].meetings] for each in (few, many)]
    assert kinds[0] == kinds[1] == ["all_reduce", "all_gather", "all_gather"]
    assert many.meetings[0].meetings[0].given == 5 * 4 * 4
    assert max(seconds.values()) < 5, seconds  # of the processor; a second is more than it takes


@pytest.mark.parametrize(("rows", "ranks"), [(2, 2), (3, 3), (2, 1), (5, 4)])
def test_a_table_may_have_few_rows(rows: int, ranks: int) -> None:
    """Of a part of one row, as of RoBERTa's token types, the row is no variable."""
    text = LOOK_UP.replace("13x4", f"{rows}x4").replace("5x13", f"5x{rows}")
    certificate = certified(text, LOOK_UP_PLAN, {"tp": ranks})
    again(certificate)
    assert ("look-up" in certificate.axes[0].lemmas) == (ranks > 1)


def test_a_proof_that_needs_z3_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certified(LOOK_UP, LOOK_UP_PLAN, {"tp": 2})
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(UsageError, match="needs z3, which is not installed"):
        prove_again(certificate)
    assert prove_again(certified(MLP, MLP_PLAN, {"tp": 2}))  # normal forms decide
