"""States in slices: what a proof shows of them, what it refuses, and what an artifact says of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import lowerkit
from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.errors import ParityError, VerifyError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import Manifest, ProgramSpec
from lowerkit.runtimes.mesh.structs import StateCut
from lowerkit.runtimes.validation import manifest_problems
from lowerkit.spmd.certificate.binding import certificate_bytes, check_artifact, read_certificate
from lowerkit.spmd.certificate.certificate import Certificate
from lowerkit.spmd.certificate.facts import Rows
from lowerkit.spmd.certificate.graph import Form, Graph, Op
from lowerkit.spmd.certificate.prover import Proof, prove
from tests.support.mesh.split_programs import DECODE, split

HEADS = 4


def cached(heads: int, axis: int, *, takes_own: bool) -> Graph:
    """A program that sets a row of a cache of ``heads`` heads, along an axis; it takes its own heads of the row."""
    row, cache = "f32[4,1]" if axis else "f32[1,6]", f"f32[{heads},6]"
    kinds = list(dict.fromkeys([row, "i64[1]", f"f32[{heads},1]", cache, f"i64[{heads}]"]))
    forms = [
        Form("lk.state_read", {"symbol": "cache"}),
        Form("lk.scatter", {"axis": axis, "kind": "set"}),
        Form("lk.state_write", {"symbol": "cache"}),
        Form("lk.weight", {"symbol": "own"}),
        Form("lk.gather", {"axis": 0}),
    ]
    taken = [
        Op(3, [], [kinds.index(f"i64[{heads}]")], 0, -1),
        Op(4, [0, 2], [kinds.index(f"f32[{heads},1]")], 0, -1),
    ]
    ops = taken if takes_own else []
    read = 2 + len(ops)
    ops += [
        Op(0, [], [kinds.index(cache)], 0, 0),
        Op(1, [read, 1, read - 1 if takes_own else 0], [kinds.index(cache)], 0, 1),
        Op(2, [read + 1], [], 0, 2),
    ]
    return Graph(kinds, forms, ["net.py:1"], [0, 1], ops, [])


def proved(ranks: int, parts: int, own: Rows, axis: int = 1) -> Proof:
    before, after = cached(HEADS, axis, takes_own=False), cached(HEADS // parts, axis, takes_own=axis == 1)
    return prove(before, after, "tp", ranks, [own])


def test_an_update_of_all_heads_at_one_position() -> None:
    proof = proved(2, 2, Rows("own", 2, 2, 1))
    assert proof.lemmas == ["row", "take", "state", "part", "state"]
    assert proof.relations[5].endswith("split 0")
    with pytest.raises(VerifyError, match="operand 2 is read at"):
        proved(2, 2, Rows("own", 2, 1, 1))  # the second rank updates heads 1 and 2


def test_neighbouring_ranks_have_the_same_heads() -> None:
    assert proved(8, 4, Rows("own", 1, 1, 0, 0, 2)).lemmas[-1] == "state"
    with pytest.raises(VerifyError, match="operand 2 is read at"):
        proved(8, 4, Rows("own", 1, 1, 0, 0, 4))  # four ranks update one head
    with pytest.raises(VerifyError, match="no slice of .* for 6 ranks"):
        proved(6, 4, Rows("own", 1, 1, 0, 0, 2))  # some ranks would have parts of two slices


def test_a_position_along_the_heads_is_refused() -> None:
    """A rank that has two of four heads would write the row of another one into its own."""
    with pytest.raises(VerifyError, match=r"lk.scatter at net.py:1 cannot be proved .*: loop"):
        proved(2, 2, Rows("own", 2, 2, 1), axis=0)


def sliced(cache: str, row: str, offsets: list[int], sizes: list[int]) -> Graph:
    """A program that writes a slice into a cache, and takes its own heads of it where they are two of four."""
    whole = row.replace("[2,", "[4,") if sizes[0] == 2 else row
    kinds = list(dict.fromkeys([whole, row, cache, "i64[2]"]))
    forms = [
        Form("lk.state_read", {"symbol": "cache"}),
        Form("tensor.insert_slice", {"static_offsets": offsets, "static_sizes": sizes, "static_strides": [1, 1]}),
        Form("lk.state_write", {"symbol": "cache"}),
        Form("lk.weight", {"symbol": "own"}),
        Form("lk.gather", {"axis": 0}),
    ]
    taken = [Op(3, [], [kinds.index("i64[2]")], 0, -1), Op(4, [0, 1], [kinds.index(row)], 0, -1)]
    ops = taken if whole != row else []
    read = 1 + len(ops)
    ops += [
        Op(0, [], [kinds.index(cache)], 0, 0),
        Op(1, [read - 1, read], [kinds.index(cache)], 0, 1),
        Op(2, [read + 1], [], 0, 2),
    ]
    return Graph(kinds, forms, ["net.py:1"], [0], ops, [])


def test_a_slice_is_written_at_known_positions() -> None:
    before = sliced("f32[4,6]", "f32[4,1]", [0, 3], [4, 1])
    own = [Rows("own", 2, 2, 1)]
    assert prove(before, sliced("f32[2,6]", "f32[2,1]", [0, 3], [2, 1]), "tp", 2, own).lemmas[3] == "part"
    with pytest.raises(VerifyError, match="tensor.insert_slice .* before it is tensor.insert_slice"):
        prove(before, sliced("f32[2,6]", "f32[2,1]", [0, 2], [2, 1]), "tp", 2, own)
    # Of two heads the first one is written, which the second rank does not have.
    first, other = (sliced(f"f32[{heads},6]", "f32[1,6]", [0, 0], [1, 6]) for heads in (2, 1))
    with pytest.raises(VerifyError, match="may run on whole operands alone"):
        prove(first, other, "tp", 2, [])


def test_features_of_values_run_apart() -> None:
    """As of one key head, whose features the ranks share, in front of a cache."""
    form = Form("lk.attention", {"causal": False, "masking": "add"})

    def attending(features: int, own: str = "") -> Graph:
        kinds = ["f32[1,1,5,4]", "f32[1,2,3,4]", "f32[1,1,5,2]", "f32[1,2,3,2]", "i64[2]"]
        weights = [Form("lk.weight", {"symbol": name}) for name in ("query", "key", "own")]
        forms = [*weights, form, Form("lk.gather", {"axis": 3})]
        ops = [Op(0, [], [1], 0, 0), Op(1, [], [0], 0, 1)]
        ops += [Op(2, [], [4], 0, -1), Op(4, [0, 3], [2], 0, -1)] if own else []
        result = kinds.index(f"f32[1,2,3,{features}]")
        operands = [1, 0, 4] if own == "keys" else [1, 2, 4] if own else [1, 2, 0]
        return Graph(kinds, forms, ["net.py:1"], [0], [*ops, Op(3, operands, [result], 0, 2)], [])

    rows = [Rows("own", 2, 2, 1)]
    proof = prove(attending(4), attending(2, "values"), "tp", 2, rows)
    assert proof.relations[-1].endswith("split 3")
    with pytest.raises(VerifyError, match="operand 1 is of argument 0"):
        prove(attending(4), attending(2, "keys"), "tp", 2, rows)


def test_every_plan_is_proved() -> None:
    for ranks in (2, 4):
        for choices in itertools.product(("column", "row", "replicate"), repeat=4):
            if ranks == 2 or not ("row" in choices[:3] or choices[3] == "column"):  # six features do not divide by four
                split(DECODE, dict(zip(("q_proj", "k_proj", "v_proj", "o_proj"), choices, strict=True)), ranks).prove()


class Decoder(nn.Module):
    """A cache that starts from data, and a count that every rank keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.register_buffer("cache", torch.arange(48.0).reshape(4, 6, 2) / 48)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.get_buffer("cache").index_copy_(1, at, self.key(x).reshape(4, 1, 2))
        self.get_buffer("steps").add_(1.0)
        return self.out(self.get_buffer("cache").sum(1).reshape(1, 8))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certificate, Manifest]:
    path = tmp_path_factory.mktemp("cached") / "cached.lk"
    inputs = (torch.randn(1, 8), torch.tensor([3]))
    lowerkit.compile(Decoder().eval(), inputs, mesh="tp=2", shard={"key": "column", "out": "row"}).save(path)
    opened = open_artifact(path)
    try:
        certificate = read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes())
        return path, certificate, opened.manifest
    finally:
        opened.close()


