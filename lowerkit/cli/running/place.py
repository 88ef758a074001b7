"""Which rank this process is, and where it meets the others: as `lowerkit run --nproc` says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
    from lowerkit.runtimes.collective.rendezvous.store import Store


@dataclass(frozen=True)
class LocalPlace:
    """The place of a rank that ``lowerkit run --nproc`` started.

    Attributes:
        folder: where the ranks meet; private.
        rank: which one this is.
        size: how many there are.
        report: the descriptor of the file without a name that the rank writes its diagnostic to.
    """

    folder: Path
    rank: int
    size: int
    report: int

    def options(self) -> list[str]:
        """Returns the options by which a command line says its place; :meth:`of` reads them."""
        return ["--rank-place", f"{self.rank}:{self.size}:{self.report}:{self.folder}"]

    @staticmethod
    def of(text: str) -> LocalPlace:
        """Reads what :meth:`options` wrote.

        Raises:
            UsageError: LK1009, somebody else wrote it.
        """
        *numbers, folder = text.split(":", 3)
        if len(numbers) < 3 or not (folder and all(number.isdecimal() for number in numbers)):
            raise UsageError("LK1009", f"--rank-place is {text!r}: --nproc writes it, nobody else")
        rank, size, report = map(int, numbers)
        return LocalPlace(Path(folder), rank, size, report)

    def store(self, seconds: float) -> Store:
        """Returns the store in which the ranks meet."""
        from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore

        return DirectoryStore(self.folder / "store")

    def reach(self) -> RendezvousOptions:
        """Returns how the ranks reach each other: all are on this host."""
        from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions

        return RendezvousOptions()
