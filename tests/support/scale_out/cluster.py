"""A local Ray cluster for tests: on loopback, with little memory, and gone at the end to the last process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from tests.support.mesh.processes import await_end, running
from tests.support.ranks import PATIENCE

MARK = "PROCESS_OF_THE_TEST"
_OBJECT_STORE = 100 << 20
# What Ray and its processes are told; nothing of it may stay in this process.
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "OMP_NUM_THREADS": "1",
    # Serve kills a proxy that is not ready after 5 s; a busy machine may need longer.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PATIENCE),
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": str(PATIENCE),
}


@dataclass(frozen=True)
class Answer:
    """A response of HTTP; the names of its headers may be asked for in any case."""

    status: int
    headers: Message
    body: bytes

    @property
    def document(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs.

    Attributes:
        port: where Serve takes HTTP, on loopback.
        folder: marks the processes.
    """

    port: int
    folder: Path

    def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Sends a GET, or a POST with a body: bytes, or what becomes JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def replicas(self, application: str, deployment: str = "Model") -> list[int]:
        """Returns the processes of a deployment's replicas."""
        title = f"ray::ServeReplica:{application}:{deployment}"
        return [one for one in running(self.folder) if _title(one).startswith(title)]


def _title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode().rstrip("\0")
    except OSError:
        return ""


@contextmanager
def cluster(cpus: int) -> Generator[Cluster]:
    """Starts Ray and Serve; ends them, and checks that no process of theirs is left.

    Args:
        cpus: that Ray counts, which may be more than there are.
    """
    import ray
    from ray import serve
    from ray.serve._private import api

    # It gives up after a minute, and has no setting for that.
    api.HTTP_PROXY_TIMEOUT = PATIENCE  # pyright: ignore[reportPrivateImportUsage]
    folder = Path(tempfile.mkdtemp(prefix="lkray"))  # short: Ray's sockets lie in it
    told = {**_VARIABLES, MARK: str(folder)}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        ray.init(
            num_cpus=cpus, include_dashboard=False, object_store_memory=_OBJECT_STORE, log_to_driver=False,
            configure_logging=False, _temp_dir=str(folder), _node_ip_address="127.0.0.1",
        )  # fmt: skip
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield Cluster(port, folder)
    finally:
        try:
            if ray.is_initialized():
                serve.shutdown()
        finally:
            ray.shutdown()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    await_end(folder)
    shutil.rmtree(folder)
