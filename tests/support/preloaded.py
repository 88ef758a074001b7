"""Imports what ranks of tests need, once, in the process that they are forked from."""

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
