"""The code of the host that an artifact holds: mapped, compared with its hash, linked."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from lowerkit.errors import LowerkitError, ResourceError
from lowerkit.runtimes import _native
from lowerkit.runtimes.artifact_reader import Artifact, damaged
from lowerkit.runtimes.manifest import HOST, ProgramSpec


def load_code(artifact: Artifact, program: ProgramSpec) -> _native.CodeImage | None:
    """Returns the code of ``program``, ready to run; None where it has none for the host.

    Raises:
        ArtifactError: LK8001, the bytes that would run are not those that were written.
        ResourceError: LK7002, out of memory.
    """
    path, file = artifact.path, artifact.file.fileno()
    if HOST not in program.code:
        return None
    entry = artifact.entries[program.code[HOST]]
    try:
        image = _native.CodeImage(file, entry.offset, entry.size)
        if hashlib.sha256(image.bytes().data).hexdigest() != artifact.manifest.entries[entry.name].sha256:
            raise damaged(path, f"the sha-256 of {entry.name} differs from the manifest")
        image.link(file, program.imports, program.import_table_offset)
        for kernel in program.kernels:
            if kernel.device == HOST:
                image.entry(kernel.offset)
    except (ValueError, IndexError, RuntimeError) as error:
        raise damaged(path, str(error)) from None
    except OSError as error:
        raise _code_fault(path, error) from error
    return image


def _code_fault(path: Path, error: OSError) -> LowerkitError:
    if error.errno == errno.ENOMEM:
        return ResourceError("LK7002", f"no memory for the code of {path}")
    return damaged(path, f"its code cannot be made executable: {error}")
