"""What ranks whose collectives are carried out by another library's engine must do, as functions of a rank.

They run in processes that the tests of gloo and MPI start; what they load is that of ``engine_artifacts.py``. Nothing
here loads torch, which each rank that mpirun starts would take seconds for.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowerkit
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.manifest import ITEM_SIZES
from lowerkit.runtimes.mesh.ranks import join_mesh
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.stepwise import StepwiseRun
from tests.support.mesh.artifacts import COLUMNS, expected
from tests.support.mesh.collective_programs import (
    CALLS,
    GIVEN_WHOLE,
    Array,
    program_name,
    same_bits,
)
from tests.support.mesh.several_axes import expected as expected_parts
from tests.support.ranks import PATIENCE

LONG = 200_003
"""Elements of a message that is not sent in one piece."""
X = np.arange(COLUMNS, dtype=np.float32)


@dataclass(frozen=True)
class Ranks:
    """This rank, and the group of the other library that it is in.

    ``tells_sizes``: a receiver learns how long a message is that is too long for it.
    """

    rank: int
    size: int
    folder: Path
    group: Any
    tells_sizes: bool = True

    def load(self, name: str, **options: Any) -> Session:
        given: dict[str, Any] = {"deadline": PATIENCE, **options}
        return lowerkit.load(self.folder / name, group=self.group, threads=1, **given)

    def meet(self, name: str) -> None:
        """Returns when all ranks are here, by files: the groups may be of no use any more."""
        (self.folder / f"{name}.{self.rank}").touch()
        end = time.monotonic() + PATIENCE
        while not all((self.folder / f"{name}.{rank}").exists() for rank in range(self.size)):
            assert time.monotonic() < end, name
            time.sleep(0.01)


def _drawn(generator: np.random.Generator, operation: str, dtype: str, ranks: int, count: int) -> Array:
    """Returns any bits, by rank: in floats infinities and NaN, in integers what overflows."""
    shape = (ranks, ranks, count) if operation in GIVEN_WHOLE else (ranks, count)
    if dtype == "i1":
        return generator.random(shape) < 0.5
    kind = numpy_dtype(dtype)
    return generator.integers(0, 256, (*shape, ITEM_SIZES[dtype]), np.uint8).view(kind)[..., 0]


def _same(one: Array, other: Array) -> bool:
    """Compares bits, and NaN with any other NaN."""
    if one.dtype.kind == "f" or one.dtype == np.dtype(ml_dtypes.bfloat16):
        nan = np.isnan(one) & np.isnan(other)
        one, other = np.where(nan, 0, one), np.where(nan, 0, other)
    return same_bits(one, other)


def collectives(ranks: Ranks) -> None:
    """Every operation, dtype and reduction, at once and behind others, as lowerkit's own engine has it, to the bit.

    With two ranks there is one order of summation; with more of them only what does not depend on it is compared.
    """
    generator = np.random.default_rng(4711)
    theirs = ranks.load("sum.lk")
    assert theirs.group is not None
    with Group.join(DirectoryStore(ranks.folder / "native"), "native", ranks.rank, ranks.size) as native:
        for operation, reduction in CALLS:
            artifact = open_artifact(ranks.folder / f"{operation}.{reduction}.lk")
            for number, dtype in enumerate(ITEM_SIZES):
                ordered = dtype in ("f64", "f32", "f16", "bf16") and reduction in ("sum", "product")
                if ranks.size > 2 and (ordered or number % 3):
                    continue
                name = program_name(operation, reduction, dtype, behind=number % 2 == 0)
                one, other = (
                    Session(artifact, 1, "structure", None, name, None, group) for group in (theirs.group, native)
                )
                for count in (0, 3, 2000):
                    x = _drawn(generator, operation, dtype, ranks.size, count)[ranks.rank]
                    with np.errstate(all="ignore"):
                        for actual, wanted in zip(one.run(x), other.run(x), strict=True):
                            assert _same(actual, wanted), (name, count, actual, wanted)


def messages(ranks: Ranks) -> None:
    """Each rank gets what the rank before it sends, in order, behind other steps and between them."""
    x = np.random.default_rng(4).standard_normal((ranks.size, LONG)).astype(np.float32)
    for count in (3, LONG):
        for behind in (False, True):
            session = ranks.load(f"ring.{count}.{behind}.lk")
            for turn in range(3):
                y, z = session.run(x[ranks.rank, :count] + turn)
                np.testing.assert_array_equal(y, x[(ranks.rank - 1) % ranks.size, :count] + turn)
                np.testing.assert_array_equal(z, x[(ranks.rank - 2) % ranks.size, :count] + turn)


def unequal_messages(ranks: Ranks) -> None:
    """A message of another size than its receiver expects is refused there, and the process goes on."""
    for sent, received in ((8, 16), (16, 8)):
        session = ranks.load(f"message.{sent}.lk", deadline=3.0)
        pattern = "LK80(08|09|10|11)"
        if ranks.rank == 1:
            pattern = (
                rf"LK8010.*receive failed in step 'receive@0' at rank 1 of pp={ranks.size}: .*model.py:9"
                if sent > received and not ranks.tells_sizes
                else rf"LK8010.*receive@0.*rank 0.* sen(ds|t) {sent} bytes,.* this rank expects {received}.*model.py:9"
            )
        with _raises(pattern):
            for _ in range(3):
                session.run(np.ones(1, np.float32))
        ranks.meet(f"message.{sent}")  # with MPI the others learn of it by their deadlines


def artifacts(ranks: Ranks) -> None:
    """Ranks that load different artifacts are told so, and one for another number of ranks is refused."""
    np.testing.assert_allclose(ranks.load("sum.lk").run(X)[0], expected(X, ranks.size), rtol=1e-6)
    with _raises(r"LK8022.*rank \d has model .*(sum|other).lk"):
        ranks.load("sum.lk" if ranks.rank else "other.lk")
    with _raises(rf"LK8021.*more.lk is for a mesh tp={ranks.size + 1}, and the group 'mesh' has {ranks.size} ranks"):
        ranks.load("more.lk")
    with _raises("LK8021.*one.lk is for one rank"):
        ranks.load("one.lk")
    with pytest.raises(LowerkitError, match=r"LK1010.*group is a builtins.int, and expected are"):
        lowerkit.load(ranks.folder / "sum.lk", group=-100)  # pyright: ignore[reportCallIssue, reportArgumentType]
    np.testing.assert_allclose(ranks.load("sum.lk").run(X)[0], expected(X, ranks.size), rtol=1e-6)


def shapes(ranks: Ranks) -> None:
    """Ranks that run with inputs of other shapes are told both, before a step; so are those that run other programs."""
    session = ranks.load("any.lk")
    assert session.run(np.ones(5, np.float32))[0].tolist() == [ranks.size] * 5
    with _raises(r"LK8010.*the run cannot begin at rank \d.*begins run 2 of main.* with n=\d.*begins run 2 of main"):
        session.run(np.ones(3 if ranks.rank == 0 else 4, np.float32))
    with _raises("LK8011.*cannot begin"):
        session.run(np.ones(3, np.float32))


def indices(ranks: Ranks) -> None:
    """An index that is out of range on all ranks leaves them together; on one of them it ends the group."""
    session = ranks.load("looked_up.lk", deadline=3.0)
    x = np.full(5, ranks.rank + 1, np.float32)
    wanted = np.full(5, sum(range(1, ranks.size + 1)), np.float32)
    for index in (1, 9, 3):
        i = np.array([0, index], np.int64)
        if index == 9:
            with _raises("LK8015.*index 9"):
                session.run(i, x)
            continue
        np.testing.assert_array_equal(session.run(i, x)[0], wanted)
    with _raises("LK8015.*index 9" if ranks.rank == 0 else "LK80(08|10|11).*at rank"):
        session.run(np.array([0, 9 if ranks.rank == 0 else 3], np.int64), x)
    with _raises("LK8011"):
        session.run(np.array([0, 1], np.int64), x)


def late(ranks: Ranks) -> None:
    """A rank that is late in a step: the deadline ends the run of the others, with the step and its line."""
    session = ranks.load("sum.lk", deadline=4.0)
    session.run(X)
    ranks.meet("late")
    if ranks.rank == 1:
        run = StepwiseRun(session, X)
        run.run_step(0)
        ranks.meet("later")
    else:
        with pytest.raises(LowerkitError) as caught:
            session.run(X)
        text = caught.value.render()
        (ranks.folder / f"late.text.{ranks.rank}").write_text(text)
        assert re.search(r"LK80(08|11)", text) and "all_reduce failed in step 'sum_over_ranks' at rank" in text, text
        assert f"of tp={ranks.size}" in text and "model.py:7" in text, text
        ranks.meet("later")
    with _raises("LK80(08|09|11)"):
        session.run(X)
        session.run(X)


def axes(ranks: Ranks) -> None:
    """Sums and gathers along two axes, which are under way at one time; a fault of one rank ends all."""
    session = ranks.load("gathered.lk")
    np.testing.assert_array_equal(
        session.run(np.ones(1, np.float32))[0], expected_parts({"dp": 2, "tp": 2}, ("tp", "dp"))
    )
    x = np.random.default_rng(5).integers(0, 99, (2, 2, LONG)).astype(np.float32)
    own = divmod(ranks.rank, 2)
    session = ranks.load("at_once.lk")
    for _ in range(3):
        dp, tp = session.run(x[own])
        np.testing.assert_array_equal(dp, x[:, own[1]].sum(0))
        np.testing.assert_array_equal(tp, x[own[0]].sum(0))
    session = ranks.load("looked_up_axes.lk", deadline=3.0)
    with _raises("LK8015" if ranks.rank == 0 else r"LK80(08|11).*at rank \d \(dp=\d,tp=\d\)"):
        session.run(np.array([0, 9 if ranks.rank == 0 else 3], np.int64), np.ones(5, np.float32))


def model(ranks: Ranks) -> None:
    """A compiled model: the bits of lowerkit's own engine where each sum has two terms."""
    x, path = np.load(ranks.folder / "x.npy"), ranks.folder / "model.lk"
    theirs = ranks.load("model.lk").run(x)[0]
    native = join_mesh(path, DirectoryStore(ranks.folder / "model"), ranks.rank, ranks.size, threads=1).run(x)[0]
    assert same_bits(theirs, native)
    np.testing.assert_allclose(theirs, np.load(ranks.folder / "y.npy"), rtol=1e-4, atol=1e-5)


