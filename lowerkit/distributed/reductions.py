"""all_reduce, reduce and reduce_scatter, in all their spellings."""

# torch's stubs state one overload each, and do not export what torch.distributed imports.
# pyright: reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from lowerkit.distributed.arguments import Tensors, as_list, nanoseconds
from lowerkit.distributed.copy_back import Pending
from lowerkit.distributed.dtypes import PREMULTIPLIED_SUM, REDUCTION_OF_HASH, factor_of, reduced
from lowerkit.distributed.sparse import sparse_all_reduce
from lowerkit.distributed.submission import ProcessGroupBase
from lowerkit.distributed.work import refused_call
from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.calls import Operation

_ALL_REDUCE = int(Operation.ALL_REDUCE)
_REDUCE = int(Operation.REDUCE)
_REDUCE_SCATTER = int(Operation.REDUCE_SCATTER)


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


class Reductions(ProcessGroupBase):
    """The operations that reduce."""

    def allreduce(self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: Any = None) -> Any:
        """Reduces a tensor of each rank into all of them, in place."""
        if type(opts) is dist.AllreduceOptions and len(tensors) == 1 and not opts.asyncOp:
            reduction = REDUCTION_OF_HASH[hash(opts.reduceOp)]
            tensor = tensors[0]
            if reduction != PREMULTIPLIED_SUM and self.at_once(_ALL_REDUCE, tensor, tensor, opts.timeout, reduction):
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
        if not options.asyncOp:
            reduction = REDUCTION_OF_HASH[hash(options.reduceOp)]
            if reduction != PREMULTIPLIED_SUM and self.at_once(
                _REDUCE, tensor, tensor, options.timeout, reduction, options.rootRank
            ):
                return self._finished
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
        if self._reduce_scatter_at_once(output, list(parts), options):
            return self._finished
        if (engine := self.other_engine(output)) is not None:
            return engine.reduce_scatter([output], [parts], options)
        return self._reduce_scatter(output, [self.read(part) for part in parts], options)

    def reduce_scatter_single(self, output: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None) -> Any:
        """The same with the parts one after another in one tensor."""
        options = _options(dist.ReduceScatterOptions, opts, None, None)
        if self._reduce_scatter_at_once(output, input_tensor, options):
            return self._finished
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

    def _reduce_scatter_at_once(self, output: torch.Tensor, given: torch.Tensor | Tensors, options: Any) -> bool:
        reduction = REDUCTION_OF_HASH[hash(options.reduceOp)]
        if options.asyncOp or reduction == PREMULTIPLIED_SUM:
            return False
        return self.at_once(_REDUCE_SCATTER, output, given, options.timeout, reduction)

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
