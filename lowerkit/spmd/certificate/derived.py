"""Weights that are computed of proved ones behind the proof: ranks share them as they share what these are made of.

Vocabulary
    proved    of a weight: the programs of the ranks that were proved read it
    derived   of a weight: a later stage computes it of others when it is compiled, in place of ops that would compute
              the same of these on each rank whenever it runs
    sources   of a derived weight: what it is computed of, at once; none of a constant, which every rank has

Nothing that is computed of weights alone meets other ranks: so a derived weight has a part for each place along the
axes of its sources, those of the first source first, and along no other axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from lowerkit.errors import ParityError
from lowerkit.runtimes.manifest import Manifest
from lowerkit.spmd.certificate.certificate import Certificate

if TYPE_CHECKING:
    from lowerkit.program.weights import WeightStore


def stored_weights(manifest: Manifest) -> list[str]:
    """Returns the weights that the programs of an artifact read, without how they are laid out.

    A stored weight is named by that of the program, a bar, and how it is laid out.
    """
    names = (
        buffer.weight.partition("|")[0]
        for program in manifest.programs
        for buffer in program.buffers
        if buffer.kind == "weight"
    )
    return list(dict.fromkeys(names))


def sources_of(certificate: Certificate, weights: Iterable[str], store: WeightStore) -> dict[str, list[str]]:
    """Returns the sources of the derived ones among ``weights``, and of each source that is derived itself."""
    proved = _proved(certificate)
    found: dict[str, list[str]] = {}
    open_ = [name for name in weights if name not in proved]
    while open_:
        name = open_.pop()
        if name not in found:
            found[name] = list(store.parents(name)) if name in store else []
            open_ += [source for source in found[name] if source not in proved]
    return found


class SharedAxes:
    """Says along which axes ranks share the weights of an artifact, by its certificate."""

    def __init__(self, certificate: Certificate) -> None:
        """Takes the certificate, which may be one that nobody has proved yet."""
        self._proved = _proved(certificate)
        self._shared = certificate.shared
        self._sources = certificate.derived
        self._known: dict[str, list[str]] = {}

    def of(self, name: str) -> list[str]:
        """Returns the axes of a weight, in their order.

        Raises:
            ParityError: LK6004, the weight is neither proved nor derived, or is derived of itself.
        """
        path: list[str] = [name]
        while path:
            last = path[-1]
            missing = [each for each in self._sources_of(last) if each not in self._known]
            if not missing:
                self._known[path.pop()] = self._axes(last)
            elif missing[0] in path:
                _refuse(f"the weight {last!r} is said to be computed of itself")
            else:
                path.append(missing[0])
        return self._known[name]

    def _sources_of(self, name: str) -> Sequence[str]:
        if name in self._proved:
            return ()
        if name not in self._sources:
            _refuse(f"nothing is said of the weight {name!r}: it is in no program that was proved")
        return self._sources[name]

    def _axes(self, name: str) -> list[str]:
        if name in self._proved:
            return self._shared.get(name, [])
        return list(dict.fromkeys(axis for source in self._sources[name] for axis in self._known[source]))


def _proved(certificate: Certificate) -> set[str]:
    """Returns the weights that the programs of the ranks read, as they were proved last."""
    if certificate.stages is not None:
        last = certificate.stages.after
    else:
        last = [step.after for step in certificate.axes[-1:]]
    return {symbol for number in last for symbol in certificate.graphs[number].weights}


def _refuse(reason: str) -> NoReturn:
    raise ParityError("LK6004", f"the certificate does not hold: {reason}")
