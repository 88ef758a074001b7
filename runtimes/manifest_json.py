"""Manifests as bytes: canonical JSON, and the content id that guards it."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from lowerkit.runtimes.manifest import Manifest


class FormatVersion(msgspec.Struct, frozen=True):
    """The part of a manifest that every reader of every version can decode."""

    format_major: int
    format_minor: int = 0
    features: list[str] = []
    producer: dict[str, str] = {}


_ENCODER = msgspec.json.Encoder(order="sorted")


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the canonical bytes: sorted keys, no spaces, UTF-8, and the content id filled in."""
    return _ENCODER.encode(replace(manifest, content_id=compute_content_id(manifest)))


def compute_content_id(manifest: Manifest) -> str:
    """Returns the sha-256 of the canonical manifest with an empty ``content_id``."""
    return hashlib.sha256(_ENCODER.encode(replace(manifest, content_id=""))).hexdigest()


def stored_content_id_holds(data: bytes, content_id: str) -> bool:
    """Tells whether the bytes of a manifest have the ``content_id`` they state.

    Works on the bytes, not on the struct, so that fields of a newer minor version count too.
    """
    field = b'"content_id":"' + content_id.encode() + b'"'
    if data.count(field) != 1:
        return False
    return hashlib.sha256(data.replace(field, b'"content_id":""')).hexdigest() == content_id


def decode_manifest(data: bytes | bytearray | memoryview) -> Manifest:
    """Decodes ``manifest.json``.

    Raises:
        msgspec.MsgspecError: where a field is missing, of another type, or holds a malformed expression.
    """
    return msgspec.json.decode(data, type=Manifest)


def decode_version(data: bytes | bytearray | memoryview) -> FormatVersion:
    """Decodes only what the version check needs, so that a newer manifest can still be refused by name."""
    return msgspec.json.decode(data, type=FormatVersion)
