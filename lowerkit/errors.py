"""The error tree. Each error carries a code, the op, the user's file and line, and the way out.

The first digit of a code says whose turn it is: 1 usage and input files, 2 capture, 3 passes and verification,
4 unsupported, 5 code generation and internal, 6 parity, 7 resources, 8 artifact, runtime and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

CODES: dict[str, str] = {
    "LK1001": "the input file does not exist or cannot be read",
    "LK1002": "the input file is empty, cut, or of a foreign format",
    "LK1003": "a required --input is missing, unknown, or does not match the model",
    "LK1004": "an --input specification cannot be parsed",
    "LK1005": "the output path cannot be written",
    "LK1006": "the output path is the input path",
    "LK1007": "the installation is not complete, or has a version that is not supported",
    "LK1008": "there is no such peer",
    "LK1009": "an option has a value out of its range",
    "LK1010": "a collective operation or a group was asked for wrongly",
    "LK1011": "the mesh or the plan of a sharding is wrong",
    "LK1012": "a request to a server is malformed, or not for it",
    "LK2001": "the model could not be captured",
    "LK2002": "the file holds code or pickled objects that are not loaded for safety",
    "LK2003": "the ONNX model is invalid",
    "LK3001": "a pass failed",
    "LK3002": "the IR does not verify",
    "LK3003": "a pass pipeline cannot be parsed",
    "LK3004": "the precondition of a pass does not hold",
    "LK3005": "an op may not stand in the IR of its stage",
    "LK3006": "what the ranks of a mesh compute cannot be proved to be what one device computes",
    "LK3007": "the stages of a pipeline wait for each other",
    "LK4001": "the model uses ops that are not supported",
    "LK4002": "a shape depends on data, which is not supported",
    "LK4003": "the target or the level asked for is unknown",
    "LK4004": "a peer cannot run the model",
    "LK4005": "the artifact cannot be emitted as C",
    "LK4006": "a target takes less of the model than was asked for",
    "LK4007": "an op cannot be split among ranks as the plan says",
    "LK4008": "the batch of a model can be neither cut into parts nor put together",
    "LK5001": "a kernel could not be compiled",
    "LK5002": "an invariant of lowerkit does not hold",
    "LK5003": "a target from another package failed",
    "LK6001": "the outputs differ from the reference by more than the budget",
    "LK6002": "the quantized model differs from the float model by more than gate B allows",
    "LK6003": "ranks of a mesh give different outputs",
    "LK6004": "the certificate of an artifact does not hold",
    "LK6005": "an op or a kernel, run alone, differs from its witness",
    "LK7001": "out of disk space",
    "LK7002": "out of memory",
    "LK7003": "a worker process could not be started",
    "LK7004": "shared memory or descriptors ran out",
    "LK7005": "more requests wait than a server takes",
    "LK7006": "the model does not fit in the memory of the devices",
    "LK8001": "the artifact is damaged",
    "LK8002": "the artifact has a format that this runtime does not read",
    "LK8003": "the machine lacks a CPU feature that the artifact needs",
    "LK8004": "an argument of run() does not match the signature",
    "LK8005": "the artifact was compiled for another target",
    "LK8006": "the golden inputs or outputs of the artifact are missing",
    "LK8007": "a group of ranks could not be formed",
    "LK8008": "a rank did not arrive in time",
    "LK8009": "a rank was lost",
    "LK8010": "ranks called different operations",
    "LK8011": "a group was aborted",
    "LK8012": "a rank has another job token, or speaks another protocol",
    "LK8014": "a loop of the model does not end",
    "LK8015": "an index is out of range",
    "LK8016": "a device failed",
    "LK8017": "a kernel on a simulated device did what no device allows",
    "LK8018": "the simulated device does not know an instruction",
    "LK8020": "this machine has no CUDA device that can run the artifact",
    "LK8021": "the ranks that there are do not fit the mesh of the program",
    "LK8022": "ranks of a mesh start with different artifacts, programs or sizes",
    "LK8023": "no replica of a model answers",
    "LK8024": "a replica has another artifact than its deployment",
}


class LowerkitError(Exception):
    """Base of every error that a user can meet.

    Attributes:
        code: ``LK`` and four digits, a key of :data:`CODES`.
        message: one sentence with both sides of the mismatch.
        op: the op concerned, such as ``aten.foo.default (f32, 1x3x4)``.
        location: the user's ``file:line``.
        details: further problems of the same kind, one line each: all of them rather than the first.
        hint: the way out.
    """

    exit_code: ClassVar[int] = 5

    def __init__(
        self,
        code: str,
        message: str,
        *,
        op: str | None = None,
        location: str | None = None,
        details: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        assert code in CODES, f"{code} is not in the table of codes"
        self.code = code
        self.message = message
        self.op = op
        self.location = location
        self.details = tuple(details)
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """Returns the diagnostic as plain text, without colour."""
        lines = [f"error[{self.code}]: {self.message}"]
        if self.op:
            lines.append(f"  op: {self.op}")
        if self.location:
            lines.append(f"  at: {self.location}")
        lines.extend(f"  - {detail}" for detail in self.details)
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class UsageError(LowerkitError):
    """The command or call itself is wrong."""

    exit_code = 2


class InputError(LowerkitError):
    """A file or value handed in is missing, damaged or does not fit."""

    exit_code = 3


class CaptureError(LowerkitError):
    """The model could not be captured."""

    exit_code = 3


class UnsupportedError(LowerkitError):
    """The model is fine, lowerkit cannot compile it."""

    exit_code = 4


class PassError(LowerkitError):
    """A pass failed or was used where its precondition does not hold."""


class VerifyError(LowerkitError):
    """The IR does not verify."""


class CodegenError(LowerkitError):
    """Code generation failed."""


class ParityError(LowerkitError):
    """Outputs differ from the reference by more than the budget."""

    exit_code = 6


class ResourceError(LowerkitError):
    """Disk, memory or time ran out."""

    exit_code = 7


class RuntimeFault(LowerkitError):
    """An artifact cannot be loaded or run on this machine."""

    exit_code = 8


class ArtifactError(InputError):
    """An artifact is damaged or of another version."""
