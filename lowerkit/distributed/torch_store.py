"""A store of torch.distributed as the store of a rendezvous."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from lowerkit.runtimes.collective.host import address_towards

_LEAST_WAIT = timedelta(milliseconds=1)


class TorchStore:
    """See :class:`lowerkit.runtimes.collective.store.Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """See :class:`Store`."""
        self._store.set(key, value)  # pyright: ignore[reportArgumentType] -- takes bytes as well

    def get(self, key: str, timeout: float) -> bytes:
        """See :class:`Store`."""
        try:
            # Stores differ in what they do without a value, but all of them tell whether there is one.
            if not self._store.check([key]):
                if timeout <= 0:
                    raise TimeoutError(f"no value of {key!r}")
                self._store.wait([key], max(timedelta(seconds=timeout), _LEAST_WAIT))
        except RuntimeError as error:
            # FileStore and HashStore raise plain errors; what they say of a timeout differs from release to release.
            raise TimeoutError(f"no value of {key!r} within {timeout:.3g} s: {error}") from error
        return self._store.get(key)

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
