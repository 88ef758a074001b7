"""What a rank publishes in the store as one line of JSON; its readers trust nobody who can write there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from lowerkit.runtimes.collective.failures import not_formed

MOST_BYTES = 4096
"""Of a line."""


@dataclass(frozen=True)
class PublishedLine:
    """A line of plain fields; a subclass names them, each of a type of JSON."""

    def to_bytes(self) -> bytes:
        """Returns the line as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, rank: int, data: bytes) -> Self:
        """Returns the line of ``rank``.

        Raises:
            CollectiveFault: LK8007, it is none: another version, or foreign bytes.
        """
        try:
            if len(data) > MOST_BYTES:
                raise ValueError(f"{len(data)} bytes")
            line = cls(**json.loads(data))
            for name, kind in cls.__annotations__.items():
                if type(getattr(line, name)).__name__ != kind:
                    raise ValueError(name)
            line.check()
        except (ValueError, TypeError, RecursionError) as error:
            raise not_formed(
                f"what rank {rank} published cannot be read: {error}",
                hint="all ranks need the same version of lowerkit, and a store of their own",
            ) from error
        return line

    def check(self) -> None:
        """Raises ValueError where a field holds what this rank could not use."""
