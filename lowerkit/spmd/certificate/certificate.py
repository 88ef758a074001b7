"""The certificate of a program for a mesh: what was proved, so that it can be proved again without the compiler.

Vocabulary
    step    the split along one axis: of the program before, and the one after, which is the program before of the next.
            A step along no axis, of one rank, is a program that was written in another way for one device
    place   where ranks are along the pipeline axis: those of one place run one program

It holds the programs, what each value of a rank is of a value before, by which lemma, and the collectives in their
order. ``lowerkit verify`` proves all of it again from the programs, and compares the collectives with the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from lowerkit.errors import LowerkitError, ParityError, UsageError
from lowerkit.runtimes.expressions import Expr, normalize
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.facts import Chunks, Cut, Fact, Slices
from lowerkit.spmd.certificate.graph import Graph, with_own_numbers
from lowerkit.spmd.certificate.meetings import Meeting
from lowerkit.spmd.certificate.proof import Proof
from lowerkit.spmd.certificate.prover import prove
from lowerkit.spmd.certificate.stages import StagesProof, prove_stages
from lowerkit.spmd.certificate.sums.trees import Tree

VERSION = 1


class AxisStep(msgspec.Struct, frozen=True):
    """The split along one axis.

    Attributes:
        axis, ranks: of the mesh.
        before, after: into the list of programs.
        facts: of the weights that the split makes.
        lemmas: of each op after.
        relations: of each value after.
        trees: the sums that the split makes in chunks: they are those of the program before over the reals, where the
            order of additions does not count.
    """

    axis: str
    ranks: int
    before: int
    after: int
    facts: list[Fact]
    lemmas: list[str]
    relations: list[str]
    trees: list[Tree] = []


class StageStep(msgspec.Struct, frozen=True):
    """The cut into the stages of a pipeline.

    Attributes:
        axis: of the mesh.
        before, after: into the list of programs, the latter by stage.
        values: by stage, of each value what it is before.
        order: of the meetings of stages.
    """

    axis: str
    before: int
    after: list[int]
    values: list[list[int]]
    order: list[str]


class PlaceMeetings(msgspec.Struct, frozen=True):
    """The collectives of the ranks at one place, in order."""

    place: dict[str, int]
    meetings: list[Meeting]


class ProgramDigest(msgspec.Struct, frozen=True):
    """A program of the artifact, and the sha-256 of all that it says but its code."""

    name: str
    target: str
    place: dict[str, int]
    sha256: str


class Certificate(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        mesh: the axes.
        inputs: the shapes of the arguments, over the dims of the signature.
        graphs: the programs.
        axes: the steps, in order.
        stages: the cut behind them; None where there is one stage.
        meetings: the collectives of the final programs, by place.
        shared: the weights of which a rank has a part, and the axes along which.
        invariant: floats are added in one order on every mesh: no collective adds those of several ranks, and sums
            that ranks share are trees whose shape hangs on the number of terms alone.
        derived: the weights that later stages compute, and of which ones (see :mod:`.derived`); filled in when it is
            written.
        weights: the sha-256 of those of the program of one device that others are slices and chunks of; likewise.
        programs: of the artifact; likewise.
        version: of this structure.
    """

    mesh: list[MeshAxis]
    inputs: list[list[Any]]
    graphs: list[Graph]
    axes: list[AxisStep]
    stages: StageStep | None
    meetings: list[PlaceMeetings]
    shared: dict[str, list[str]] = {}
    invariant: bool = False
    derived: dict[str, list[str]] = {}
    weights: dict[str, str] = {}
    programs: list[ProgramDigest] = []
    version: int = VERSION

    @property
    def shapes(self) -> list[list[Expr]]:
        """The shapes of the arguments as expressions."""
        return [[normalize(size) for size in shape] for shape in self.inputs]


class CertificateReport(msgspec.Struct, frozen=True):
    """What was proved again.

    Attributes:
        ops: of all programs of ranks.
        collectives: that a rank issues, the most of all places.
        ranks: of the mesh.
        mesh: ``dp=2,tp=4``.
        trees: how many sums are made in chunks, and are those of one device over the reals.
        invariant: whether floats are added in one order on every mesh.
        facts: of how many weights facts are stated that were checked when they were made.
        checked: of how many of these the bytes in the artifact have been checked; None: the weights were not read.
    """

    ops: int
    collectives: int
    ranks: int
    mesh: str
    trees: int
    invariant: bool
    facts: int = 0
    checked: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return msgspec.to_builtins(self)

    def render(self) -> str:
        """Returns the line for people."""
        noun = "collective" if self.collectives == 1 else "collectives"
        line = f"certificate: {self.ops} ops proved, {self.collectives} {noun} in one order on {self.ranks} ranks"
        line += f" ({self.mesh})"
        if self.invariant:
            sums = "1 sum is that" if self.trees == 1 else f"{self.trees} sums are those"
            line += f"; {sums} of one device but for the order of additions, "
            line += "which is the same on every mesh"
        if self.facts and self.checked is None:
            return f"{line}; not checked: what is stated of the bytes of {self.facts} weights"
        if self.facts:
            line += f"; the bytes of {self.checked} of {self.facts} weights are what is stated"
            line += ", the others were when they were cut" if self.checked != self.facts else ""
        return line


def shapes_of_inputs(signature: Signature) -> list[list[Any]]:
    """Returns the shapes of the arguments of a signature."""
    return [list(spec.shape) for spec in signature.inputs]


