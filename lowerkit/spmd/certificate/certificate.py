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
from lowerkit.spmd.certificate.facts import Cut, Fact
from lowerkit.spmd.certificate.graph import Graph
from lowerkit.spmd.certificate.meetings import Meeting
from lowerkit.spmd.certificate.prover import Proof, prove
from lowerkit.spmd.certificate.stages import StagesProof, prove_stages

VERSION = 1


class AxisStep(msgspec.Struct, frozen=True):
    """The split along one axis.

    Attributes:
        axis, ranks: of the mesh.
        before, after: into the list of programs.
        facts: of the weights that the split makes.
        lemmas: of each op after.
        relations: of each value after.
    """

    axis: str
    ranks: int
    before: int
    after: int
    facts: list[Fact]
    lemmas: list[str]
    relations: list[str]


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
        rewritten: what was done to the program for one device in front of a step, which is not proved.
        derived: the weights that later stages compute, and of which ones (see :mod:`.derived`); filled in when it is
            written.
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
    rewritten: list[str] = []
    derived: dict[str, list[str]] = {}
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
        rewritten: what was done to the program for one device, which is not part of the proof.
    """

    ops: int
    collectives: int
    ranks: int
    mesh: str
    rewritten: list[str]

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return msgspec.to_builtins(self)

    def render(self) -> str:
        """Returns the line for people."""
        noun = "collective" if self.collectives == 1 else "collectives"
        line = f"certificate: {self.ops} ops proved, {self.collectives} {noun} in one order on {self.ranks} ranks"
        return f"{line} ({self.mesh})" + (f"; not proved: {', '.join(self.rewritten)}" if self.rewritten else "")


def shapes_of_inputs(signature: Signature) -> list[list[Any]]:
    """Returns the shapes of the arguments of a signature."""
    return [list(spec.shape) for spec in signature.inputs]


def step_of(axis: str, ranks: int, graphs: tuple[int, int], facts: Sequence[Fact], proof: Proof) -> AxisStep:
    """Returns the step that was proved."""
    return AxisStep(axis, ranks, *graphs, list(facts), proof.lemmas, proof.relations)


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
        if proof is not None and step.before != last and not certificate.rewritten:
            _refuse(f"the split along {step.axis!r} begins with another program than the one before ended with")
        before, after = certificate.graphs[step.before], certificate.graphs[step.after]
        proof = prove(before, after, step.axis, step.ranks, step.facts, certificate.shapes)
        _compare(f"the lemmas of {step.axis}", step.lemmas, proof.lemmas)
        _compare(f"the relations of {step.axis}", step.relations, proof.relations)
        missing = [
            fact.symbol for fact in step.facts if step.axis not in certificate.shared.get(fact.symbol, [step.axis])
        ]
        if missing:
            _refuse(f"the weight {missing[0]!r} is not said to be shared along {step.axis!r}")
        own = [fact.symbol for fact in step.facts if isinstance(fact, Cut) and certificate.shared.get(fact.symbol)]
        if own:
            _refuse(f"the weight {own[0]!r} is said to be the same for all ranks, and to be shared")
        last = step.after
    if certificate.stages is not None:
        used.append(certificate.stages.axis)
    if sorted(used) != sorted(sizes):
        _refuse(f"it proves the axes {', '.join(used) or 'none'}, the mesh has {', '.join(sizes) or 'none'}")
    if certificate.stages is None:
        return [PlaceMeetings({}, [] if proof is None else proof.meetings)]
    return _prove_stages(certificate, certificate.stages, last, sizes)


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
