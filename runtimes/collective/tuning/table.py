"""Where one algorithm gives way to the next, measured on a machine: the table that ``lowerkit comm tune`` writes.

A table is one JSON file: ``schema`` (``lowerkit.collective_tuning``), ``version`` 2, ``processor`` (the model's name),
``processors`` (how many the ranks might use), ``ranks``, from a number of local ranks to the four fields of
:class:`Tuning`, and ``seconds``, from such a number and bytes to the median of an all_reduce with these values, of
which a cost model makes a link. Version 1 had no ``seconds``; it is read still. A group takes a table only when it is
told to, and logs what it took.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import platformdirs

from lowerkit.errors import InputError
from lowerkit.runtimes.collective.failures import usage

SCHEMA = "lowerkit.collective_tuning"
VERSION = 2
_READ = (1, VERSION)
_PAGE = 4096
_TILE_BYTES = (64 << 10, 16 << 20)
_MOST_BYTES = 1 << 62
_MOST_SPIN = 1_000_000_000
_MOST_FILE_BYTES = 1 << 20


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``lk_tuning`` of ``lowerkit_collective.h``; 0: the built-in value. All local ranks of a group use the same.

    Attributes:
        one_shot_limit: bytes up to which an all_reduce copies the whole input once; above, slices.
        tile_bytes: a step of the pipelined algorithms, a multiple of 4096.
        streaming_limit: bytes from which on outputs are stored past the caches.
        spin_nanoseconds: how long a rank that waits spins before it sleeps.
    """

    one_shot_limit: int = 0
    tile_bytes: int = 0
    streaming_limit: int = 0
    spin_nanoseconds: int = 0

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The fields in the order of the native side."""
        return (self.one_shot_limit, self.tile_bytes, self.streaming_limit, self.spin_nanoseconds)

    def to_json(self) -> dict[str, int]:
        """Returns the fields."""
        return msgspec.structs.asdict(self)

    def check(self) -> None:
        """Checks the ranges.

        Raises:
            UsageError: LK1010, a number is negative or too large, or tiles have no size that the native side can use.
        """
        if min(self.numbers) < 0 or max(self.numbers) > _MOST_BYTES or self.spin_nanoseconds > _MOST_SPIN:
            raise usage(f"{self}: no field is negative, and no rank spins for more than a second")
        least, most = _TILE_BYTES
        if self.tile_bytes and (self.tile_bytes % _PAGE or not least <= self.tile_bytes <= most):
            raise usage(f"tile_bytes is {self.tile_bytes}, expected a multiple of {_PAGE} from {least} to {most}")


@dataclass(frozen=True)
class TuningTable:
    """Tuned values of one machine, by the number of local ranks.

    Attributes:
        processor: the model's name.
        processors: in the affinity mask of those who measured.
        ranks: number of local ranks -> values; for other numbers the built-in ones hold.
        source: the file, for messages.
        seconds: number of local ranks -> bytes -> median of an all_reduce with these values; empty where a table does
            not say.
    """

    processor: str
    processors: int
    ranks: dict[int, Tuning]
    source: str = ""
    seconds: dict[int, dict[int, float]] = field(default_factory=dict[int, dict[int, float]])

    def for_ranks(self, local_count: int) -> Tuning:
        """Returns the values for a number of local ranks: measured ones, or the built-in ones."""
        return self.ranks.get(local_count, Tuning())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table, over an earlier one, whole or not at all.

        Raises:
            UsageError: LK1010, the file cannot be written.
        """
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        document = {
            "schema": SCHEMA, "version": VERSION, "processor": self.processor, "processors": self.processors,
            "ranks": self.ranks, "seconds": self.seconds,
        }  # fmt: skip
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise usage(f"the tuning table cannot be written to {target}: {error.strerror}") from error

    @staticmethod
    def load(path: str | os.PathLike[str] | None = None) -> TuningTable:
        """Reads a table.

        Args:
            path: the file; None: this machine's, where ``lowerkit comm tune`` puts it.

        Raises:
            InputError: LK1001, it cannot be read; LK1002, it is no such table; LK1003, it was measured elsewhere.
            UsageError: LK1010, a value is out of its range.
        """
        source = Path(path) if path is not None else default_path()
        try:
            with source.open("rb") as file:
                data = file.read(_MOST_FILE_BYTES + 1)
        except OSError as error:
            hint = "lowerkit comm tune measures and writes it"
            raise InputError("LK1001", f"{source} cannot be read: {error.strerror}", hint=hint) from error
        try:
            if len(data) > _MOST_FILE_BYTES:
                raise ValueError(f"it has more than {_MOST_FILE_BYTES} bytes")
            read = msgspec.json.decode(data, type=_Document)
            if read.schema != SCHEMA or read.version not in _READ:
                raise ValueError(f"it is {read.schema} {read.version}")
        except (ValueError, RecursionError) as error:
            raise InputError("LK1002", f"{source} is no tuning table of version {VERSION} or 1: {error}") from error
        here = (processor_name(), processors())
        if here != (read.processor, read.processors):
            raise InputError(
                "LK1003",
                f"{source} was measured on {read.processors} processors {read.processor!r}; "
                f"here are {here[0]!r}, {here[1]} of them",
                hint="lowerkit comm tune measures this machine",
            )
        for tuning in read.ranks.values():
            tuning.check()
        return TuningTable(read.processor, read.processors, read.ranks, str(source), read.seconds)


class _Document(msgspec.Struct):
    schema: str
    version: int
    processor: str
    processors: int
    ranks: dict[int, Tuning]
    seconds: dict[int, dict[int, float]] = {}


def default_path() -> Path:
    """Returns where this machine's table lies: in the user's cache folder, by processor and number of processors."""
    key = re.sub(r"[^a-z0-9]+", "-", processor_name().lower()).strip("-")
    return Path(platformdirs.user_cache_dir("lowerkit")) / "collective" / f"{key}-{processors()}.json"


def processors() -> int:
    """Returns the number of processors in this process's affinity mask."""
    return len(os.sched_getaffinity(0))


def processor_name() -> str:
    """Returns the processor's name as the kernel tells it, or the architecture's where it tells none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
