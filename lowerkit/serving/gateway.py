"""The way in: routes of the protocol, requests that are given to another replica when theirs dies, and the limit.

A request of inference changes nothing (models with states are not served), so it can be asked again. The gateway does
so when a replica dies with it; a client sees an error only if replicas die faster than they are replaced.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from lowerkit.errors import LowerkitError, ResourceError, RuntimeFault
from lowerkit.serving.protocol.failures import Reply, RequestError, error_reply
from lowerkit.serving.protocol.requests import LENGTH_HEADER
from lowerkit.serving.protocol.responses import EXTENSIONS, json_reply

RETRY_SECONDS = 1.0
"""When a client that was sent away may come again."""

_ATTEMPTS = 4
_PROBE_SECONDS = 5.0
_MODEL = re.compile(r"/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?:/(?P<verb>infer|ready))?/?")


class Gateway:
    """Speaks the Open Inference Protocol for one model: the deployment that Ray Serve gives HTTP requests to."""

    def __init__(self, replicas: Any, name: str, version: str, most_bytes: int, most_waiting: int) -> None:
        """Makes the gateway of a model.

        Args:
            replicas: the handle of the deployment of :class:`~lowerkit.serving.model.ModelReplica`.
            name: of the model.
            version: of lowerkit.
            most_bytes: of the body of a request.
            most_waiting: requests that may wait for a replica, for messages; the handle counts them.
        """
        self._replicas, self._name, self._version = replicas, name, version
        self._most_bytes, self._most_waiting = most_bytes, most_waiting

    async def __call__(self, request: Any) -> Any:
        """Answers one request of HTTP, a starlette Request, with a starlette Response."""
        from starlette.responses import Response

        prefix = request.scope.get("root_path", "").rstrip("/")
        path = request.url.path.removeprefix(prefix)
        reply = await self.answer(request.method, path, dict(request.headers), request.body)
        body = b"" if request.method == "HEAD" else reply.body
        return Response(body, reply.status, reply.headers)

    async def answer(
        self, method: str, path: str, headers: dict[str, str], read_body: Callable[[], Awaitable[bytes]]
    ) -> Reply:
        """Answers one request.

        Args:
            method, path: of HTTP; the path is that within the application.
            headers: with names in lower case.
            read_body: reads the body.
        """
        try:
            return await self._routed(method, path, headers, read_body)
        except LowerkitError as error:
            return error_reply(error, RETRY_SECONDS if error.code in ("LK7005", "LK8023") else None)

    async def _routed(
        self, method: str, path: str, headers: dict[str, str], read_body: Callable[[], Awaitable[bytes]]
    ) -> Reply:
        found = _MODEL.fullmatch(path)
        verb = None if found is None else found["verb"]
        wanted = "POST" if verb == "infer" else "GET"
        if method != wanted and not (method == "HEAD" and wanted == "GET"):
            raise RequestError(f"{path:.120} takes {wanted}, not {method:.20}", status=405)
        match path.rstrip("/"):
            case "/v2":
                return json_reply({"name": "lowerkit", "version": self._version, "extensions": list(EXTENSIONS)})
            case "/v2/health/live":
                return json_reply({"live": True})
            case "/v2/health/ready":
                ready = await self._is_ready(None)
                return json_reply({"ready": ready}, 200 if ready else 400)
            case _:
                pass
        if found is None:
            raise RequestError(
                f"there is no {path:.120}; the routes are those of the protocol, from /v2 on", status=404
            )
        if found["name"] != self._name:
            raise RequestError(f"there is no model {found['name']!r:.120}, it is {self._name!r}", status=404)
        if verb == "ready":
            ready = await self._is_ready(found["version"])
            return json_reply({"name": self._name, "ready": ready}, 200 if ready else 400)
        if verb is None:
            return await self._asked("metadata", found["version"])
        body = await self._body(headers, read_body)
        return await self._asked("infer", body, headers.get(LENGTH_HEADER.lower()), found["version"])

    async def _body(self, headers: dict[str, str], read_body: Callable[[], Awaitable[bytes]]) -> bytes:
        declared = headers.get("content-length", "")
        length = int(declared) if declared.isascii() and declared.isdigit() else 0
        body = b"" if length > self._most_bytes else await read_body()
        if max(length, len(body)) > self._most_bytes:
            raise RequestError(
                f"the request has {max(length, len(body))} bytes, the server takes {self._most_bytes}", status=413
            )
        return body

    async def _is_ready(self, version: str | None) -> bool:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return (await self._asked("metadata", version)).status == 200
        except (TimeoutError, LowerkitError):
            return False

    async def _asked(self, method: str, *arguments: Any) -> Reply:
        """Asks a replica, and another one when it dies.

        Raises:
            ResourceError: LK7005, as many requests wait as may.
            RuntimeFault: LK8023, replicas died again and again, or there are none.
        """
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        for _ in range(_ATTEMPTS):
            try:
                return await getattr(self._replicas, method).remote(*arguments)
            except BackPressureError:
                raise ResourceError(
                    "LK7005",
                    f"{self._most_waiting} requests wait for the model {self._name!r}, and no more may",
                    hint=f"ask again in {RETRY_SECONDS:g} s; more replicas serve more requests at a time",
                ) from None
            except (ActorDiedError, ActorUnavailableError, RayActorError):
                continue  # it changed nothing
            except DeploymentUnavailableError:
                break
        raise RuntimeFault(
            "LK8023",
            f"no replica of the model {self._name!r} answers",
            hint="`serve status` tells what became of them",
        )
