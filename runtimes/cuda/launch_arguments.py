"""The arguments of a launch, in the order of its kernel's parameters."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.cuda.image import ImageError, Launch
from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.tensor_maps import BadMap, Prepare, ShapedMap, shape_map


def shaped_maps(launch: Launch, dims: Sequence[int], bytes_of: Sequence[int]) -> tuple[ShapedMap, ...]:
    """Returns the tensor maps of a launch with the dims known.

    Args:
        launch: of a function.
        dims: of the function.
        bytes_of: each of its buffers.

    Raises:
        ImageError: a map reaches out of its buffer, or cannot be.
    """
    try:
        return tuple(shape_map(each, dims, bytes_of) for each in launch.maps)
    except BadMap as error:
        raise ImageError(f"kernel {launch.kernel!r} takes {error}") from None


def arguments_of(
    launch: Launch, buffers: Sequence[LaunchBuffer], maps: Sequence[ShapedMap], dims: Sequence[int], prepare: Prepare
) -> list[LaunchBuffer | LaunchTensorMap | int]:
    """Returns pointers, tensor maps with their numbers, dims and null pointers.

    Args:
        launch: of a function.
        buffers: of the function, each where it lies.
        maps: what :func:`shaped_maps` returned.
        dims: of the function.
        prepare: of the driver; see :meth:`~lowerkit.runtimes.cuda.driver.Driver.prepared`.
    """
    found: list[LaunchBuffer | LaunchTensorMap | int] = [buffers[number] for number in launch.pointers]
    for each in maps:
        found += [each.at(buffers[each.buffer], prepare), *each.numbers]
    return [*found, *dims, *[0] * launch.nulls]
