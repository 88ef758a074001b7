"""Ops that another checkout of lowerkit lowers and interprets, in a process of its own.

Between the processes go files of ``torch.export`` and tensors, which both know; what differs between checkouts stays
inside (:mod:`other_checkout_worker`).
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.parity.witness.distinct_op import DistinctOp
from lowerkit.parity.witness.raised_alone import captured_alone
from lowerkit.program.dtypes import to_numpy, to_torch
from lowerkit.runtimes.manifest import Signature
from tests.support.truth_table.other_checkout_worker import receive, send


class OtherCheckout:
    """A process of another checkout, made again where it came down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def lower(self, op: DistinctOp, tensors: Sequence[torch.Tensor]) -> OtherOp:
        """Captures an op here, and lowers it there.

        Raises:
            LowerkitError: it cannot be captured, or is refused.
        """
        program = captured_alone(op, tensors)
        assert program.exported is not None
        file = io.BytesIO()
        torch.export.save(program.exported, file)
        self.ask({"exported": file.getvalue()})
        return OtherOp(self, program.signature)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request; LowerkitErrors there are raised here."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, request)
            answer = receive(process.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            process.kill()
            process.wait()
            self.process = None
            answer = {"refused": "it brought the process down"}
        if "shapes" in answer:
            raise RuntimeFault("LK8004", answer["shapes"])
        if "refused" in answer:
            raise UnsupportedError("LK2003", answer["refused"])
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            worker = Path(__file__).with_name("other_checkout_worker.py")
            search = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
            self.process = subprocess.Popen(
                [sys.executable, str(worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": search},
            )
        return self.process


class OtherOp:
    """An op lowered there; the one that the process lowered last."""

    def __init__(self, checkout: OtherCheckout, signature: Signature) -> None:
        self.checkout = checkout
        self.signature = signature

    def takes(self, inputs: Sequence[Array]) -> None:
        """Raises RuntimeFault where the inputs do not fit the signature there."""
        self.checkout.ask({"takes": [to_torch(array) for array in inputs]})

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns what the lowered op computes."""
        answer = self.checkout.ask({"run": [to_torch(array) for array in inputs]})
        return [to_numpy(tensor) for tensor in answer["outputs"]]
