"""Modules whose parameters are DTensors: the module of one device that they were made of, and how they are split.

``parallelize_module`` and ``distribute_module`` replace parameters by parts of them and hang hooks on modules, which
bring what goes in and out into the form that the parts need. That form follows from the parts, so lowerkit takes the
placements of the parameters as its plan, and captures the module with whole parameters and without the hooks.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from lowerkit.errors import UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_HOOKS_OF = "torch.distributed.tensor"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@dataclass(frozen=True)
class Undistributed:
    """A module of one device, and how it was distributed.

    Attributes:
        module: with whole parameters; another one than the user's.
        mesh: as ``--mesh`` takes it.
        plan: by axis, patterns of modules and what happens to their weights.
    """

    module: nn.Module
    mesh: str
    plan: dict[str, dict[str, str]]


def as_plan(model: Any, mesh: str | None, shard: Any) -> tuple[Any, str | None, Any]:
    """Returns a model, a mesh and a plan; those of a distributed module where the user names no others.

    Raises:
        UnsupportedError: as :func:`undistributed`.
    """
    found = undistributed(model) if isinstance(model, nn.Module) else None
    if found is None:
        return model, mesh, shard
    return (found.module, found.mesh, found.plan) if mesh is None else (found.module, mesh, shard)


def undistributed(module: nn.Module) -> Undistributed | None:
    """Takes the distribution off a module; None where none of its parameters is a DTensor.

    All ranks of the mesh call it together: parameters are gathered.

    Raises:
        UnsupportedError: LK4007, parameters lie on several meshes, or are placed as no plan says; all of them at once.
    """
    if not torch.distributed.is_available():
        return None
    found = list(_distributed(module))
    if not found:
        return None
    meshes = {each.device_mesh for _, each in found}
    if len(meshes) > 1:
        raise UnsupportedError(
            "LK4007", f"the parameters lie on {len(meshes)} meshes", hint="distribute the module over one DeviceMesh"
        )
    (mesh,) = meshes
    names = list(mesh.mesh_dim_names or (f"axis{number}" for number in range(mesh.ndim)))
    plan: dict[str, dict[str, str]] = {name: {} for name in names}
    problems: list[str] = []
    for path, tensor in found:
        owner, _, parameter = path.rpartition(".")
        for name, placement in zip(names, tensor.placements, strict=True):
            if placement.is_replicate():
                continue
            choice = _choice(module.get_submodule(owner), parameter, placement)
            if choice is None:
                problems.append(f"{path} is {placement} along {name!r}")
            elif choice:
                plan[name][owner] = choice
    if problems:
        raise UnsupportedError(
            "LK4007",
            f"a parameter is placed as no plan can say: {problems[0]}",
            details=problems[1:],
            hint="weights of Linear and Embedding can be split; or give the module as it was before, and a mesh",
        )
    whole = _whole(module, dict(found))
    text = ",".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))
    return Undistributed(whole, text, {name: own or {"*": "replicate"} for name, own in plan.items()})


def _distributed(module: nn.Module) -> Iterator[tuple[str, DTensor]]:
    from torch.distributed.tensor import DTensor

    for path, tensor in (*module.named_parameters(), *module.named_buffers()):
        data: Any = tensor
        if isinstance(data, DTensor):
            yield path, data


def _choice(owner: nn.Module, parameter: str, placement: Any) -> str | None:
    """Returns the choice that places a parameter so; empty where it follows from that of another parameter."""
    axis = getattr(placement, "dim", None) if placement.is_shard() else None
    if isinstance(owner, nn.Linear) and parameter == "weight":
        return {0: "column", 1: "row"}.get(cast("int", axis))
    if isinstance(owner, nn.Linear) and parameter == "bias" and axis == 0:
        return ""
    if isinstance(owner, nn.Embedding) and axis == 0:
        return "vocabulary"
    return None


def _whole(module: nn.Module, found: dict[str, DTensor]) -> nn.Module:
    """Returns a copy of a module with whole parameters and without the hooks that distribute."""
    memo: dict[int, Any] = {}
    for tensor in found.values():
        full = tensor.full_tensor().detach()
        memo[id(tensor)] = nn.Parameter(full, requires_grad=False) if isinstance(tensor, nn.Parameter) else full
    stripped: list[tuple[nn.Module, str, OrderedDict[int, Any]]] = []
    for each in module.modules():
        for name in _HOOKS:
            hooks: OrderedDict[int, Any] = getattr(each, name)
            kept = OrderedDict((key, hook) for key, hook in hooks.items() if not _distributes(hook))
            if len(kept) < len(hooks):
                stripped.append((each, name, hooks))
                setattr(each, name, kept)
    try:
        return copy.deepcopy(module, memo)
    finally:
        for each, name, hooks in stripped:
            setattr(each, name, hooks)


def _distributes(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(_HOOKS_OF)
