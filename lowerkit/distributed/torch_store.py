"""A store of torch.distributed as the store of a rendezvous."""

from __future__ import annotations

import time

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from lowerkit.runtimes.collective.rendezvous.host import address_towards

_SHORTEST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05
_NO_VALUE = "lowerkit: no value"  # expected by nobody, so nothing is set


class TorchStore:
    """See :class:`lowerkit.runtimes.collective.rendezvous.store.Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def store(self) -> Store:
        """torch's own."""
        return self._store

    def set(self, key: str, value: bytes) -> None:
        """See :class:`Store`. A TCPStore awaits no answer to a value; one to a question behind it comes later."""
        self._store.set(key, value)  # pyright: ignore[reportArgumentType] -- takes bytes as well
        self._store.check([key])

    def get(self, key: str, timeout: float) -> bytes:
        """See :class:`Store`."""
        start = time.monotonic()
        while (value := self._look(key)) is None:
            waited = time.monotonic() - start
            if waited >= timeout:
                raise TimeoutError(f"no value of {key!r} within {timeout:.3g} s")
            # Who waits long asks seldom, and is late by a fraction of what it waited.
            time.sleep(min(max(waited / 4, _SHORTEST_PAUSE), _LONGEST_PAUSE, timeout - waited))
        return value

    def _look(self, key: str) -> bytes | None:
        """Returns the value, or None. Stores' own waits take no signals and report each timeout on stderr.

        Whether a value is there and which one are asked at once: it may be deleted meanwhile, and ``get`` would wait.
        """
        try:
            value = self._store.compare_set(key, _NO_VALUE, _NO_VALUE)
        except RuntimeError:  # the store's host is gone, or it is slow
            return None
        return None if value == _NO_VALUE.encode() else value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See :class:`Store`."""
        return self._store.compare_set(key, expected.decode(), desired.decode())

    def delete(self, key: str) -> bool:
        """See :class:`Store`. Stores that cannot delete keep their values."""
        try:
            return self._store.delete_key(key)
        except RuntimeError:
            return False


def interface_towards(store: Store) -> str | None:
    """Returns the address of this host that faces the host of a TCPStore, or None: another store, or loopback."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return address_towards(store.host, store.port) if isinstance(store, TCPStore) else None
