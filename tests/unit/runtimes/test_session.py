"""A loaded artifact: results, arguments without copies, every mismatch named, states, threads, forks."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.errors import ArtifactError, RuntimeFault, UsageError
from lowerkit.runtimes import _native
from lowerkit.runtimes.bound_model import BoundModel
from lowerkit.runtimes.manifest import COPY_KERNEL, Buffer, Dim, Signature, Step, TensorSpec
from lowerkit.runtimes.session import Session, load
from tests.support.handmade_code import f32, handmade_code, manifest_of, reference, write_tanh_of_sum


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return load(write_tanh_of_sum(tmp_path / "model.lk"), threads=2)


def random(rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_results_do_not_depend_on_threads_or_on_the_order_of_shapes(tmp_path: Path, threads: int) -> None:
    session = load(write_tanh_of_sum(tmp_path / "model.lk"), threads=threads)
    for rows in (1, 8, 3, 8, 1, 5):
        x = random(rows)
        (y,) = session.run(x)
        np.testing.assert_allclose(y, reference(x), rtol=1e-6, atol=1e-7)


def test_outputs_of_two_runs_do_not_share_memory(session: Session) -> None:
    first = session.run(random(2))[0]
    kept = first.copy()
    session.run(random(2) + 1)
    np.testing.assert_array_equal(first, kept)


def test_named_inputs(session: Session) -> None:
    np.testing.assert_array_equal(session.run(x=random(3))[0], session.run(random(3))[0])


def test_every_mismatch_is_named_at_once(tmp_path: Path) -> None:
    signature = Signature(
        inputs=[f32("a", "n", 4), TensorSpec("b", "i64", ["n"]), f32("c", 2), f32("d", ("mul", "n", 2))],
        outputs=[f32("y", "n", 4)],
        dims=[Dim("n", 2, 8)],
    )
    buffers = [Buffer("input", ("mul", "n", 16), index=0), Buffer("output", ("mul", "n", 16), index=0)]
    session = save_and_load(tmp_path, manifest_of(signature, buffers, [Step(COPY_KERNEL, [0, 1])]))
    with pytest.raises(RuntimeFault) as caught:
        session.run(np.zeros((3, 4)), np.zeros(3, np.float32), c=np.zeros((2, 1), np.float32), e=1)
    message = str(caught.value)
    assert caught.value.code == "LK8004"
    for part in (
        "the model has no input 'e'",
        "'a' has dtype f64, expected f32",
        "'b' has dtype f32, expected i64",
        "'c' has rank 2 (shape [2, 1]), expected rank 1",
        "input 'd' is missing",
        "a: f32[n, 4], b: i64[n], c: f32[2], d: f32[(n * 2)]",
    ):
        assert part in message
    zeros = np.zeros
    with pytest.raises(RuntimeFault) as caught:
        session.run(zeros((9, 5), "f4"), zeros(3, "i8"), zeros(7, "f4"), zeros(18, "f4"))
    for part in (
        "input 'a', axis 1: 5, expected 4",
        "input 'b', axis 0: 3, expected n = 9 (n is 9 in input 'a', axis 0)",
        "input 'c', axis 0: 7, expected 2",
        "dim 'n' is 9 (input 'a', axis 0), its range is 2..8",
    ):
        assert part in str(caught.value)
    assert "input 'd'" not in str(caught.value).split("hint")[0], "18 = 9 * 2 fits"


def test_a_dim_that_occurs_only_in_an_expression_is_solved_for(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("a", ("add", ("mul", "n", 2), 1))], outputs=[f32("y", "n")], dims=[Dim("n", 1)])
    buffers = [
        Buffer("input", ("mul", ("add", ("mul", "n", 2), 1), 4), index=0),
        Buffer("alias", ("mul", "n", 4), target=0, offset=("mul", "n", 4)),
        Buffer("output", ("mul", "n", 4), index=0),
    ]
    session = save_and_load(tmp_path, manifest_of(signature, buffers, [Step(COPY_KERNEL, [1, 2])]))
    x = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(session.run(x)[0], x[3:6])
    with pytest.raises(RuntimeFault, match=r"8 is no value of \(\(n \* 2\) \+ 1\)"):
        session.run(np.zeros(8, np.float32))


@pytest.mark.parametrize("bad", [1.5, [1.0], None, "text"])
def test_what_is_no_array_is_refused(session: Session, bad: Any) -> None:
    with pytest.raises(RuntimeFault, match="is not an array"):
        session.run(bad)


def test_arrays_that_kernels_cannot_read_directly_are_copied(session: Session) -> None:
    x = random(4)
    transposed = np.asfortranarray(x)
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 4)
    assert not shifted.flags.aligned
    for variant in (transposed, shifted, np.repeat(x, 2, axis=0)[::2]):
        np.testing.assert_array_equal(session.run(variant)[0], session.run(x)[0])
    with pytest.raises(RuntimeFault, match="dtype >f4"):
        session.run(x.astype(">f4"))


def test_dlpack_and_torch_tensors_go_in_without_a_copy(session: Session) -> None:
    torch = pytest.importorskip("torch")
    from lowerkit.runtimes.arguments import as_array

    tensor = torch.tensor(random(3), requires_grad=True)
    array = as_array(session.signature.inputs[0], tensor, [])
    assert array is not None
    assert array.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(session.run(tensor)[0], session.run(random(3))[0])
    half = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    array = as_array(TensorSpec("h", "bf16", [2, 3]), half, [])
    assert array is not None
    assert array.ctypes.data == half.data_ptr()
    assert array.astype(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    problems: list[str] = []
    assert as_array(TensorSpec("m", "f32", [2]), torch.zeros(2, device="meta"), problems) is None
    assert problems


def test_torch_tensors_of_lazy_negation_give_their_values(session: Session) -> None:
    torch = pytest.importorskip("torch")
    negative = torch.complex(torch.tensor(0 * random(3)), torch.tensor(random(3))).conj().imag
    assert negative.is_neg()
    np.testing.assert_array_equal(session.run(negative)[0], session.run(-random(3))[0])


def test_profile_names_each_step(session: Session) -> None:
    first, second = session.profile(random(8))
    assert (first.name, first.flops, second.location) == ("sum", 32, "model.py:4")
    assert first.nanoseconds > 0


def test_states_live_between_runs_until_they_are_reset(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("x", 4)], outputs=[f32("y", 4)], states=[f32("total", 4), f32("zero", 4)])
    buffers = [
        Buffer("input", 16, index=0),
        Buffer("state", 16, index=0),
        Buffer("arena", 16),
        Buffer("output", 16, index=0),
    ]
    steps = [Step(0, [0, 1, 2], tasks=4), Step(COPY_KERNEL, [2, 1]), Step(COPY_KERNEL, [2, 3])]
    manifest = manifest_of(signature, buffers, steps, features=["states"], state_initials={"total": "start"})
    start = np.array([10, 20, 30, 40], np.float32)
    session = save_and_load(tmp_path, manifest, {"start": start})
    one = np.ones(4, np.float32)
    assert session.run(one)[0].tolist() == [11, 21, 31, 41]
    assert session.run(one)[0].tolist() == [12, 22, 32, 42]
    session.reset()
    assert session.run(one)[0].tolist() == [11, 21, 31, 41]


def test_each_thread_has_scratch_of_its_own(tmp_path: Path) -> None:
    signature = Signature(outputs=[TensorSpec("addresses", "i64", [64])])
    buffers = [Buffer("output", 512, index=0)]
    session = save_and_load(
        tmp_path, manifest_of(signature, buffers, [Step(1, [0], tasks=64, scratch_bytes=1000)]), threads=4
    )
    # Which threads come in time is the scheduler's: the caller takes what no other has claimed.
    distinct = sorted({int(address) for _ in range(50) for address in session.run()[0]})
    assert 1 <= len(distinct) <= 4
    assert all(address % 64 == 0 for address in distinct)
    assert all(b - a >= 1000 for a, b in pairwise(distinct))


def test_dims_reach_the_kernel(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("x", "n")], outputs=[TensorSpec("y", "i64", ["n"])], dims=[Dim("n")])
    buffers = [Buffer("output", ("mul", "n", 8), index=0)]
    step = Step(2, [0], dims=[("floordiv", ("mul", "n", 100), 3)], tasks="n")
    session = save_and_load(tmp_path, manifest_of(signature, buffers, [step]))
    for n in (1, 7, 200):
        assert session.run(np.zeros(n, np.float32))[0].tolist() == [n * 100 // 3] * n


def test_empty_tensors(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("x", "n")], outputs=[f32("y", "n")], dims=[Dim("n", 0)])
    size = ("mul", "n", 4)
    buffers = [Buffer("input", size, index=0), Buffer("output", size, index=0)]
    session = save_and_load(tmp_path, manifest_of(signature, buffers, [Step(COPY_KERNEL, [0, 1])]))
    assert session.run(np.zeros(0, np.float32))[0].shape == (0,)
    large = np.arange(1 << 20, dtype=np.float32)
    np.testing.assert_array_equal(session.run(large)[0], large)


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (Buffer("input", 400, index=0), "has 400 bytes, its tensor 16"),
        (Buffer("weight", 400, weight="w"), "has 400 bytes, its tensor 16"),
        (Buffer("alias", 400, target=1), "takes bytes 0 to 400 of buffer 1, which has 16"),
        (Buffer("alias", 16, target=1, offset=-16), "takes bytes -16"),
        (Buffer("input", 16, index=3), "is input 3 of 1"),
        (Buffer("weight", 16, weight="other"), "which is not stored"),
        (Buffer("alias", 16, target=0), "leads nowhere"),
        (Buffer("arena", -16), "has -16 bytes"),
        (Buffer("arena", ("floordiv", 1, 0)), "division by zero"),
    ],
)
def test_a_manifest_that_leads_out_of_bounds_is_refused(tmp_path: Path, buffer: Buffer, reason: str) -> None:
    signature = Signature(inputs=[f32("x", 4)], outputs=[f32("y", 4)])
    buffers = [buffer, Buffer("output", 16, index=0)]
    manifest = manifest_of(signature, buffers, [Step(0, [0, 0, 1], tasks=4)])
    with pytest.raises(ArtifactError, match=reason) as caught:
        save_and_load(tmp_path, manifest, {"w": np.zeros(4, np.float32)}).run(np.zeros(4, np.float32))
    assert caught.value.code == "LK8001"


def test_missing_cpu_features_are_all_named(tmp_path: Path) -> None:
    path = write_tanh_of_sum(tmp_path / "model.lk", level="moon-v9", requires=["sse2", "moon1", "+moon2"])
    with pytest.raises(RuntimeFault, match="cpu:moon-v9: this CPU lacks moon1, moon2") as caught:
        load(path)
    assert caught.value.code == "LK8003"


def test_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="target 'npu'") as caught:
        load(write_tanh_of_sum(tmp_path / "model.lk", target="npu"))
    assert caught.value.code == "LK8003"


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_absurd_thread_counts_are_refused(tmp_path: Path, threads: int) -> None:
    with pytest.raises(UsageError, match=str(threads)):
        load(write_tanh_of_sum(tmp_path / "model.lk"), threads=threads)


def test_a_session_may_be_used_by_several_threads(session: Session) -> None:
    failures: list[int] = []

    def work(rows: int) -> None:
        x = random(rows)
        expected = reference(x)
        for _ in range(50):
            if not np.allclose(session.run(x)[0], expected, rtol=1e-6, atol=1e-7):
                failures.append(rows)

    workers = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 5, 8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_session_survives_a_fork(session: Session) -> None:
    expected = session.run(random(8))[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if np.array_equal(session.run(random(8))[0], expected) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(session.run(random(8))[0], expected)


def test_the_manifest_alone_defines_a_model_without_kernels(tmp_path: Path) -> None:
    signature = Signature(inputs=[f32("x", 4)], outputs=[f32("y", 4)])
    buffers = [Buffer("weight", 16, weight="w"), Buffer("output", 16, index=0)]
    session = save_and_load(
        tmp_path, manifest_of(signature, buffers, [Step(COPY_KERNEL, [0, 1])]), {"w": np.arange(4, dtype=np.float32)}
    )
    assert session.run(np.zeros(4, np.float32))[0].tolist() == [0, 1, 2, 3]
    assert session.weight("w").tolist() == [0, 1, 2, 3]
    assert "x: f32[4]" in repr(session)


def save_and_load(tmp_path: Path, manifest: Any, weights: Any = None, threads: int = 2) -> Session:
    from lowerkit.artifact.writer import write_artifact

    write_artifact(tmp_path / "model.lk", manifest, handmade_code(), weights or {})
    return load(tmp_path / "model.lk", threads=threads)


def test_a_view_of_terabytes_is_refused_before_it_is_copied(session: Session) -> None:
    for value in (np.broadcast_to(np.float32(1), (1 << 42, 4)), np.broadcast_to(np.float32(1), (2, 1 << 43))):
        with pytest.raises(RuntimeFault) as caught:
            session.run(value)
        assert caught.value.code == "LK8004"


def test_a_tensor_without_values_is_refused(session: Session) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(random(2).shape)
    with pytest.raises(RuntimeFault, match="FakeTensor has a shape and no values"):
        session.run(fake)
    assert np.array_equal(session.run(torch.nn.Parameter(torch.from_numpy(random(2))))[0], session.run(random(2))[0])


def test_a_loop_that_does_not_end_is_a_diagnostic(session: Session) -> None:
    class Endless:
        def run(self, *_: object) -> None:
            raise OverflowError("its loops have not ended after 5 turns")

    bound = BoundModel({}, Endless(), (), 0, 0, {}, (), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeFault, match="after 5 turns") as caught:
        bound.run(_native.ThreadPool(1), [], _native.Memory(0))
    assert caught.value.code == "LK8014"
