from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lowerkit.program import weights as module
from lowerkit.program.weights import WeightStore


def test_arrays_are_read_only_and_not_copied() -> None:
    store = WeightStore()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    store.add("a", array)
    found = store.get("a")
    assert np.shares_memory(found, array)
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_nothing_is_read_before_it_is_needed() -> None:
    store = WeightStore()
    reads: list[str] = []

    def read() -> np.ndarray:
        reads.append("a")
        return np.ones((2, 2), np.float32)

    store.add("a", read, dtype="f32", shape=(2, 2))
    store.derive("b", ["a"], lambda a: a * 2, dtype="f32", shape=(2, 2))
    assert store.spec("b") == ("f32", (2, 2))
    assert store.nbytes("b") == 16
    assert reads == []
    assert store.get("b").tolist() == [[2, 2], [2, 2]]
    store.get("b")
    assert reads == ["a"]
    assert store.parents("b") == ("a",)


def test_spec_without_declaration_reads() -> None:
    store = WeightStore()
    store.add("a", lambda: np.ones(3, ml_dtypes.bfloat16))
    assert store.spec("a") == ("bf16", (3,))


def test_provider_that_contradicts_its_declaration() -> None:
    store = WeightStore()
    store.add("a", lambda: np.ones(3, np.float32), dtype="f32", shape=(4,))
    with pytest.raises(ValueError, match="declared"):
        store.get("a")


def test_names_are_unique() -> None:
    store = WeightStore()
    store.add("a", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="exists"):
        store.add("a", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="exists"):
        store.derive("a", [], lambda: np.zeros(1, np.float32))
    with pytest.raises(KeyError):
        store.derive("b", ["nobody"], lambda a: a)
    assert store.unique_name("a") == "a.1"
    assert store.unique_name("c") == "c"


def test_foreign_element_types_are_refused() -> None:
    store = WeightStore()
    with pytest.raises(TypeError, match="complex64"):
        store.add("a", np.zeros(1, np.complex64))
    with pytest.raises(TypeError, match="f8"):
        store.add("a", lambda: np.zeros(1), dtype="f8")


def test_digest_depends_on_type_shape_and_data_not_on_strides() -> None:
    store = WeightStore()
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    store.add("a", data)
    store.add("same", np.asfortranarray(data))
    store.add("reshaped", data.reshape(3, 2))
    store.add("retyped", data.view(np.float32))
    store.add("empty", np.zeros((0, 3), np.float32))
    store.add("scalar", np.array(1.0))
    assert store.digest("a") == store.digest("same")
    assert len({store.digest(name) for name in store.names()}) == len(store) - 1


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 100)
    store = WeightStore()
    reads: list[int] = []

    def reader(index: int, count: int) -> None:
        def read() -> np.ndarray:
            reads.append(index)
            return np.zeros(count, np.uint8)

        store.add(f"w{index}", read, dtype="u8", shape=(count,))

    reader(0, 60)
    reader(1, 60)
    reader(2, 200)
    for name in ("w0", "w0", "w1", "w0", "w2", "w2"):
        store.get(name)
    assert reads == [0, 1, 0, 2, 2]
