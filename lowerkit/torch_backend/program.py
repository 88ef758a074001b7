"""A segment, compiled: torch tensors in and out, parameters packed."""

from __future__ import annotations

import atexit
import logging
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.compiler import compile_program
from lowerkit.runtimes.session import Session, load
from lowerkit.torch_backend.segment import Segment
from lowerkit.torch_backend.segment_export import export_segment
from lowerkit.torch_backend.settings import Settings
from lowerkit.torch_backend.sizes import expression_of

logger = logging.getLogger("lowerkit.torch_backend")


class SegmentRunner:
    """Runs one segment by a session of lowerkit.

    Attributes:
        live: the inputs that a call gives, in order.
        nodes: what it computes.
    """

    def __init__(
        self, segment: Segment, frozen: Mapping[fx.Node, torch.Tensor], names: Mapping[str, str], settings: Settings
    ) -> None:
        exported = export_segment(segment, frozen, names)
        self.live = exported.live
        self.nodes = segment.nodes
        self._outputs = segment.outputs
        self._carriers = exported.carriers
        self._layouts = [_Layout(node.meta["val"]) for node in segment.outputs]
        program = capture_exported(exported.program, source="a graph of torch.compile")
        compiled = compile_program(program, settings.compile_options())
        for summary in compiled.offload:
            taken = logging.INFO if summary.ops or not summary.all_ops else logging.WARNING
            logger.log(taken, summary.render())
        # The session maps the file, which may be gone then; the IR is not needed any more.
        with tempfile.TemporaryDirectory(prefix="lowerkit-") as folder:
            path = Path(folder) / "model.lk"
            compiled.save(path)
            self.session: Session | None = load(path, threads=settings.threads, integrity="structure")
        _runners.add(self)

    def __call__(self, inputs: Sequence[torch.Tensor], evaluate: Callable[[Any], Any]) -> dict[fx.Node, torch.Tensor]:
        """Runs it once; returns the values that are read outside of it.

        Args:
            inputs: values of ``live``.
            evaluate: gives sizes their values.

        Raises:
            RuntimeFault: LK8004, the program does not hold for these sizes; as :meth:`Session.run` else.
            ResourceError: LK7002, out of memory.
        """
        carriers = [carrier.array(evaluate(carrier.expression)) for carrier in self._carriers]
        assert self.session is not None, "the interpreter has not ended"
        arrays = self.session.run(*inputs, *carriers)
        tensors = [layout.tensor(array, evaluate) for layout, array in zip(self._layouts, arrays, strict=True)]
        return dict(zip(self._outputs, tensors, strict=True))


_runners: weakref.WeakSet[SegmentRunner] = weakref.WeakSet()


def _release() -> None:
    """Gives sessions back while the interpreter is whole: TorchDynamo's caches would keep them beyond its end."""
    for runner in list(_runners):
        runner.session = None


atexit.register(_release)


class _Layout:
    """How an output lies in memory: as eager's does."""

    def __init__(self, value: torch.Tensor) -> None:
        self.is_bfloat16 = value.dtype == torch.bfloat16
        self.strides = None
        if not value.is_contiguous():
            self.strides = [expression_of(stride) for stride in value.stride()]

    def tensor(self, array: Any, evaluate: Callable[[Any], Any]) -> torch.Tensor:
        if self.is_bfloat16:
            bits = torch.from_numpy(array.view(np.int16))
            # Not a view of other bits, which autograd would keep from being changed in place.
            found = torch.empty(0, dtype=torch.bfloat16).set_(bits.untyped_storage(), 0, bits.shape, bits.stride())
        else:
            found = torch.from_numpy(array)
        if self.strides is None:
            return found
        strides = [evaluate(stride) for stride in self.strides]
        strided = torch.empty_strided(found.shape, strides, dtype=found.dtype)
        target = strided
        for axis, stride in enumerate(strides):
            if stride == 0 and found.shape[axis] > 1:  # all places are one
                target, found = target.narrow(axis, 0, 1), found.narrow(axis, 0, 1)
        target.copy_(found)
        return strided