def forked(ranks: Ranks) -> None:
    """A child of a rank has no part in its group."""
    session = ranks.load("sum.lk")
    child = os.fork()
    if not child:
        code = 1
        try:
            session.run(X)
        except LowerkitError as error:
            code = 0 if error.code == "LK1010" and "forked" in error.message else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_allclose(session.run(X)[0], expected(X, ranks.size), rtol=1e-6)


FUNCTIONS: dict[int, list[Callable[[Ranks], None]]] = {
    2: [collectives, messages, unequal_messages, artifacts, shapes, indices, late, model],
    4: [collectives, messages, axes, model],
}
"""By the number of ranks."""
TOGETHER: dict[int, list[list[Callable[[Ranks], None]]]] = {
    2: [[collectives, messages, artifacts, shapes, model], [unequal_messages, indices], [late]],
    4: [FUNCTIONS[4]],
}
"""The same, split for ranks that run side by side: what waits for deadlines waits beside the others."""
assert all({each for some in TOGETHER[size] for each in some} == set(FUNCTIONS[size]) for size in FUNCTIONS)


@contextmanager
def _raises(pattern: str) -> Generator[None]:
    """Expects an error whose text, as people read it, fits a pattern."""
    with pytest.raises(LowerkitError) as caught:
        yield
    text = caught.value.render()
    assert re.search(f"(?s){pattern}", text), text


def verdicts(ranks: Ranks, functions: Sequence[Callable[[Ranks], None]]) -> dict[str, str]:
    """Runs functions; returns by name what each raised, an empty text where it raised nothing; stops at the first."""
    results: dict[str, str] = {}
    for function in functions:
        try:
            function(ranks)
        except BaseException:
            results[function.__name__] = traceback.format_exc()[-3000:]
            break
        results[function.__name__] = ""
    return results
