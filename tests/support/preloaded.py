"""What ranks of tests import, once, in the process that they are forked from."""

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel
import torch.utils.data.distributed

import lowerkit.distributed.creation

__all__ = ["lowerkit", "torch"]
