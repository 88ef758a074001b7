"""broadcast, scatter, gather, all_gather and all_to_all, in all their spellings."""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from lowerkit.distributed.arguments import Tensors, as_list, nanoseconds
from lowerkit.distributed.copy_back import Pending
from lowerkit.distributed.dtypes import moved
from lowerkit.distributed.submission import ProcessGroupBase
from lowerkit.runtimes.collective.calls import Operation

_BROADCAST = int(Operation.BROADCAST)
_SCATTER = int(Operation.SCATTER)
_GATHER = int(Operation.GATHER)
_ALL_GATHER = int(Operation.ALL_GATHER)
_ALL_TO_ALL = int(Operation.ALL_TO_ALL)


def _options(kind: type[Any], given: Any, root: int | None, timeout: Any) -> Any:
    """Returns options, from those given or from the arguments of the short spellings."""
    if type(given) is kind:
        return given
    options = kind()
    if root is None and isinstance(given, int):
        root = given
    if root is not None:
        options.rootRank = root
    if timeout is not None:
        options.timeout = timeout
    return options


def _addresses(parts: Sequence[torch.Tensor], width: int) -> list[tuple[int, int]]:
    return [(part.data_ptr(), part.numel() * width) for part in parts]


class Movements(ProcessGroupBase):
    """The operations that move values."""

    def broadcast(self, tensors: Any, opts: Any = None, *, root: int | None = None, timeout: Any = None) -> Any:
        """Copies the root's tensor into those of all ranks."""
        options = _options(dist.BroadcastOptions, opts, root, timeout)
        tensor = self.only(tensors, "broadcast")
        if not options.asyncOp and self.at_once(_BROADCAST, tensor, tensor, options.timeout, root=options.rootRank):
            return self._finished
        if (engine := self.other_engine(tensor)) is not None:
            return engine.broadcast([tensor], options)
        pending: Pending = []
        values = self.read(tensor) if options.rootRank == self._rank else self.write(tensor, pending)
        dtype, width = moved(tensor.dtype)
        return self.issue(
            (
                _BROADCAST, dtype, values.numel() * width, 0, values.data_ptr(), 0, options.rootRank, 1.0, 0,
                nanoseconds(options.timeout), tensor.shape,
            ),
            options.asyncOp, [tensor], values, pending,
        )  # fmt: skip

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, *, root: int | None = None, timeout: Any = None
    ) -> Any:
        """Copies part r of the root into the output of rank r."""
        options = _options(dist.ScatterOptions, opts, root, timeout)
        output = self.only(output_tensors, "scatter")
        parts: Tensors = []
        if options.rootRank == self._rank:
            parts = input_tensors if isinstance(input_tensors[0], torch.Tensor) else self.only(input_tensors, "scatter")
        if not options.asyncOp and self.at_once(
            _SCATTER, output, list(parts) or None, options.timeout, root=options.rootRank
        ):
            return self._finished
        if (engine := self.other_engine(output)) is not None:
            return engine.scatter([output], [parts] if parts else [], options)
        self._same_dtype("scatter", output, parts)
        pending: Pending = []
        values = self.write(output, pending)
        parts = [self.read(part) for part in parts]
        dtype, width = moved(output.dtype)
        return self.issue_parts(
            (
                _SCATTER, dtype, values.numel() * width, 0, values.data_ptr(), (), _addresses(parts, width), 0,
                options.rootRank, 1.0, nanoseconds(options.timeout), output.shape,
            ),
            options.asyncOp, [output], (values, parts), pending,
        )  # fmt: skip

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, *, root: int | None = None, timeout: Any = None
    ) -> Any:
        """Copies every rank's tensor into the outputs of the root, by rank."""
        options = _options(dist.GatherOptions, opts, root, timeout)
        tensor = self.only(input_tensors, "gather")
        outputs: Tensors = []
        if options.rootRank == self._rank:
            outputs = (
                output_tensors if isinstance(output_tensors[0], torch.Tensor) else self.only(output_tensors, "gather")
            )
        if not options.asyncOp and self.at_once(
            _GATHER, list(outputs) or None, tensor, options.timeout, root=options.rootRank
        ):
            return self._finished
        if (engine := self.other_engine(tensor)) is not None:
            return engine.gather([outputs] if outputs else [], [tensor], options)
        self._same_dtype("gather", tensor, outputs)
        pending: Pending = []
        values = self.read(tensor)
        targets = [self.write(output, pending) for output in outputs]
        dtype, width = moved(tensor.dtype)
        return self.issue_parts(
            (
                _GATHER, dtype, values.numel() * width, values.data_ptr(), 0, (), _addresses(targets, width), 0,
                options.rootRank, 1.0, nanoseconds(options.timeout), tensor.shape,
            ),
            options.asyncOp, outputs, (values, targets), pending,
        )  # fmt: skip

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *, timeout: Any = None) -> Any:
        """Copies every rank's tensor into the outputs of all ranks, by rank."""
        options = _options(AllgatherOptions, opts, None, timeout)
        tensor = self.only(input_tensors, "all_gather")
        outputs = (
            output_tensors if isinstance(output_tensors[0], torch.Tensor) else self.only(output_tensors, "all_gather")
        )
        if not options.asyncOp and self.at_once(_ALL_GATHER, list(outputs), tensor, options.timeout):
            return self._finished
        if (engine := self.other_engine(tensor)) is not None:
            return engine.allgather([outputs], [tensor], options)
        self._same_dtype("all_gather", tensor, outputs)
        pending: Pending = []
        targets = [self.write(output, pending) for output in outputs]
        return self._all_gather(tensor, targets, list(outputs), options, pending)

    def all_gather_single(self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None) -> Any:
        """The same with the outputs one after another in one tensor."""
        options = _options(AllgatherOptions, opts, None, None)
        if not options.asyncOp and self.at_once(_ALL_GATHER, output, input_tensor, options.timeout):
            return self._finished
        if (engine := self.other_engine(input_tensor)) is not None:
            return engine._allgather_base(output, input_tensor, options)
        self._same_dtype("all_gather", input_tensor, [output])
        if output.numel() != input_tensor.numel() * self._size:
            raise self.refusal(
                f"all_gather of {tuple(input_tensor.shape)} into {tuple(output.shape)} over {self._size} ranks"
            )
        pending: Pending = []
        target = self.write(output, pending)
        parts = list(target.detach().view(-1).chunk(self._size)) if target.numel() else [target] * self._size
        return self._all_gather(input_tensor, parts, [output], options, pending)

    def _allgather_base(self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.all_gather_single(output, input_tensor, opts)

    def allgather_coalesced(self, output_lists: Any, inputs: Tensors, opts: Any = None) -> Any:
        """Several all_gathers; ``output_lists[r]`` holds what comes from rank r."""
        options = _options(AllgatherOptions, opts, None, None)
        if len(output_lists) != self._size or any(len(one) != len(inputs) for one in output_lists):
            raise self.refusal(
                f"all_gather_coalesced of {len(inputs)} tensors needs as many from each of {self._size} ranks"
            )
        works = [
            self.allgather([[one[index] for one in output_lists]], [tensor], options)
            for index, tensor in enumerate(inputs)
        ]
        return self.together(works)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several of :meth:`all_gather_single`."""
        options = _options(AllgatherOptions, opts, None, None)
        return self.together([self.all_gather_single(o, i, options) for o, i in zip(outputs, inputs, strict=True)])

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The older name."""
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, *, timeout: Any = None
    ) -> Any:
        """Copies input s of rank r into output r of rank s."""
        options = _options(dist.AllToAllOptions, opts, None, timeout)
        inputs, outputs = as_list(input_tensors), as_list(output_tensors)
        if len(inputs) != self._size or len(outputs) != self._size:
            raise self.refusal(f"all_to_all of {len(inputs)} into {len(outputs)} tensors over {self._size} ranks")
        if not options.asyncOp and self.at_once(_ALL_TO_ALL, outputs, inputs, options.timeout):
            return self._finished
        if (engine := self.other_engine(inputs[0])) is not None:
            return engine.alltoall(outputs, inputs, options)
        self._same_dtype("all_to_all", inputs[0], [*inputs, *outputs])
        pending: Pending = []
        targets = [self.write(output, pending) for output in outputs]
        return self._all_to_all([self.read(one) for one in inputs], targets, outputs, options, pending)

    def all_to_all_single(
        self, output: torch.Tensor, input_tensor: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        """The same with the parts one after another along the first dimension; no sizes: equal ones."""
        options = _options(dist.AllToAllOptions, opts, None, None)
        if not (options.asyncOp or output_sizes or input_sizes) and self.at_once(
            _ALL_TO_ALL, output, input_tensor, options.timeout
        ):
            return self._finished
        if (engine := self.other_engine(input_tensor)) is not None:
            return engine.alltoall_base(output, input_tensor, output_sizes, input_sizes, options)
        self._same_dtype("all_to_all", input_tensor, [output])
        pending: Pending = []
        values, target = self.read(input_tensor), self.write(output, pending)
        return self._all_to_all(
            self._pieces(values, input_sizes, "input"), self._pieces(target.detach(), output_sizes, "output"), [output],
            options, pending,
        )  # fmt: skip

    def alltoall_base(
        self, output: torch.Tensor, input_tensor: torch.Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Any:
        """The older name."""
        return self.all_to_all_single(output, input_tensor, output_sizes, input_sizes, opts)

    def _pieces(self, tensor: torch.Tensor, sizes: Sequence[int], what: str) -> Tensors:
        rows = tensor.shape[0] if tensor.dim() else 1
        if sizes and (len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0):
            raise self.refusal(f"the {what} sizes {list(sizes)} are not {self._size} parts of {rows} rows")
        if not sizes and rows % self._size:
            raise self.refusal(f"the {what}'s {rows} rows do not divide into {self._size} equal parts")
        sizes = list(sizes) or [rows // self._size] * self._size
        flat = tensor.view(-1)
        width = flat.numel() // rows if rows else 0
        ends = list(accumulate(sizes))
        return [flat[(end - size) * width : end * width] for size, end in zip(sizes, ends, strict=True)]

    def _all_gather(
        self, tensor: torch.Tensor, targets: Tensors, result: Tensors, options: Any, pending: Pending
    ) -> Any:
        values = self.read(tensor)
        dtype, width = moved(tensor.dtype)
        return self.issue_parts(
            (
                _ALL_GATHER, dtype, values.numel() * width, values.data_ptr(), 0, (), _addresses(targets, width), 0, 0,
                1.0, nanoseconds(options.timeout),
            ),
            options.asyncOp, result, (values, targets), pending,
        )  # fmt: skip

    def _all_to_all(self, inputs: Tensors, targets: Tensors, result: Tensors, options: Any, pending: Pending) -> Any:
        dtype, width = moved(inputs[0].dtype)
        return self.issue_parts(
            (
                _ALL_TO_ALL, dtype, 0, 0, 0, _addresses(inputs, width), _addresses(targets, width), 0, 0, 1.0,
                nanoseconds(options.timeout),
            ),
            options.asyncOp, result, (inputs, targets), pending,
        )  # fmt: skip

    def _same_dtype(self, operation: str, tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
        if any(other.dtype != tensor.dtype for other in others):
            raise self.refusal(f"{operation} of {tensor.dtype} with {sorted({str(other.dtype) for other in others})}")
