"""The job token: the secret that makes a process a rank of a job.

The rule, first match wins:

1. the token given as an argument, bytes or the path of a file that only its owner can read;
2. ``LOWERKIT_JOB_TOKEN`` in the environment, which launchers pass on to every rank (``torchrun`` passes its own
   environment on): a job's secret, not an option of the program;
3. otherwise rank 0 draws one and publishes it in the store. **Then whoever can read the store can join**: with a
   TCPStore that is every host that reaches its port. It keeps strangers' connections, port scanners and other jobs out,
   no more, and stands there until all ranks have used it. Ranks that are told a token and ranks that are not never
   meet: no rank takes another one's rule.

A token authenticates connections when they are made. What flows afterwards is not encrypted and not signed: the network
between hosts must be one where nobody rewrites packets.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from lowerkit.runtimes.collective.failures import not_formed, usage
from lowerkit.runtimes.collective.rendezvous.store import Store

ENVIRONMENT_VARIABLE = "LOWERKIT_JOB_TOKEN"
LEAST_BYTES = 16
MOST_BYTES = 1024


def draw_token() -> str:
    """Returns a new token: 256 random bits in hexadecimal."""
    return secrets.token_hex(32)


def given_token(argument: bytes | str | os.PathLike[str] | None) -> bytes | None:
    """Returns the token of rules 1 and 2, or None.

    Args:
        argument: the token as bytes, the path of its file as text or path, or None: the environment is asked.

    Raises:
        UsageError: LK1010, the token is shorter than 16 bytes or longer than 1024, or others can read its file.
    """
    if isinstance(argument, bytes):
        return _checked(argument, "the token given as an argument")
    if argument is not None:
        return _checked(_read(Path(argument)), f"the token in {os.fspath(argument)}")
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if text is None else _checked(os.fsencode(text), f"the token in {ENVIRONMENT_VARIABLE}")


def shared_token(store: Store, group: str, rank: int, timeout: float) -> bytes:
    """Returns the token of rule 3, which rank 0 publishes in the store.

    Raises:
        CollectiveFault: LK8007, rank 0 published none in time.
        UsageError: LK1010, what stands in the store is too short or too long for a token.
    """
    key = _key(group)
    if rank == 0:
        return _checked(store.compare_set(key, b"", draw_token().encode()), "the token in the store")
    try:
        return _checked(store.get(key, timeout), "the token in the store")
    except TimeoutError as error:
        raise not_formed(
            f"group {group!r}: rank 0 published no job token within {timeout:.3g} s",
            hint=f"rank 0 is not there, or it was given a token ({ENVIRONMENT_VARIABLE}) and rank {rank} was not",
        ) from error


def forget_token(store: Store, group: str) -> None:
    """Deletes the token of rule 3."""
    store.delete(_key(group))


def _key(group: str) -> str:
    return f"lowerkit/{group}/token"


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is refused below
    except (OSError, ValueError) as error:  # ValueError: the path holds a zero byte
        raise usage(f"the job token cannot be read from {str(path)!r}: {error}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise usage(f"{path} is no file: the job token cannot be read from it")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise usage(f"{path} has mode {mode:o}: others could read the job token", hint=f"chmod 600 {path}")
        return os.read(descriptor, MOST_BYTES + 2).strip()
    finally:
        os.close(descriptor)


def _checked(token: bytes, what: str) -> bytes:
    if not LEAST_BYTES <= len(token) <= MOST_BYTES:
        raise usage(f"{what} has {len(token)} bytes, expected {LEAST_BYTES} to {MOST_BYTES}")
    return token
