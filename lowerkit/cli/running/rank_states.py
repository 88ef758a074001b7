"""The states of a mesh in a folder: each rank has its own, in a folder ``rankN``."""

from __future__ import annotations

from pathlib import Path

from lowerkit.errors import InputError


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
