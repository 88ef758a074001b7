"""The listener of a rank whose descriptors have run out waits for some, rather than to ask again and again."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time

from lowerkit.runtimes.collective.rendezvous.authentication import Credentials, introduce
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.listener import Listener
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE

SECONDS = 0.5


def starved(rank: int, size: int) -> float:
    del rank, size
    listener = Listener(0, 3, "127.0.0.1")
    credentials, meeting = Credentials(b"t" * 32, "world"), b"m" * 32
    listener.serve(credentials, meeting)
    streams = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (streams[1].fileno() + 16, most))
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    streams[0].connect("\0" + listener.unix_name)
    streams[1].connect((listener.address, listener.port))
    before = time.process_time()
    time.sleep(SECONDS)
    used = time.process_time() - before
    assert "Too many open files" in listener.problem and not listener.wait(0.0)
    for descriptor in taken:
        os.close(descriptor)
    for rank, stream in enumerate(streams, 1):
        introduce(credentials, meeting, rank, 0, stream, Deadline(PATIENCE))
    assert listener.wait(PATIENCE)
    for stream in (*listener.take().values(), *streams):
        stream.close()
    listener.close()
    return used


def test_a_listener_without_descriptors_waits_for_some() -> None:
    (used,) = run_processes(starved, 1)
    assert used < SECONDS / 2
