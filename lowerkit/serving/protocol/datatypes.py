"""The datatypes of the protocol and the dtypes of a signature: one table."""

from __future__ import annotations

from collections.abc import Mapping

DATATYPES: Mapping[str, str] = {
    "BOOL": "i1", "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64",
    "INT8": "i8", "INT16": "i16", "INT32": "i32", "INT64": "i64",
    "FP16": "f16", "FP32": "f32", "FP64": "f64", "BF16": "bf16",
}  # fmt: skip
"""Datatype of the protocol to dtype of a signature. BYTES, which are texts, have none."""

NAMES: Mapping[str, str] = {dtype: name for name, dtype in DATATYPES.items()}
"""Dtype of a signature to datatype of the protocol."""
