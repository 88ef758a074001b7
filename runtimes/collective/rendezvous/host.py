"""Where a rank runs and how it is reached: the host's identity, and the address that it listens on."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from lowerkit.runtimes.collective.failures import usage

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


def host_identity() -> str:
    """Returns a text that is equal for processes of one running kernel and one network namespace.

    Such processes can share memory and reach each other's abstract Unix sockets, whatever containers they are in.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/net").stat()
    return f"{boot}/{namespace.st_dev}:{namespace.st_ino}"


def listening_address(interface: str | None) -> str:
    """Returns the address to listen on for ranks of other hosts.

    Args:
        interface: the name of a network interface, one of its addresses (IPv4 or IPv6), or None: loopback.

    Raises:
        UsageError: LK1010, there is no such interface or address.
    """
    if interface is None:
        return _LOOPBACK
    with suppress(ValueError):
        address = ipaddress.ip_address(interface)
        if address.is_unspecified:
            raise usage(f"{interface} means every interface; name one", hint="such as interface='eth0'")
        return str(address)
    found = _ipv4_of(interface) or _ipv6_of(interface)
    if found is None:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise usage(f"there is no network interface {interface!r} with an address; this host has {names}")
    return found


def address_towards(host: str, port: int) -> str | None:
    """Returns the address of this host that packets to ``host`` leave from, or None. Sends nothing."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return None


def is_loopback(address: str) -> bool:
    """Tells whether an address reaches this host only."""
    return ipaddress.ip_address(address).is_loopback


def family_of(address: str) -> socket.AddressFamily:
    """Returns AF_INET or AF_INET6."""
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET


def _ipv4_of(interface: str) -> str | None:
    request = struct.pack("256s", os.fsencode(interface)[:15])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def _ipv6_of(interface: str) -> str | None:
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, name = line.split()
            # Link-local addresses mean nothing without the reader's own interface number.
            if name == interface and scope != "20":
                return str(ipaddress.ip_address(bytes.fromhex(digits)))
    return None