def step_of(axis: str, ranks: int, graphs: tuple[int, int], facts: Sequence[Fact], proof: Proof) -> AxisStep:
    """Returns the step that was proved."""
    return AxisStep(axis, ranks, *graphs, list(facts), proof.lemmas, proof.relations, proof.trees)


def stage_step_of(axis: str, before: int, after: Sequence[int], proof: StagesProof) -> StageStep:
    """Returns the cut that was proved."""
    return StageStep(axis, before, list(after), proof.values, proof.order)


def prove_again(certificate: Certificate) -> list[PlaceMeetings]:
    """Proves all that a certificate says again, from its programs; returns the collectives by place.

    Raises:
        ParityError: LK6004, something does not hold, or the parts do not belong together.
        UsageError: LK1007, z3 is not installed, and a proof needs it.
    """
    if certificate.version != VERSION:
        _refuse(f"it has version {certificate.version}, this lowerkit reads {VERSION}")
    try:
        for graph in certificate.graphs:
            graph.require_sound()
        return _prove(certificate)
    except (ParityError, UsageError):
        raise
    except LowerkitError as error:
        raise ParityError("LK6004", f"the certificate does not hold: {error.message}", details=error.details) from error
    except (ValueError, IndexError, KeyError, TypeError, AssertionError) as error:
        _refuse(f"it is damaged: {error}")


def _prove(certificate: Certificate) -> list[PlaceMeetings]:
    sizes = {axis.name: axis.size for axis in certificate.mesh}
    used: list[str] = []
    last = 0
    proof: Proof | None = None
    for step in certificate.axes:
        used += [step.axis] if step.axis else []
        if sizes.get(step.axis, 0 if step.axis else 1) != step.ranks:
            _refuse(f"it proves {step.axis}={step.ranks}, the mesh has {sizes.get(step.axis, 0)} ranks there")
        if proof is not None and step.before != last:
            _refuse(f"the split along {step.axis!r} begins with another program than the one before ended with")
        before, after = certificate.graphs[step.before], certificate.graphs[step.after]
        after = with_own_numbers(after) if step.before == step.after else after
        proof = prove(before, after, step.axis, step.ranks, step.facts, certificate.shapes)
        _compare(f"the lemmas of {step.axis}", step.lemmas, proof.lemmas)
        _compare(f"the relations of {step.axis}", step.relations, proof.relations)
        _compare("the sums in chunks", step.trees, proof.trees)
        if certificate.invariant:
            _require_one_order(proof)
        missing = [
            fact.symbol
            for fact in step.facts
            if not isinstance(fact, Chunks) and step.axis not in certificate.shared.get(fact.symbol, [step.axis])
        ]
        if missing:
            _refuse(f"the weight {missing[0]!r} is not said to be shared along {step.axis!r}")
        own = [fact.symbol for fact in step.facts if isinstance(fact, Cut) and certificate.shared.get(fact.symbol)]
        if own:
            _refuse(f"the weight {own[0]!r} is said to be the same for all ranks, and to be shared")
        last = step.after
    _require_shared_alike(certificate)
    if certificate.stages is not None:
        used.append(certificate.stages.axis)
    if sorted(used) != sorted(sizes):
        _refuse(f"it proves the axes {', '.join(used) or 'none'}, the mesh has {', '.join(sizes) or 'none'}")
    if certificate.stages is None:
        return [PlaceMeetings({}, [] if proof is None else proof.meetings)]
    return _prove_stages(certificate, certificate.stages, last, sizes)


def _require_one_order(proof: Proof) -> None:
    if proof.ordered:
        _refuse(f"ranks add floats in an order of theirs: {proof.ordered[0]}")
    other = [tree for tree in proof.trees if not tree.is_fixed]
    if other:
        _refuse(f"the sum of {other[0].place} is no tree that other meshes have: {other[0].chunks} of {other[0].size}")


def _require_shared_alike(certificate: Certificate) -> None:
    """A weight that is cut into chunks is shared as that of which it is cut."""
    axes: dict[str, list[str]] = {}
    for step in certificate.axes:
        for fact in step.facts:
            if isinstance(fact, Slices | Chunks):
                own = [step.axis] if isinstance(fact, Slices) else []
                axes[fact.symbol] = axes.get(fact.source, []) + own
            last = isinstance(fact, Chunks) and fact.symbol in certificate.graphs[certificate.axes[-1].after].weights
            if last and certificate.shared.get(fact.symbol, []) != axes[fact.symbol]:
                _refuse(f"the weight {fact.symbol!r} is not said to be shared as that of which it is cut")


def _prove_stages(
    certificate: Certificate, stages: StageStep, last: int, sizes: Mapping[str, int]
) -> list[PlaceMeetings]:
    if stages.before != last or len(stages.after) != sizes[stages.axis]:
        _refuse("the stages are not those of the program")
    graphs = [certificate.graphs[number] for number in stages.after]
    proof = prove_stages(certificate.graphs[stages.before], graphs, stages.axis, certificate.shapes)
    _compare("the values of the stages", stages.values, proof.values)
    _compare("the order of the stages", stages.order, proof.order)
    return [PlaceMeetings({stages.axis: number}, meetings) for number, meetings in enumerate(proof.meetings)]


def _compare(what: str, stated: Sequence[Any], proved: Sequence[Any]) -> None:
    if len(stated) != len(proved):
        _refuse(f"{what} are {len(stated)}, {len(proved)} were proved")
    for number, (one, other) in enumerate(zip(stated, proved, strict=True)):
        if one != other:
            _refuse(f"{what} say {one!r} of number {number}, proved is {other!r}")


def _refuse(reason: str) -> NoReturn:
    raise ParityError("LK6004", f"the certificate does not hold: {reason}")
