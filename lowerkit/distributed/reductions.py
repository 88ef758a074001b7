"""all_reduce, reduce and reduce_scatter, in all their spellings."""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from lowerkit.distributed.issuing import Issuing, Pending, Tensors, as_list, nanoseconds, refused_call
from lowerkit.distributed.numbers import PREMULTIPLIED_SUM, REAL, REDUCTION_OF_HASH, factor_of, reduced
from lowerkit.distributed.sparse import sparse_all_reduce
from lowerkit.distributed.work import backend_error
from lowerkit.errors import UsageError
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.calls import Operation

_ALL_REDUCE = int(Operation.ALL_REDUCE)
_REDUCE = int(Operation.REDUCE)
_REDUCE_SCATTER = int(Operation.REDUCE_SCATTER)
_STRIDED = torch.strided


def _options(kind: type[Any], given: Any, op: Any, timeout: Any, root: int | None = None) -> Any:
    """Returns options, from those given or from the arguments of the short spellings."""
    if type(given) is kind:
        return given
    options = kind()
    if given is not None:
        op = given
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    if root is not None:
        options.rootRank = root
    return options


class Reductions(Issuing):
    """The operations that reduce."""

    def allreduce(self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None) -> Any:
        """Reduces a tensor of each rank into all of them, in place.

        The first lines are the fast path: one CPU tensor, contiguous, of a real dtype, to be done at once.
        """
        if type(opts) is dist.AllreduceOptions and len(tensors) == 1:
            tensor = tensors[0]
            if tensor.is_cpu and tensor.layout is _STRIDED and tensor.is_contiguous() and not opts.asyncOp:
                dtype = REAL.get(tensor.dtype)
                reduction = REDUCTION_OF_HASH[hash(opts.reduceOp)]
                if dtype is not None and reduction != PREMULTIPLIED_SUM and not tensor.is_neg():
                    address = tensor.data_ptr()
                    limit = nanoseconds(opts.timeout)
                    try:
                        self._run(
                            _ALL_REDUCE, dtype, tensor.numel(), address, address, reduction, 0, 1.0, 0, limit,
                            tensor.shape,
                        )  # fmt: skip
                    except _collective.CollectiveError as error:
                        self.group.note_failure(error.args[1], tensor)
                        raise backend_error(error) from error
                    return self._finished
        options = _options(dist.AllreduceOptions, opts, op, timeout)
        return self._allreduce(self.only(tensors, "all_reduce"), options)

    def _allreduce(self, tensor: torch.Tensor, options: Any) -> Any:
        if tensor.layout is torch.sparse_coo:
            return sparse_all_reduce(self, tensor, REDUCTION_OF_HASH[hash(options.reduceOp)], options.timeout)
        if (engine := self.other_engine(tensor)) is not None:
            return engine.allreduce([tensor], options)
        reduction, factor, dtype, width = self._reduction(tensor, options.reduceOp)
        pending: Pending = []
        values = self.update(tensor, pending)
        address = values.data_ptr()
        return self.issue(
            (
                _ALL_REDUCE, dtype, values.numel() * width, address, address, reduction, 0, factor, 0,
                nanoseconds(options.timeout), tensor.shape,
            ),
            options.asyncOp, [tensor], values, pending,
        )  # fmt: skip

    def allreduce_coalesced(self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None) -> Any:
        """Reduces several tensors; they may differ in shape and dtype."""
        options = _options(dist.AllreduceCoalescedOptions, opts, op, timeout)
        return self.together([self._allreduce(tensor, options) for tensor in as_list(tensors)])

    def reduce(
        self, tensors: Any, opts: Any = None, *, root: int | None = None, op: Any = None, timeout: Any = None
    ) -> Any:
        """Reduces a tensor of each rank into that of the root; the others keep theirs."""
        if isinstance(opts, int):
            opts, root = None, opts
        options = _options(dist.ReduceOptions, opts, op, timeout, root)
        tensor = self.only(tensors, "reduce")
        if (engine := self.other_engine(tensor)) is not None:
            return engine.reduce([tensor], options)
        reduction, factor, dtype, width = self._reduction(tensor, options.reduceOp)
        pending: Pending = []
        is_root = options.rootRank == self._rank
        values = self.update(tensor, pending) if is_root else self.read(tensor)
        return self.issue(
            (
                _REDUCE, dtype, values.numel() * width, values.data_ptr(), values.data_ptr() if is_root else 0,
                reduction, options.rootRank, factor, 0, nanoseconds(options.timeout), tensor.shape,
            ),
            options.asyncOp, [tensor], values, pending,
        )  # fmt: skip

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None
    ) -> Any:
        """Reduces part r of every rank into the output of rank r."""
        options = _options(dist.ReduceScatterOptions, opts, op, timeout)
        output = self.only(output_tensors, "reduce_scatter")
        parts = (
            input_tensors if isinstance(input_tensors[0], torch.Tensor) else self.only(input_tensors, "reduce_scatter")
        )
        if (engine := self.other_engine(output)) is not None:
            return engine.reduce_scatter([output], [parts], options)
        return self._reduce_scatter(output, [self.read(part) for part in parts], options)

    def reduce_scatter_single(self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None) -> Any:
        """The same with the parts one after another in one tensor."""
        options = _options(dist.ReduceScatterOptions, opts, None, None)
        if (engine := self.other_engine(output)) is not None:
            return engine._reduce_scatter_base(output, input_tensor, options)
        if input_tensor.numel() != output.numel() * self._size or input_tensor.dtype != output.dtype:
            raise self.refusal(
                f"reduce_scatter of {input_tensor.dtype} {tuple(input_tensor.shape)} into {output.dtype} "
                f"{tuple(output.shape)} over {self._size} ranks"
            )
        parts = self.read(input_tensor).view(-1).chunk(self._size) if output.numel() else [output] * self._size
        return self._reduce_scatter(output, list(parts), options)

    def _reduce_scatter_base(self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single(output, input_tensor, opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """Several of them."""
        options = _options(dist.ReduceScatterOptions, opts, None, None)
        return self.together([self.reduce_scatter_single(o, i, options) for o, i in zip(outputs, inputs, strict=True)])

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        """The older name."""
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    def _reduce_scatter(self, output: torch.Tensor, parts: Sequence[torch.Tensor], options: Any) -> Any:
        reduction, factor, dtype, width = self._reduction(output, options.reduceOp)
        if any(part.dtype != output.dtype for part in parts):
            raise self.refusal(f"reduce_scatter of {[part.dtype for part in parts]} into {output.dtype}")
        pending: Pending = []
        values = self.write(output, pending)
        return self.issue_parts(
            (
                _REDUCE_SCATTER, dtype, values.numel() * width, 0, values.data_ptr(), (),
                [(part.data_ptr(), part.numel() * width) for part in parts], reduction, 0, factor,
                nanoseconds(options.timeout),
            ),
            options.asyncOp, [output], (values, parts), pending,
        )  # fmt: skip

    def _reduction(self, tensor: torch.Tensor, operation: Any) -> tuple[int, float, int, int]:
        """Returns reduction, factor, native dtype and native elements per element."""
        try:
            reduction = REDUCTION_OF_HASH[hash(operation)]
            return (reduction, factor_of(operation, tensor), *reduced(tensor.dtype, reduction))
        except UsageError as error:
            raise refused_call(error) from error
