"""The CUDA target's own passes: from what is true for every target to regions.

Signs and depths of the model stay as they are. Requantization becomes arithmetic. Convolutions become channels-last:
neighbours in memory are then the products that tensor cores sum. That holds with and without Triton, so that a model
has one form on this target, whatever is installed; plain loops are right for either layout.
"""

from __future__ import annotations

from lowerkit.passes.base import Pass


def cuda_passes(stage: str) -> list[Pass]:
    """Returns the passes that lead functions of the target to ``stage`` from the one before it, in order."""
    from lowerkit.passes.canonicalize.fold_constants import FoldConstants
    from lowerkit.passes.canonicalize.simplify import Simplify
    from lowerkit.passes.canonicalize.simplify_elementwise import SimplifyElementwise
    from lowerkit.passes.canonicalize.sink_reshapes import SinkReshapes
    from lowerkit.passes.fuse.form_regions import FormRegions
    from lowerkit.passes.fuse.fuse_elementwise import FuseElementwise
    from lowerkit.passes.fuse.fuse_epilogue import FuseEpilogue
    from lowerkit.passes.fuse.fuse_views import FuseViews
    from lowerkit.passes.fuse.merge_products import MergeProducts
    from lowerkit.passes.layout.channels_last import ChannelsLast
    from lowerkit.passes.layout.propagate_transposes import PropagateTransposes
    from lowerkit.passes.quantize.lower_quantization import LowerQuantization

    match stage:
        case "layout":
            return [
                LowerQuantization(),
                ChannelsLast(),
                PropagateTransposes(),
                Simplify(),
                SimplifyElementwise(),
                FoldConstants(),
            ]
        case "fused":
            return [MergeProducts(), SinkReshapes(), FuseElementwise(), FuseEpilogue(), FuseViews(), FormRegions()]
        case _:
            raise AssertionError(f"no passes of the CUDA target lead to stage {stage}")
