"""The states of a mesh in a folder: each rank has its own, in a folder ``rankN``.

Beside them lies what they are: the mesh, the rank's place among stages, and how states were cut. Two meshes of as many
ranks may hold parts of one shape that are others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lowerkit.errors import InputError
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mesh.places import place_text
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut

_PARTS = "parts.json"


class _Parts(msgspec.Struct, frozen=True):
    """What the states of a rank are."""

    mesh: list[MeshAxis]
    place: dict[str, int] = {}
    cuts: dict[str, list[StateCut]] = {}

    @classmethod
    def of(cls, program: ProgramSpec) -> _Parts:
        return cls(program.mesh, program.place, program.state_cuts)


def rank_states(folder: Path, rank: int, size: int) -> Path:
    """Returns the folder of a rank's states, which may not exist yet.

    Raises:
        InputError: LK1003, what the folder holds are not the states of so many ranks.
    """
    own = folder / f"rank{rank}"
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".npy" or entry.is_dir())
    except FileNotFoundError:
        return own
    except OSError as error:
        raise InputError("LK1001", f"{folder} cannot be read: {error.strerror}") from error
    wanted = [f"rank{number}" for number in range(size)]
    foreign = [name for name in found if name not in wanted]
    if foreign or (found and own.name not in found):
        raise InputError(
            "LK1003",
            f"{folder} holds {', '.join(found)}, not the states of the {size} ranks of a mesh",
            details=[f"expected {', '.join(wanted)}"],
            hint="give an empty or new folder to start from the initial states",
        )
    return own


def require_same_parts(folder: Path, program: ProgramSpec) -> None:
    """Raises where a rank's folder holds the parts of another mesh; it may hold nothing yet.

    Raises:
        InputError: LK1003, they are others, or nothing says which parts they are; LK1001, that cannot be read.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    try:
        found = msgspec.json.decode((folder / _PARTS).read_bytes(), type=_Parts)
    except FileNotFoundError:
        if not program.state_cuts and not program.place:
            return  # all of each state, whoever wrote it
        found = None
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError("LK1001", f"{folder / _PARTS} cannot be read: {error}") from error
    if found != _Parts.of(program):
        there = "of a mesh that is not named" if found is None else _shown(found)
        raise InputError(
            "LK1003",
            f"{folder} holds states {there}, and the artifact keeps them {_shown(_Parts.of(program))}",
            hint="give an empty or new folder to start from the initial states",
        )


def write_parts(folder: Path, program: ProgramSpec) -> None:
    """Writes what the states of a rank are beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _PARTS).write_bytes(msgspec.json.encode(_Parts.of(program), order="deterministic"))


def _shown(parts: _Parts) -> str:
    mesh = ",".join(f"{axis.name}={axis.size}" for axis in parts.mesh)
    stage = f" at {place_text(parts.place)}" if parts.place else ""
    cut = sorted({f"dim {each.dim} in {each.parts} along {each.axis}" for cuts in parts.cuts.values() for each in cuts})
    return f"of {mesh}{stage}, cut {', '.join(cut) or 'nowhere'}"
