"""Special values of large inputs stand together in few cases, and none of them is left out."""

from __future__ import annotations

import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.special_values import special_inputs, special_inputs_together
from lowerkit.runtimes.manifest import Signature, TensorSpec


def signature(*dtypes: str) -> Signature:
    return Signature(inputs=[TensorSpec(f"x{place}", dtype, []) for place, dtype in enumerate(dtypes)])


def test_every_value_fills_a_row_and_stands_alone_in_one() -> None:
    given = signature("f32", "i32", "i1")
    for rows in (3, 40):
        example: list[Array] = [
            np.ones((rows, 16), np.float32),
            np.full((rows, 16), 7, np.int32),
            np.zeros((rows, 16), bool),
        ]
        cases = list(special_inputs_together(given, example))
        apart = [case for case in special_inputs(given, example) if case.name not in ("mixed", "denormals")]
        assert len(cases) < len(apart)
        for place in range(3):
            wanted = {case.inputs[place].reshape(-1)[-1].tobytes() for case in apart if "a row of" in case.name}
            changed = [case for case in cases if case.name.startswith(f"input {place}, ")]
            whole = [row for case in changed if ", rows" in case.name for row in case.inputs[place]]
            assert wanted - {example[place][0, 0].tobytes()} <= {row[0].tobytes() for row in whole}
            assert all((row.view(np.uint8) == np.resize(row[:1].view(np.uint8), row.nbytes)).all() for row in whole)
            single = [row for case in changed if "an element" in case.name for row in case.inputs[place]]
            assert {int((row != example[place][0, 0]).sum()) for row in single} <= {0, 1}


def test_vectors_and_numbers_have_them_too() -> None:
    cases = list(special_inputs_together(signature("f32"), [np.ones(5, np.float32)]))
    values = np.concatenate([case.inputs[0] for case in cases])
    assert np.isnan(values).any() and np.isposinf(values).any() and np.isneginf(values).any()
    example: list[Array] = [np.ones((), np.float32), np.ones((0, 3), np.float32)]
    cases = list(special_inputs_together(signature("f32", "f32"), example))
    assert sum(np.isnan(case.inputs[0]).any() for case in cases) >= 2
