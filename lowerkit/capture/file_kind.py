"""What a model file is.

The content decides, not the extension: a zip is looked into, a pickle is recognised (and never loaded), the rest is
tried as ONNX.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Literal

from lowerkit.capture.archives import CHECKPOINT_HINT, read_archive, require_harmless_exported
from lowerkit.capture.torchscript.storage_checks import require_whole_storages
from lowerkit.errors import CaptureError, InputError
from lowerkit.program.files import check_file, read_start

FileKind = Literal["exported", "torchscript", "onnx"]

_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_FOREIGN = {
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a native program",
    b"GGUF": "a GGUF file",
    b"\x1f\x8b": "a gzip file",
    b"\x89PNG": "a picture",
    b"\x93NUM": "a numpy array",
    b"%PDF": "a PDF",
    b"#!": "a script",
}
_KNOWN = ".pt2 (torch.export), .pt (TorchScript), .onnx, path/to/file.py:factory and package.module:factory"
_TFLITE = b"TFL3"
"""Stands behind the first four bytes of a TensorFlow Lite model."""


def file_kind(path: Path) -> FileKind:
    """Tells what a file is, by its content.

    Raises:
        InputError: LK1001, LK1002: it cannot be read or is of a format that is not captured.
        CaptureError: LK2002, it is a pickle.
    """
    size = check_file(path)
    if path.suffix == ".py":
        raise InputError(
            "LK1002",
            f"{path} is a Python file, and does not say which function makes the model",
            hint=_functions_of(path),
        )
    start = read_start(path, 512)
    if start.startswith(b"PK\x03\x04"):
        archive = read_archive(path)
        if archive.kind == "checkpoint":
            raise _checkpoint(path)
        if archive.kind == "foreign":
            raise _foreign(
                path,
                "a zip that torch did not write" if "manifest.json" not in archive.entries else "a compiled artifact",
            )
        if archive.kind == "exported":
            require_harmless_exported(path, archive)
        if archive.kind == "torchscript":
            require_whole_storages(path, archive)
        return archive.kind
    if start.startswith(_PICKLE_STARTS) or start[257:262] == b"ustar":
        raise _checkpoint(path)
    for magic, name in _FOREIGN.items():
        if start.startswith(magic):
            raise _foreign(path, name)
    if start[4:8] == _TFLITE:
        raise _foreign(path, "a TensorFlow Lite model")
    if start.startswith(b"{") and size > 1:
        raise _foreign(path, "JSON")
    if int.from_bytes(start[:8], "little") <= size - 8 and start[8:9] == b"{":
        raise _foreign(path, "a safetensors file: weights without a model")
    return "onnx"


def _functions_of(path: Path) -> str:
    """Returns which functions of a Python file may be factories: those without parameters. The file is not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return f"name a function that returns (module, example_inputs), such as {path}:make_model"
    found = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if len(node.args.posonlyargs + node.args.args) <= len(node.args.defaults) and None not in node.args.kw_defaults
    ]
    if not found:
        return f"write a function without parameters that returns (module, example_inputs), and name it: {path}:NAME"
    choices = ", ".join(f"{path}:{name}" for name in found[:12])
    return f"name the function that returns (module, example_inputs); those without parameters are {choices}"


def _checkpoint(path: Path) -> CaptureError:
    return CaptureError(
        "LK2002",
        f"{path} is a pickled checkpoint (torch.save); it is not loaded, because unpickling can run code",
        hint=CHECKPOINT_HINT,
    )


def _foreign(path: Path, what: str) -> InputError:
    return InputError(
        "LK1002", f"{path} is {what}, not a model in a format that lowerkit reads", hint=f"lowerkit reads {_KNOWN}"
    )
