"""The process of another checkout: run as a script, with that checkout first on the path.

It keeps to names that all checkouts have; of lowerkit it imports nothing before it is run.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import struct
import sys
from typing import IO, Any

import numpy as np
import torch

_PLAIN_FINDERS: tuple[Any, ...] = (
    importlib.machinery.BuiltinImporter,
    importlib.machinery.FrozenImporter,
    importlib.machinery.PathFinder,
)
"""Those of an editable install would find this checkout, whatever the path says."""


def send(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Writes a message: its length and what ``torch.save`` makes of it."""
    file = io.BytesIO()
    torch.save(message, file)
    stream.write(struct.pack("<Q", file.tell()) + file.getvalue())
    stream.flush()


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """Returns the next message; None where the stream ends."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return torch.load(io.BytesIO(stream.read(struct.unpack("<Q", head)[0])), weights_only=False)


class _Lowered:
    """One op, lowered and ready to be interpreted."""

    def __init__(self, exported: bytes) -> None:
        from lowerkit.capture.capture import capture
        from lowerkit.compiler import CompileOptions, lower_program
        from lowerkit.parity.bisect import torch_ops

        self.program: Any = capture(torch.export.load(io.BytesIO(exported)))
        lower_program(self.program, "canonical", CompileOptions())
        interpreter: Any = sys.modules[torch_ops.Interpreter.__module__]  # where it stands is not the same everywhere
        self.module, functions = interpreter.executable_copy(self.program.module)
        self.function = functions["main"]
        self.interpreter: Any = torch_ops.MixedInterpreter(
            functions, self.program.weights.get, {}, float64=False, keep=False
        )

    def takes(self, inputs: list[torch.Tensor]) -> None:
        from lowerkit.runtimes.arguments import bind_dims

        bind_dims(self.program.signature, [_array(tensor) for tensor in inputs])

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = self.program.signature.outputs
        with self.module.context, np.errstate(all="ignore"):
            block = self.function.regions[0].blocks[0]
            given = [
                array.view(array.dtype.name.removeprefix("u")) if array.dtype.kind == "u" else array
                for array in map(_array, inputs)
            ]
            values = self.interpreter.run_block(block, given, {})
        return [_tensor(np.asarray(value), spec.dtype) for value, spec in zip(values, outputs, strict=False)]


def _array(tensor: torch.Tensor) -> Any:
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)


def _tensor(array: Any, dtype: str) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    wanted = f"uint{dtype[1:]}" if dtype[0] == "u" else array.dtype
    return torch.from_numpy(np.array(array).view(wanted))


def main() -> None:
    """Answers requests until the stream ends; a refusal is an answer."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder in _PLAIN_FINDERS]
    from lowerkit.errors import LowerkitError, RuntimeFault

    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print does not belong among the answers
    torch.set_num_threads(1)
    lowered: Any = None
    while (request := receive(requests)) is not None:
        answer: dict[str, Any] = {}
        try:
            if "exported" in request:
                lowered = _Lowered(request["exported"])
            elif "takes" in request:
                lowered.takes(request["takes"])
            else:
                answer["outputs"] = lowered.run(request["run"])
        except RuntimeFault as error:
            answer["shapes"] = str(error)
        except LowerkitError as error:
            answer["refused"] = str(error)
        except Exception as error:  # an old checkout raises what it likes
            answer["refused"] = f"{type(error).__name__}: {error}"
        send(answers, answer)


if __name__ == "__main__":
    main()
