"""``deployment("model.lk")``: an application of Ray Serve that serves an artifact by the Open Inference Protocol.

::

    from ray import serve
    serve.run(lowerkit.serving.deployment("model.lk"), name="model")     # again, with a new file: a rolling update

Two deployments: ``Gateway`` takes HTTP, ``Model`` runs the artifact in replicas. The configuration of ``Model`` names
the artifact by its content id, so Serve updates its replicas when the file is another one, some at a time.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.runtimes.artifact_reader import damaged, open_artifact
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.serving.gateway import Gateway
from lowerkit.serving.model import ModelReplica
from lowerkit.serving.version import Loader, batch_or_reason, load_session

MOST_BYTES = 64 << 20
"""Bytes of a request's body, unless a deployment says otherwise."""


def deployment(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    replicas: int = 1,
    threads: int = 1,
    max_batch: int | None = None,
    batch_wait: float = 0.002,
    max_queued: int = 256,
    max_bytes: int = MOST_BYTES,
    gateways: int = 1,
    max_surge_percent: int = 0,
    loader: Loader = load_session,
) -> Any:
    """Returns an application for ``serve.run``.

    Args:
        path: of the artifact, the same on every node. It is read here, all of it, before anything is deployed.
        name: of the model in URLs; None: that of the file without its ending.
        replicas: processes that run the model.
        threads: of each replica; Serve reserves as many CPUs for it.
        max_batch: the most rows that run together; None: 32, or 1 for a model without a symbolic batch.
        batch_wait: seconds that a request waits for others to run with.
        max_queued: requests that may wait until a replica takes them; beyond, clients get status 503 (LK7005). A
            replica takes as many as fill two batches: one that runs, and one that gathers.
        max_bytes: of the body of a request.
        gateways: processes that take requests of HTTP.
        max_surge_percent: how many more replicas an update may start before it stops old ones, of ``replicas``. At 0
            those that are left serve meanwhile, and with one replica requests wait until it is there again. Beyond,
            the cluster must have CPUs for them: the update waits until it has.
        loader: makes the session of an artifact; for comparisons with other runtimes.

    Raises:
        UsageError: LK1007, there is no Ray; LK1009, a number is out of range.
        UnsupportedError: LK4008, the model has states or a mesh, or ``max_batch`` is given and it has no batch.
        ArtifactError: LK1001, LK1002, LK8001, LK8002, as ``lowerkit.load``.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise UsageError("LK1007", f"serving needs Ray Serve: {error}", hint="pip install 'lowerkit[ray]'") from error
    file = Path(path).absolute()
    for label, number in (("replicas", replicas), ("threads", threads), ("max_batch", max_batch),
                          ("max_queued", max_queued), ("gateways", gateways), ("max_bytes", max_bytes)):  # fmt: skip
        if number is not None and number < 1:
            raise UsageError("LK1009", f"{label} is {number}, expected 1 or more")
    if not 0 <= batch_wait <= 60:
        raise UsageError("LK1009", f"batch_wait is {batch_wait}, expected 0 to 60 seconds")
    content_id, obstacle = _looked_at(file)
    if obstacle and max_batch is not None:
        raise UnsupportedError("LK4008", f"max_batch is {max_batch}, and {file.name} has no batch", details=[obstacle])
    model_name = file.stem if name is None else name
    most_rows = 1 if obstacle else max_batch or 32
    wrap: Any = serve.deployment
    model = wrap(ModelReplica, name="Model").options(
        num_replicas=replicas,
        max_ongoing_requests=max(2 * most_rows, 4),
        max_queued_requests=max_queued,
        user_config={"path": str(file), "content_id": content_id},
        ray_actor_options={"num_cpus": threads},
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=30.0,
        max_surge_percent=max_surge_percent,
    )
    gateway = wrap(Gateway, name="Gateway").options(
        num_replicas=gateways,
        # A gateway only waits: what waits is limited where it waits, at the handle of the model.
        max_ongoing_requests=max_queued + replicas * max(2 * most_rows, 4) + 1024,
        ray_actor_options={"num_cpus": 0},
        max_surge_percent=100,
    )
    bound = model.bind(model_name, most_rows, batch_wait, threads, loader)
    return gateway.bind(bound, model_name, _version(), max_bytes, max_queued)


def _looked_at(path: Path) -> tuple[str, str]:
    """Reads an artifact whole; returns its content id, and why its requests run one by one, or an empty text."""
    artifact = open_artifact(path)
    try:
        if mismatches := artifact.hash_mismatches():
            raise damaged(path, "entries differ from the manifest", mismatches)
        program = choose_program(artifact.manifest)
        return artifact.manifest.content_id, batch_or_reason(program)[1]
    finally:
        artifact.close()


def _version() -> str:
    try:
        return version("lowerkit")
    except PackageNotFoundError:
        return "unknown"