def test_the_artifact_says_which_part_a_rank_has(parts: tuple[Path, Certificate, Manifest]) -> None:
    path, _, manifest = parts
    (program,) = manifest.programs
    assert {spec.name: spec.shape for spec in program.signature.states} == {"cache": [2, 6, 2], "steps": [1]}
    assert program.state_cuts == {"cache": [StateCut("tp", 0, 2)]}
    assert "state_cuts" in manifest.features
    assert check_artifact(path, required=True) is not None


def cut(*cuts: StateCut) -> Callable[[ProgramSpec], ProgramSpec]:
    return lambda program: replace(program, state_cuts={"cache": list(cuts)} if cuts else {})


@pytest.mark.parametrize(
    "change",
    [cut(), cut(StateCut("tp", 2, 2)), lambda program: replace(program, state_initials={"cache": "steps"})],
)
def test_other_parts_are_refused(
    parts: tuple[Path, Certificate, Manifest], change: Callable[[ProgramSpec], ProgramSpec]
) -> None:
    """Also where whoever changed them has told the certificate so."""
    _, certificate, manifest = parts
    other = replace(manifest, programs=[change(program) for program in manifest.programs])
    with pytest.raises(ParityError, match="cuts the states cache in another way|starts from the tensor 'steps'"):
        certificate_bytes(certificate, other)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (cut(StateCut("dp", 0, 2)), "cut in a way that there is not"),
        (cut(StateCut("tp", 3, 2)), "cut in a way that there is not"),
        (cut(StateCut("tp", 0, 3)), "cut in a way that there is not"),
        (cut(StateCut("tp", 0, 2), StateCut("tp", 1, 2)), "cut in a way that there is not"),
        (lambda program: replace(program, state_initials={"cache": "steps"}), r"starts from a tensor F32 \[1\]"),
        (lambda program: replace(program, state_initials={"other": "steps"}), "one of them does not exist"),
        (cut(StateCut("tp", 1, 2)), r"of \[2, 12, 2\] starts from a tensor F32 \[4, 6, 2\]"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    parts: tuple[Path, Certificate, Manifest], change: Callable[[ProgramSpec], ProgramSpec], problem: str
) -> None:
    path, _, manifest = parts
    opened = open_artifact(path)
    try:
        other = replace(manifest, programs=[change(program) for program in manifest.programs])
        found = manifest_problems(other, opened.weights)
        assert len(found) == 1
        assert re.search(problem, found[0])
        unlisted = replace(manifest, features=[each for each in manifest.features if each != "state_cuts"])
        assert "not listed" in manifest_problems(unlisted, opened.weights)[0]
    finally:
        opened.close()
