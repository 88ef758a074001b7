"""Errors as the protocol gives them: a status, and JSON with the diagnostic and its code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from lowerkit.errors import InputError, LowerkitError, ResourceError, UnsupportedError, UsageError

JSON = "application/json"
RETRY_AFTER = "Retry-After"

_OF_THE_REQUEST = ("LK8004", "LK8015")
_OF_THE_MOMENT = ("LK7005", "LK8023")


@dataclass(frozen=True)
class Reply:
    """A response over HTTP.

    Attributes:
        status: of HTTP.
        body: its bytes.
        headers: beside the length; the type of the body is among them.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": JSON})


class RequestError(InputError):
    """LK1012: a request is malformed, or names what this server has not.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, *, status: int = 400, hint: str | None = None) -> None:
        super().__init__("LK1012", message, hint=hint)
        self.status = status


def status_of(error: LowerkitError) -> int:
    """Returns the status of HTTP for an error: whether the request, the server or the moment is wrong."""
    if isinstance(error, RequestError):
        return error.status
    if error.code in _OF_THE_MOMENT or isinstance(error, ResourceError):
        return 503
    if error.code in _OF_THE_REQUEST or isinstance(error, UsageError):
        return 400
    return 501 if isinstance(error, UnsupportedError) else 500


def error_reply(error: LowerkitError, retry_after: float | None = None) -> Reply:
    """Returns the response for an error.

    Args:
        error: what happened.
        retry_after: seconds until the client may ask again; None: not said.
    """
    body = {"error": error.render(), "code": error.code}
    reply = Reply(status_of(error), msgspec.json.encode(body))
    if retry_after is not None:
        reply.headers[RETRY_AFTER] = str(max(1, math.ceil(retry_after)))
    return reply
