"""Convolutions in groups on parts: whole groups, and groups of one channel, whose loops have one turn."""

from __future__ import annotations

import pytest

from lowerkit.errors import VerifyError
from lowerkit.spmd.certificate.facts import Fact, Rows, Slices
from lowerkit.spmd.certificate.graph import Form
from lowerkit.spmd.certificate.prover import Proof, prove
from tests.unit.spmd.certificate.test_prover import Line, graph, op


def image(channels: int, batch: int = 4) -> str:
    return f"f32[{batch},{channels},5,5]"


def conv(groups: int, name: str = "lk.conv") -> Form:
    return op(name, groups=groups, padding=[1, 1, 1, 1], channels_last=False)


def weight(symbol: str, kind: str) -> Line:
    return op("lk.weight", symbol=symbol), [], [kind], -1


def by_channels(
    channels: int,
    made: int,
    groups: int,
    ranks: int,
    *,
    rows: tuple[int, int] | None = None,
    own_groups: int | None = None,
    name: str = "lk.conv",
) -> Proof:
    """Proves a convolution of which each rank has whole groups; ``rows``: rank r reads channels r * [0] + [1] on."""
    size, out, inside = channels // ranks, made // ranks, channels // groups
    factor, start = rows or (size, 0)
    before: list[Line] = [weight("w", f"f32[{made},{inside},3,3]"), (conv(groups, name), [0, 1], [image(made)], -1)]
    after: list[Line] = [
        weight("own", f"i64[{size}]"),
        (op("lk.gather", axis=1), [0, 1], [image(size)], -1),
        weight("w@tp", f"f32[{out},{inside},3,3]"),
        (conv(own_groups or groups // ranks, name), [2, 3], [image(out)], 1),
        (op("lk.collective_start", kind="all_gather", axis="tp", ranks=ranks, reduction="sum", root=0, peer=-1),
         [4], [f"f32[{ranks},4,{out},5,5]"], -1),
        (op("lk.collective_done"), [5], [f"f32[{ranks},4,{out},5,5]"], -1),
        (op("tensor.empty"), [], [f"f32[4,{ranks},{out},5,5]"], -1),
        (op("linalg.transpose", permutation=[1, 0, 2, 3, 4]), [6, 7], [f"f32[4,{ranks},{out},5,5]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0], [1, 2], [3], [4]]), [8], [image(made)], -1),
    ]  # fmt: skip
    facts: list[Fact] = [Rows("own", size, factor, 1, start), Slices("w@tp", "w", f"f32[{made},{inside},3,3]", 0)]
    return prove(graph(image(channels), before, [2]), graph(image(channels), after, [9]), "tp", ranks, facts)


@pytest.mark.parametrize("name", ["lk.conv", "lk.integer_conv"])
@pytest.mark.parametrize(
    ("channels", "made", "groups", "ranks"),
    [
        (8, 8, 8, 2),  # depthwise
        (8, 16, 8, 4),  # two results of each channel
        (8, 8, 8, 8),  # one channel on each rank
        (8, 8, 4, 2),
        (8, 12, 4, 4),  # one group on each rank
    ],
)
def test_whole_groups_on_each_rank(name: str, channels: int, made: int, groups: int, ranks: int) -> None:
    proof = by_channels(channels, made, groups, ranks, name=name)
    assert proof.lemmas[3] == "part"
    assert proof.relations[4] == "%2 split 1"
    assert proof.relations[9] == "%2 whole"


def test_channels_and_weights_of_other_groups_are_refused() -> None:
    """A result channel is that of a group and one within it: no turn within it makes up for another group."""
    for channels, groups in ((8, 8), (8, 4)):
        with pytest.raises(VerifyError, match=r"loop l3 is carried to .*, beyond its \d turns"):
            by_channels(channels, 8, groups, 2, rows=(-4, 4))  # the halves in another order
        with pytest.raises(VerifyError, match=r"loop l3 is carried to .*, beyond its \d turns"):
            by_channels(channels, 8, groups, 2, rows=(0, 0))  # all ranks read the first half
    with pytest.raises(VerifyError, match="may run on whole operands alone"):
        by_channels(8, 8, 8, 2, own_groups=2)  # two channels to each group


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_images_on_each_rank(groups: int) -> None:
    kind = f"f32[8,{8 // groups},3,3]"
    before: list[Line] = [weight("w", kind), (conv(groups), [0, 1], [image(8)], -1)]
    after: list[Line] = [
        weight("own", "i64[2]"),
        (op("lk.gather", axis=0), [0, 1], [image(8, 2)], -1),
        weight("w", kind),
        (conv(groups), [2, 3], [image(8, 2)], 1),
        (op("lk.collective_start", kind="all_gather", axis="dp", ranks=2, reduction="sum", root=0, peer=-1),
         [4], ["f32[2,2,8,5,5]"], -1),
        (op("lk.collective_done"), [5], ["f32[2,2,8,5,5]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0, 1], [2], [3], [4]]), [6], [image(8)], -1),
    ]  # fmt: skip
    made = prove(graph(image(8), before, [2]), graph(image(8), after, [7]), "dp", 2, [Rows("own", 2, 2, 1)])
    assert made.relations[4] == "%2 split 0"
    assert made.relations[7] == "%2 whole"
