"""The backend ``lowerkit`` of torch.distributed: ``init_process_group("lowerkit")``.

Importing this module registers the backend; an installed lowerkit registers it whenever torch is imported (entry point
group ``torch.backends``), so a training script needs no line of ours but the backend's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowerkit.distributed.monitoring import monitored_barrier as monitored_barrier
    from lowerkit.distributed.monitoring import write_flight_record as write_flight_record
    from lowerkit.distributed.options import Options as Options
    from lowerkit.distributed.shrink import shrink_group as shrink_group

_PLACES = {
    "Options": "lowerkit.distributed.options",
    "monitored_barrier": "lowerkit.distributed.monitoring",
    "shrink_group": "lowerkit.distributed.shrink",
    "write_flight_record": "lowerkit.distributed.monitoring",
}
__all__ = ["Options", "monitored_barrier", "register", "shrink_group", "write_flight_record"]  # noqa: F822, RUF100 (see __getattr__)


def register() -> None:
    """Registers the backend with torch.distributed. Loads next to nothing until a group is made."""
    import torch.distributed

    if torch.distributed.is_available() and not hasattr(torch.distributed.Backend, "LOWERKIT"):
        torch.distributed.Backend.register_backend("lowerkit", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(request: Any, options: Any) -> Any:
    from lowerkit.distributed.creation import create

    return create(request, options)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


register()
