"""The contract table beside eager: what violates a contract is refused by both, what just fulfils it by neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from lowerkit.capture.contracts.table import CONTRACTS, ONNX_NODES
from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.arguments import bind_dims
from tests.operators.test_index_checks import CASES as INDEXED

aten = torch.ops.aten
ROWS = torch.tensor([0, 1])


def _image(x: Tensor, spatial: int) -> Tensor:
    """[1, 4, n, 1, ...] of x [n, 4]."""
    return x.t().reshape(1, 4, x.shape[0], *[1] * (spatial - 1))


def _resized(kind: str, spatial: int, *arguments: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(aten, kind)(_image(x, spatial), [3] * spatial, *arguments)


def _pooled(kind: str, spatial: int) -> Callable[[Tensor], Any]:
    return lambda x: getattr(functional, f"{kind}{spatial}d")(_image(x, spatial), [2] + [1] * (spatial - 1))


def _padded(kind: str, spatial: int) -> Callable[[Tensor], Tensor]:
    padding = [0] * (2 * spatial - 2) + [1, 1]
    return lambda x: getattr(aten, f"{kind}_pad{spatial}d")(_image(x, spatial), padding)


FROM_ONE = (1, 2, 3, 7)
SIZED: dict[str, tuple[Callable[[Tensor], Any], Sequence[int]]] = {
    # what is computed of x [n, 4]; the sizes among 0, 1, 2, 3, 7 that eager takes
    "select": (lambda x: x.select(0, 1), (2, 3, 7)),
    "select from the end": (lambda x: x.select(0, -2), (2, 3, 7)),
    "topk": (lambda x: x.topk(2, 0), (2, 3, 7)),
    "kthvalue": (lambda x: x.kthvalue(2, 0), (2, 3, 7)),
    "amax": (lambda x: x.amax(0), FROM_ONE),
    "amin": (lambda x: x.amin((0, 1)), FROM_ONE),
    "aminmax": (lambda x: torch.aminmax(x, dim=0), FROM_ONE),
    "max": (lambda x: x.max(0), FROM_ONE),
    "min": (torch.min, FROM_ONE),
    "argmax": (lambda x: x.argmax(0), FROM_ONE),
    "argmin": (torch.argmin, FROM_ONE),
    "mode": (lambda x: x.mode(0), FROM_ONE),
    "quantile": (lambda x: x.quantile(0.3, 0), FROM_ONE),
    "nanquantile": (lambda x: x.nanquantile(0.3, 0), FROM_ONE),
    "norm": (lambda x: aten.norm.ScalarOpt_dim(x, float("inf"), [0]), FROM_ONE),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, -1), FROM_ONE),
    **{f"upsample_nearest{n}d": (_resized(f"upsample_nearest{n}d", n), FROM_ONE) for n in (1, 2, 3)},
    **{f"upsample_nearest_exact{n}d": (_resized(f"_upsample_nearest_exact{n}d", n), FROM_ONE) for n in (1, 2, 3)},
    "upsample_linear1d": (_resized("upsample_linear1d", 1, False), FROM_ONE),
    "upsample_bilinear2d": (_resized("upsample_bilinear2d", 2, False), FROM_ONE),
    "upsample_trilinear3d": (_resized("upsample_trilinear3d", 3, False), FROM_ONE),
    "upsample_bicubic2d": (_resized("upsample_bicubic2d", 2, False), FROM_ONE),
    "upsample_bilinear2d_aa": (_resized("_upsample_bilinear2d_aa", 2, False), FROM_ONE),
    "upsample_bicubic2d_aa": (_resized("_upsample_bicubic2d_aa", 2, False), FROM_ONE),
    **{f"adaptive_avg_pool{n}d": (_pooled("adaptive_avg_pool", n), FROM_ONE) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": (_pooled("adaptive_max_pool", n), FROM_ONE) for n in (1, 2, 3)},
    **{f"replication_pad{n}d": (_padded("replication", n), FROM_ONE) for n in (1, 2, 3)},
    **{f"reflection_pad{n}d": (_padded("reflection", n), (2, 3, 7)) for n in (1, 2, 3)},
    "pad": (lambda x: functional.pad(x.t()[None], (0, 1), mode="reflect"), (2, 3, 7)),
    "pad in circles": (lambda x: functional.pad(x.t()[None], (2, 1), mode="circular"), (2, 3, 7)),
    "pad at the border": (lambda x: functional.pad(x.t()[None], (3, 1), mode="replicate"), FROM_ONE),
    "select_scatter": (lambda x: x.select_scatter(torch.zeros(4), 0, 2), (3, 7)),
    "slice_scatter": (lambda x: x.slice_scatter(torch.zeros(2, 4), 0, 1, 3), (3, 7)),
    "diagonal_scatter": (lambda x: x.diagonal_scatter(torch.zeros(3)), (3,)),
    "index_put": (lambda x: x.t().index_put((ROWS,), torch.ones(1, 3)), (3,)),
    "index_add": (lambda x: x.t().index_add(0, ROWS, torch.ones(2, 7)), (7,)),
}
"""By the name of the contract, and what else there is to say of it."""

STRICTER = {"mode", "upsample_bilinear2d_aa"}
"""What these are written out of asks for more elements than eager does."""

_PRIVATE = ("_index_put_impl", "_embedding_bag", "_embedding_bag_forward_only", "multilabel_margin_loss_forward")
_ELSEWHERE = {"searchsorted", "lu_unpack", "linalg_lu_solve", "multi_margin_loss"}
"""Forms of others that no user writes; operators that ``test_index_checks.py`` has under other names, or in a test."""


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_every_contract_has_calls() -> None:
    refusing = {name: contract for name, contract in CONTRACTS.items() if contract.refusal and name not in _PRIVATE}
    sized = {name.partition(" ")[0] for name in SIZED}
    assert sized == {name for name, contract in refusing.items() if contract.needs}
    indexed = {case.operator for case in INDEXED.values()}
    assert indexed | _ELSEWHERE == {name for name, contract in refusing.items() if contract.places}
    assert {name for name, _ in ONNX_NODES.values()} <= CONTRACTS.keys()


@pytest.mark.parametrize("name", SIZED)
def test_sizes_beside_eager(name: str) -> None:
    function, sizes = SIZED[name]
    operator = name.partition(" ")[0]
    open_from_0 = len(sizes) > 1  # tracing finds a size that alone is taken, and refuses to leave it open
    dims: Any = Dim("n", min=0, max=64) if open_from_0 else Dim.AUTO
    exported = torch.export.export(Function(function), (torch.randn(sizes[-1], 4),), dynamic_shapes=({0: dims},))
    signature = capture_exported(exported).signature
    for size in (0, 1, 2, 3, 7):
        x = torch.randn(size, 4)
        refusal = _refusal(function, x)
        assert (refusal is None) == (size in sizes), refusal
        if refusal is not None:
            assert re.search(CONTRACTS[operator].refusal, refusal), refusal
            with pytest.raises(RuntimeFault) as caught:
                bind_dims(signature, [x.numpy()])
            if open_from_0:
                assert re.search(r"for \w+, at .*test_contracts\.py:", str(caught.value)), size
        elif name not in STRICTER or size == sizes[-1]:
            bind_dims(signature, [x.numpy()])


def _refusal(function: Callable[[Tensor], Any], x: Tensor) -> str | None:
    try:
        function(x)
    except (RuntimeError, IndexError) as refusal:
        return str(refusal)
    return None
