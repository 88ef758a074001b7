"""Imports what ranks of tests need, once, in the process that they are forked from."""

import gc
from importlib import import_module

for name in (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
    "lowerkit.distributed.creation",
):
    import_module(name)

# No collection in a rank looks at all that again, nor copies its pages.
gc.collect()
gc.freeze()
