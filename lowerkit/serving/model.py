"""A replica of a served model: what Ray Serve runs in an actor; nothing in it needs Ray.

Bytes of requests come in and bytes of responses go out, so that JSON is read and written by the replicas, of which
there can be many, and not by the gateway. Errors of requests are responses too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowerkit.errors import LowerkitError, RuntimeFault
from lowerkit.serving.batcher import Batcher
from lowerkit.serving.protocol.failures import Reply, RequestError, error_reply
from lowerkit.serving.protocol.requests import read_request
from lowerkit.serving.protocol.responses import check_outputs, inference_reply, json_reply, model_metadata
from lowerkit.serving.version import Loader, ModelVersion


class ModelReplica:
    """Serves one model. :meth:`reconfigure` gives it its artifact, and later the next version of it."""

    def __init__(self, name: str, most_rows: int, wait: float, threads: int, loader: Loader) -> None:
        """Makes a replica without an artifact.

        Args:
            name: of the model.
            most_rows: of a batch.
            wait: seconds that a request waits for others to run with.
            threads: of a run.
            loader: makes the session of an artifact.
        """
        self._name, self._threads, self._loader = name, threads, loader
        self._batcher = Batcher(most_rows, wait)
        self._version: ModelVersion | None = None

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Loads an artifact beside the one that is served, and takes its place when it is loaded.

        Requests that have come before are answered by the version that they came to.

        Args:
            config: ``path`` of the file and ``content_id`` of the artifact in it.

        Raises:
            LowerkitError: it cannot be loaded; the earlier version is still there.
        """
        loop = asyncio.get_running_loop()
        arguments = (Path(config["path"]), str(config["content_id"]), self._threads, self._loader)
        self._version = await loop.run_in_executor(None, lambda: ModelVersion.load(*arguments))

    async def infer(self, body: bytes, header_length: str | None, version: str | None = None) -> Reply:
        """Answers an inference request.

        Args:
            body: of the request.
            header_length: its ``Inference-Header-Content-Length``, or None.
            version: the version that the client asks for; None: the one that there is.
        """
        try:
            current = self._current(version)
            request = read_request(body, header_length)
            signature = current.session.program.signature
            check_outputs(signature, request)
            answer = await self._batcher.run(current, current.arrays(request.inputs))
            parameters = {"batch_rows": answer.batch_rows} if answer.batch_rows else {}
            return inference_reply(self._name, current.name, signature, request, answer.outputs, parameters)
        except LowerkitError as error:
            return error_reply(error)

    async def metadata(self, version: str | None = None) -> Reply:
        """Returns what the protocol tells of the model."""
        try:
            current = self._current(version)
        except LowerkitError as error:
            return error_reply(error)
        parameters: dict[str, Any] = {"content_id": current.session.manifest.content_id}
        if current.batch is None:
            parameters["batching"] = f"no: {current.obstacle}"
        else:
            parameters["batching"] = f"along {current.batch.dim}"
        return json_reply(model_metadata(self._name, current.name, current.session.program.signature, parameters))

    def _current(self, version: str | None) -> ModelVersion:
        current = self._version
        if current is None:
            raise RuntimeFault("LK8023", f"the model {self._name!r} has no artifact yet")
        if version not in (None, current.name):
            raise RequestError(
                f"the model {self._name!r} has no version {version!r:.80}, it has {current.name}", status=404
            )
        return current
