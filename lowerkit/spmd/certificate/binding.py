"""A certificate and the artifact that it lies in: the steps must issue the collectives that were proved, in order.

Steps:
    1. what each program of the artifact says, but for its code, has the sha-256 that the certificate states;
    2. each program for the mesh issues the collectives of its place: kind, axis, element type, reduction, root, peer,
       and the bytes of both buffers for all dims;
    3. those that all ranks issue in every run lie in no part of the steps that is jumped over or run again; a branch
       or a loop is decided by what all ranks have, so that they issue those of its body together, or not at all;
    4. weights that ranks share are those whose parts were proved, along the same axes, and what later stages compute of
       these (:mod:`.derived`);
    5. states are cut as was proved, and start from their slices of the tensors of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from msgspec.structs import replace

from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.errors import ParityError
from lowerkit.runtimes.artifact_reader import damaged, open_artifact
from lowerkit.runtimes.expressions import Expr, ExpressionError, evaluate, normalize
from lowerkit.runtimes.manifest import JUMP_KERNEL, Manifest, ProgramSpec, Step
from lowerkit.runtimes.mesh.places import mesh_label, mesh_size, place_text
from lowerkit.runtimes.mesh.structs import REDUCING, StateCut
from lowerkit.spmd.certificate.certificate import (
    Certificate,
    CertificateReport,
    PlaceMeetings,
    ProgramDigest,
    prove_again,
    shapes_of_inputs,
)
from lowerkit.spmd.certificate.derived import SharedAxes, sources_of, stored_weights
from lowerkit.spmd.certificate.meetings import Meeting
from lowerkit.spmd.certificate.states import split_states

if TYPE_CHECKING:
    from lowerkit.program.weights import WeightStore

_LARGEST = 1 << 28
_POINTS = 5


def certificate_bytes(certificate: Certificate, manifest: Manifest, store: WeightStore | None = None) -> bytes:
    """Returns a certificate as the entry of the artifact that ``manifest`` describes.

    Args:
        certificate: of the program.
        manifest: of the artifact.
        store: of the weights, which says what later stages have derived; None: the certificate says so already.

    Raises:
        ParityError: LK6004, the steps do not issue the collectives that were proved.
    """
    programs = [_digest(program) for program in manifest.programs]
    bound = replace(certificate, programs=programs)
    if store is not None:
        derived = sources_of(certificate, stored_weights(manifest), store)
        bound = replace(bound, derived=derived, weights=_hashes(certificate, store))
    _require_bound(bound, manifest)
    return msgspec.json.encode(bound, order="deterministic")


def _hashes(certificate: Certificate, store: WeightStore) -> dict[str, str]:
    from lowerkit.spmd.certificate.stored.in_bytes import roots_of, sha256_of

    return {root: sha256_of(store.get(root)) for root in roots_of(certificate) if root in store}


def read_certificate(data: bytes) -> Certificate:
    """Reads the entry of an artifact.

    Raises:
        ParityError: LK6004, it is none.
    """
    if len(data) > _LARGEST:
        _refuse(f"it has {len(data)} bytes")
    try:
        return msgspec.json.decode(data, type=Certificate)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        _refuse(f"it cannot be read: {error}")


def check_artifact(path: Path, *, required: bool, reads_weights: bool = False) -> CertificateReport | None:
    """Proves the certificate in an artifact again.

    Args:
        path: the ``.lk`` file.
        required: whether an artifact without one is refused.
        reads_weights: whether what it states of weights is checked in their bytes, too.

    Returns:
        What was proved; None where the artifact holds no certificate.

    Raises:
        ArtifactError: as :func:`~lowerkit.runtimes.artifact_reader.open_artifact`; LK8001, the entry is damaged.
        ParityError: LK6004, the certificate does not hold, or there is none.
    """
    artifact = open_artifact(path)
    try:
        info = artifact.manifest.entries.get(CERTIFICATE_ENTRY)
        if info is None:
            if required:
                raise ParityError(
                    "LK6004",
                    f"{path} holds no certificate",
                    hint="an artifact for a mesh has one where one compilation went from the model to the artifact",
                )
            return None
        data = artifact.entry_bytes(CERTIFICATE_ENTRY).tobytes()
        if hashlib.sha256(data).hexdigest() != info.sha256:
            raise damaged(path, f"{CERTIFICATE_ENTRY}: its sha-256 is not that of the manifest")
        report = check_certificate(data, artifact.manifest)
        if not reads_weights:
            return report
        from lowerkit.spmd.certificate.stored.in_bytes import check_facts

        return replace(report, checked=check_facts(read_certificate(data), artifact))
    finally:
        artifact.close()


def check_certificate(data: bytes, manifest: Manifest) -> CertificateReport:
    """Proves the certificate of an artifact again, and compares it with the programs of the artifact.

    Raises:
        ParityError: LK6004, it does not hold, or is that of another artifact.
    """
    certificate = read_certificate(data)
    proved = prove_again(certificate)
    if proved != certificate.meetings:
        _refuse(_first_difference(certificate.meetings, proved))
    _require_bound(certificate, manifest)
    graphs = {step.after for step in certificate.axes}
    if certificate.stages is not None:
        graphs |= set(certificate.stages.after)
    return CertificateReport(
        ops=sum(len(certificate.graphs[number].ops) for number in graphs),
        collectives=max(len(place.meetings) for place in certificate.meetings),
        ranks=mesh_size(certificate.mesh),
        mesh=mesh_label(manifest.programs[0]),
        trees=sum(len(step.trees) for step in certificate.axes),
        invariant=certificate.invariant,
        facts=len({fact.symbol for step in certificate.axes for fact in step.facts}),
    )


def _first_difference(stated: Sequence[PlaceMeetings], proved: Sequence[PlaceMeetings]) -> str:
    for one, other in zip(stated, proved, strict=False):
        for number, (left, right) in enumerate(zip(one.meetings, other.meetings, strict=False)):
            if left != right:
                return f"collective {number} is {left} there, and {right} in the program"
    counts = [[len(place.meetings) for place in places] for places in (stated, proved)]
    return f"it states {counts[0]} collectives by place, the programs have {counts[1]}"


def _digest(program: ProgramSpec) -> ProgramDigest:
    """Golden outputs are left out: they are made by running what has been written."""
    said = msgspec.json.encode(replace(program, golden=None), order="deterministic")
    return ProgramDigest(program.name, program.label, dict(program.place), hashlib.sha256(said).hexdigest())


def _require_bound(certificate: Certificate, manifest: Manifest) -> None:
    programs = manifest.programs
    if [_digest(program) for program in programs] != certificate.programs:
        _refuse("it is that of other programs than the artifact holds")
    shared, cuts = SharedAxes(certificate), _proved_cuts(certificate)
    for program in programs:
        if program.mesh != certificate.mesh:
            _refuse(f"it is for other axes than {mesh_label(program) or 'one device'}")
        stated = [place.meetings for place in certificate.meetings if place.place == program.place]
        if len(stated) != 1:
            _refuse(f"it says nothing of the ranks at {place_text(program.place) or 'all places'}")
        if shapes_of_inputs(program.signature) != [list(shape) for shape in certificate.shapes]:
            _refuse("it is for inputs of other shapes")
        _require_same(program, stated[0])
        _require_parts(shared, program)
        _require_states(cuts, program)


def _require_same(program: ProgramSpec, meetings: Sequence[Meeting]) -> None:
    steps = [
        (number, step)
        for number, step in enumerate(program.steps)
        if step.collective is not None and step.collective.phase != "done"
    ]
    for number, ((place, step), meeting) in enumerate(zip(steps, meetings, strict=False)):
        problem = next(_differences(program, step, meeting), None)
        if problem is not None:
            _refuse(f"collective {number} of the program, step {place}, {problem}; proved is {meeting}")
    if len(steps) != len(meetings):
        _refuse(f"the program has {len(steps)} collectives, {len(meetings)} were proved")
    for number, step in enumerate(program.steps):
        if step.kernel == JUMP_KERNEL:
            low, high = sorted((number, step.target))
            inside = [
                place
                for (place, _), meeting in zip(steps, meetings, strict=True)
                if low < place < high and not meeting.function
            ]
            if inside:
                _refuse(f"step {number} jumps across the collective of step {inside[0]}")


def _differences(program: ProgramSpec, step: Step, meeting: Meeting) -> Iterator[str]:
    call = step.collective
    assert call is not None, "the caller has looked"
    reduction = meeting.reduction if meeting.kind in REDUCING else "sum"
    pairs = {
        "kind": (call.operation, meeting.kind),
        "axis": (call.axis, meeting.axis),
        "element type": (call.dtype, meeting.dtype),
        "reduction": (call.reduction, reduction),
        "root": (call.root, meeting.root),
        "peer": (call.peer, meeting.peer),
    }
    for name, (own, proved) in pairs.items():
        if own != proved:
            yield f"has the {name} {own!r}"
    # A receive names its one buffer twice, and a send gives nothing.
    sizes = {"operand": (step.buffers[0], meeting.given), "result": (step.buffers[1], meeting.made)}
    for name, (buffer, proved) in sizes.items():
        if not _same_size(program, program.buffers[buffer].size, proved):
            yield f"has {program.buffers[buffer].size} bytes of {name}"


def _same_size(program: ProgramSpec, own: Expr, proved: object) -> bool:
    """Whether two sizes are equal, by their values at several points of the dims."""
    if proved is None:
        return False
    stated = normalize(proved)
    if own == stated:
        return True
    if isinstance(own, int) and isinstance(stated, int):
        return False
    for point in range(_POINTS):
        values = {
            dim.name: min(dim.minimum + point * (place + 1), dim.maximum or (1 << 20))
            for place, dim in enumerate(program.signature.dims)
        }
        try:
            if evaluate(own, values) != evaluate(stated, values):
                return False
        except ExpressionError:
            return False
    return True


def _require_parts(shared: SharedAxes, program: ProgramSpec) -> None:
    for buffer in program.buffers:
        if buffer.kind != "weight":
            continue
        name = buffer.weight.partition("|")[0]
        axes = shared.of(name)
        if buffer.shard != ",".join(axes):
            _refuse(f"the weight {name!r} is shared along {buffer.shard or 'no axis'}, proved is {axes or 'no axis'}")


def _proved_cuts(certificate: Certificate) -> dict[str, list[StateCut]]:
    """Returns how each state is cut of which a rank has a part, as the programs that were proved say."""
    found: dict[str, list[StateCut]] = {}
    for step in certificate.axes:
        before, after = certificate.graphs[step.before], certificate.graphs[step.after]
        for symbol, slices in split_states(before, after, step.ranks).items():
            found.setdefault(symbol, []).append(StateCut(step.axis, slices.axis, slices.parts))
    return found


def _require_states(cuts: Mapping[str, list[StateCut]], program: ProgramSpec) -> None:
    names = [spec.name for spec in program.signature.states]
    if program.state_cuts != {name: cuts[name] for name in names if name in cuts}:
        _refuse(f"it cuts the states {', '.join(cuts) or 'of no name'} in another way than the program")
    for name, stored in program.state_initials.items():
        if stored != name:
            _refuse(f"the state {name!r} starts from the tensor {stored!r}")


def _refuse(reason: str) -> NoReturn:
    raise ParityError("LK6004", f"the certificate does not hold: {reason}")
