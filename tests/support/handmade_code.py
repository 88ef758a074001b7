"""A code image assembled by hand, and artifacts around it: the runtime is tested without the compiler."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from lowerkit.artifact.golden import golden_entries
from lowerkit.artifact.writer import write_artifact
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import (
    HOST,
    Buffer,
    Dim,
    GoldenSpec,
    ImportSite,
    KernelEntry,
    Manifest,
    ProgramSpec,
    Signature,
    Step,
    TensorSpec,
)

PAGE = 4096
CODE_ENTRY = "code/main-cpu.bin"
GOLDEN_OUTPUTS_ENTRY = "golden/outputs-main-cpu.safetensors"

# The arguments of a kernel: buffers in rdi, dims in rsi, task_begin in rdx, task_end in rcx, scratch in r8.
# A task is one element.

# buffers[2][i] = buffers[0][i] + buffers[1][i], f32
ADD = bytes.fromhex(
    "488b07"  # mov rax, [rdi]
    "4c8b4f08"  # mov r9, [rdi + 8]
    "4c8b5710"  # mov r10, [rdi + 16]
    "4839ca"  # loop: cmp rdx, rcx
    "7d16"  # jge end
    "f30f100490"  # movss xmm0, [rax + rdx * 4]
    "f3410f580491"  # addss xmm0, [r9 + rdx * 4]
    "f3410f110492"  # movss [r10 + rdx * 4], xmm0
    "48ffc2"  # inc rdx
    "ebe5"  # jmp loop
    "c3"  # end: ret
)

# buffers[0][i] = the address of the scratch, i64
SCRATCH = bytes.fromhex("488b074839ca7d094c8904d048ffc2ebf2c3")

# buffers[0][i] = dims[0], i64
FIRST_DIM = bytes.fromhex("488b074c8b0e4839ca7d094c890cd048ffc2ebf2c3")

# buffers[1][i] = tanhf(buffers[0][i]); the call goes through the import table, at `{disp}` from the next instruction
_TANH_HEAD = bytes.fromhex(
    "53" "4154" "4155" "4156" "4883ec08"  # push rbx, r12, r13, r14; keep the stack 16-byte aligned
    "488b1f" "4c8b6708" "4989d5" "4989ce"  # rbx = in, r12 = out, r13 = i, r14 = end
    "4d39f5" "7d17"  # loop: cmp r13, r14; jge end
    "f3420f1004ab"  # movss xmm0, [rbx + r13 * 4]
    "ff15"  # call [rip + disp]
)  # fmt: skip
_TANH_TAIL = bytes.fromhex(
    "f3430f1104ac" "49ffc5" "ebe4"  # movss [r12 + r13 * 4], xmm0; inc r13; jmp loop
    "4883c408" "415e" "415d" "415c" "5b" "c3"  # end: restore, ret
)  # fmt: skip

KERNELS = ("add", "scratch", "first_dim", "tanh")


@dataclass(frozen=True)
class HandmadeImage:
    """What the linker of a target gives: bytes, and where things are."""

    data: bytes
    entries: tuple[int, ...]
    imports: tuple[str, ...] = ("tanhf",)
    import_table_offset: int = PAGE
    import_sites: tuple[ImportSite, ...] = ()


def handmade_image() -> HandmadeImage:
    """Returns the four kernels, each at a multiple of 64, and an import table for tanhf on the second page."""
    code = bytearray()
    entries: list[int] = []
    for kernel in (ADD, SCRATCH, FIRST_DIM):
        entries.append(len(code))
        code += kernel + b"\xcc" * (-len(kernel) % 64)
    entries.append(len(code))
    call_end = len(code) + len(_TANH_HEAD) + 4
    code += _TANH_HEAD + struct.pack("<i", PAGE - call_end) + _TANH_TAIL
    code += b"\xcc" * (PAGE - len(code)) + bytes(PAGE)
    return HandmadeImage(bytes(code), tuple(entries))


def handmade_code() -> dict[str, bytes]:
    """Returns the bytes of :func:`handmade_image` as the code of the host."""
    return {CODE_ENTRY: handmade_image().data}


def f32(name: str, *shape: Expr) -> TensorSpec:
    return TensorSpec(name, "f32", list(shape))


def manifest_of(signature: Signature, buffers: Sequence[Buffer], steps: Sequence[Step], **fields: Any) -> Manifest:
    image = handmade_image()
    kernels = [KernelEntry(offset, name) for name, offset in zip(KERNELS, image.entries, strict=True)]
    program = ProgramSpec(
        signature=signature,
        buffers=list(buffers),
        steps=list(steps),
        kernels=kernels,
        code={HOST: CODE_ENTRY},
        imports=list(image.imports),
        import_table_offset=image.import_table_offset,
        requires=["sse2"],
        golden=GoldenSpec(GOLDEN_OUTPUTS_ENTRY),
    )
    return changed(Manifest(programs=[program], producer={"lowerkit": "0.1.0"}), **fields)


def changed(manifest: Manifest, **fields: Any) -> Manifest:
    """Returns a manifest of one program with other values of fields, of the program or of itself."""
    (program,) = manifest.programs
    own = {name: value for name, value in fields.items() if name in Manifest.__struct_fields__}
    rest = {name: value for name, value in fields.items() if name not in own}
    return replace(manifest, **{"programs": [replace(program, **rest)], **own})


def tanh_of_sum_manifest(columns: int = 4) -> Manifest:
    """``y = tanh(x + bias)`` for ``x: f32[n, columns]``, ``1 <= n <= 8``, ``bias: f32[n, columns]`` of up to 8 rows.

    The sum goes through an arena buffer, and the output through an alias of it.
    """
    size: Expr = ("mul", "n", columns * 4)
    tasks: Expr = ("mul", "n", columns)
    return manifest_of(
        Signature(inputs=[f32("x", "n", columns)], outputs=[f32("y", "n", columns)], dims=[Dim("n", 1, 8)]),
        [
            Buffer("input", size, index=0),
            Buffer("weight", 8 * columns * 4, weight="bias"),
            Buffer("arena", size),
            Buffer("output", size, index=0),
            Buffer("alias", size, target=2),
        ],
        [
            Step(0, [0, 1, 2], tasks=tasks, name="sum", kind="elementwise", location="model.py:3", flops=tasks),
            Step(3, [4, 3], tasks=tasks, name="tanh", kind="elementwise", location="model.py:4"),
        ],
    )


def bias_weight(columns: int = 4) -> np.ndarray[Any, Any]:
    return np.linspace(-1, 1, 8 * columns, dtype=np.float32).reshape(8, columns)


def reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.tanh(x + bias_weight(x.shape[1])[: len(x)])


def write_tanh_of_sum(path: Path, *, golden: bool = False, **fields: Any) -> Path:
    """Writes the artifact of :func:`tanh_of_sum_manifest`; ``fields`` replace fields of the manifest."""
    manifest = changed(tanh_of_sum_manifest(), **fields)
    weights = {"bias": bias_weight(), "unused": np.arange(5, dtype=np.int8)}
    entries: Mapping[str, bytes] = {"debug/ir.mlir": b"module {}\n"}
    write_artifact(path, manifest, handmade_code(), weights, entries)
    if golden:
        from lowerkit.runtimes.session import load

        x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
        entries = {**entries, **golden_entries([x], {GOLDEN_OUTPUTS_ENTRY: load(path, threads=1).run(x)})}
        write_artifact(path, manifest, handmade_code(), weights, entries)
    return path
