"""The backend that ``torch.compile`` finds by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import fx
from torch._guards import TracingContext

from lowerkit.errors import UsageError
from lowerkit.torch_backend.argument_names import argument_names
from lowerkit.torch_backend.decompositions.table import decompositions
from lowerkit.torch_backend.graph import CompiledGraph
from lowerkit.torch_backend.refusals import report_break
from lowerkit.torch_backend.settings import Settings
from lowerkit.torch_backend.whole_ops import whole_ops


def lowerkit(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of TorchDynamo.

    Args:
        graph: what TorchDynamo captured; its parameters are inputs.
        example_inputs: tensors and symbolic ints.
        options: see :class:`~lowerkit.torch_backend.settings.Settings`.
        mode: none is known but the default.

    Raises:
        UsageError: LK1009, an option is unknown or has a value out of its range.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    settings = Settings.of(options)
    if mode is not None:
        raise UsageError("LK1009", f"mode is {mode!r}, the backend knows none", hint="leave mode out")
    report_break(graph)
    whole = InstructionTranslator.current_tx().one_graph or settings.on_refusal == "error"

    def compile_graph(kind: str, module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        frozen: Sequence[int] = ()
        if kind == "inference" and settings.freeze:
            facts = TracingContext.get().fw_metadata
            assert facts is not None, "AOTAutograd analyzed the graph before"
            changed = set(facts.mutated_inp_runtime_indices)
            frozen = [index for index in facts.static_input_indices if index not in changed]
        return CompiledGraph(module, frozen, argument_names(graph, module), settings, whole=whole).boxed()

    compiler = aot_autograd(
        fw_compiler=partial(compile_graph, "forward"),
        bw_compiler=partial(compile_graph, "backward"),
        inference_compiler=partial(compile_graph, "inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )
    with whole_ops(graph, example_inputs):
        return compiler(graph, example_inputs)
