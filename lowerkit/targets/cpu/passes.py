"""The CPU's own passes: from what is true for every target to regions that its kernel families take."""

from __future__ import annotations

from lowerkit.passes.base import Pass


def host_passes(stage: str) -> list[Pass]:
    """Returns the passes that lead functions of the CPU to ``stage`` from the one before it, in order.

    Byte products get an unsigned left operand and a depth in fours, requantization becomes arithmetic, convolutions
    channels-last; then everything goes into regions that are as large as one kernel can be.
    """
    from lowerkit.passes.canonicalize.fold_constants import FoldConstants
    from lowerkit.passes.canonicalize.simplify import Simplify
    from lowerkit.passes.canonicalize.simplify_elementwise import SimplifyElementwise
    from lowerkit.passes.canonicalize.sink_reshapes import SinkReshapes
    from lowerkit.passes.fuse.form_regions import FormRegions
    from lowerkit.passes.fuse.fuse_elementwise import FuseElementwise
    from lowerkit.passes.fuse.fuse_epilogue import FuseEpilogue
    from lowerkit.passes.layout.channels_last import ChannelsLast
    from lowerkit.passes.layout.propagate_transposes import PropagateTransposes
    from lowerkit.passes.quantize.integer_operands import IntegerOperands
    from lowerkit.passes.quantize.lower_quantization import LowerQuantization

    match stage:
        case "layout":
            return [
                IntegerOperands(),
                LowerQuantization(),
                ChannelsLast(),
                PropagateTransposes(),
                Simplify(),
                SimplifyElementwise(),
                FoldConstants(),
            ]
        case "fused":
            return [SinkReshapes(), FuseElementwise(), FuseEpilogue(), FormRegions()]
        case _:
            raise AssertionError(f"no passes of the CPU lead to stage {stage}")
