"""Keeps torch.compile out of the process group: Dynamo looks at every frame below a compiled module, ours too.

DDP calls a group from C++, between two compiled frames. Dynamo would take the group's method for a frame of the model
and fail on it: members of a process group are opaque to it.
"""

# The one place that tells Dynamo to leave code alone without a wrapper around each call, and without importing Dynamo.
# pyright: reportPrivateUsage=false, reportMissingModuleSource=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false

from __future__ import annotations

from types import FunctionType

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)


def leave_uncompiled(kind: type) -> None:
    """Tells Dynamo to run the methods of a class, and all that they call, as they are."""
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for one in kind.__mro__:
        if not one.__module__.startswith("lowerkit."):
            continue
        for member in vars(one).values():
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, FunctionType):
                set_code_exec_strategy(function.__code__, strategy)
