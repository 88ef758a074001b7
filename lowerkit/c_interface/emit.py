"""``emit-c``: an artifact as ``NAME.o``, ``NAME.h`` and ``example.c``.

The object holds the artifact's own machine code and weights, as they are, and beside them the step table as code
(:mod:`run_function`): so a C program computes the same bits as the runtime. Calls of the
C math library, which the runtime binds when it loads an artifact, become relocations that the linker binds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowerkit.c_interface.c_text import example_text, header_text, identifier
from lowerkit.c_interface.half_conversions import routine_ir
from lowerkit.c_interface.layout import plan_layout
from lowerkit.c_interface.run_function import RunFunction
from lowerkit.errors import UnsupportedError
from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.cpu.requirements import programs_for
from lowerkit.runtimes.manifest import HOST, WEIGHTS_ENTRY
from lowerkit.runtimes.memory_plan import arena_bytes
from lowerkit.runtimes.mesh.fit import mesh_label
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.cpu.objects.lower import llvm_ir_to_object

_GREATEST_OBJECT = (1 << 31) - (1 << 24)
"""Code reaches data of its object within 2 GiB; what the program itself has lies in between."""


@dataclass(frozen=True)
class EmittedC:
    """What a C program is built from, and the arena of one thread in bytes."""

    name: str
    object_file: bytes
    header: str
    example: str
    arena_bytes: int


def emit_c(
    artifact: Artifact, name: str | None = None, maxima: Mapping[str, int] | None = None, target: str | None = None
) -> EmittedC:
    """Makes the contents of the files.

    Args:
        artifact: opened and checked.
        name: prefix of files and symbols; None takes the artifact's stem.
        maxima: greatest values of dims that the signature leaves open.
        target: which of the programs, as it was compiled for a target; None is the first one.

    Raises:
        UsageError: LK1009, a dim has no maximum.
        UnsupportedError: LK4005, the artifact is too large, runs on a device, or is for a mesh of ranks.
        RuntimeFault: LK8005, it has no program for the target.
    """
    program = programs_for(artifact.manifest, target)[0]
    if program.devices:
        raise UnsupportedError(
            "LK4005",
            f"{artifact.path} runs on {', '.join(device.name for device in program.devices)}, a C object on the CPU",
            hint="compile the model with --target cpu",
        )
    if program.mesh:
        raise UnsupportedError(
            "LK4005", f"{artifact.path} is for a mesh {mesh_label(program)}, and a C object runs in one process"
        )
    name = identifier(name or artifact.path.stem)
    code, weights = artifact.entry_bytes(program.code.get(HOST, "")), artifact.entry_bytes(WEIGHTS_ENTRY)
    if code.size + weights.size > _GREATEST_OBJECT:
        raise UnsupportedError(
            "LK4005", f"{artifact.path} holds {code.size + weights.size} bytes, a C object at most 2 GiB"
        )
    layout = plan_layout(program, maxima or {})
    for end in (0, 1):  # contradictions show at the ends of the ranges: the runtime would find them at a run
        arena_bytes(program, {dim: found[end] for dim, found in layout.ranges.items()})
    routines, symbols = routine_ir(program.imports, f"{name}_")
    targets = [symbols[imported] for imported in program.imports]
    offsets = {tensor: stored.begin for tensor, stored in artifact.weights.items()}
    functions = RunFunction(name, program, layout, offsets).text()
    with tempfile.TemporaryDirectory(prefix="lowerkit-") as temporary:
        code_file, weights_file = Path(temporary) / "code.bin", Path(temporary) / "weights.bin"
        end = program.import_table_offset if program.imports else code.size
        code_file.write_bytes(code[:end].data)
        weights_file.write_bytes(weights.data)
        assembly = [
            f'.section .text.{name}_code,"ax",@progbits', ".p2align 12", f"{name}_code:", f'.incbin "{code_file}"',
            *(
                f".reloc {name}_code+{site.offset}, R_X86_64_GOTPCREL, {targets[site.slot]}{site.addend:+d}"
                for site in program.import_sites
            ),
            f'.section .rodata.{name}_weights,"a",@progbits', ".p2align 6", f"{name}_weights:",
            f'.incbin "{weights_file}"', ".byte 0",
        ]  # fmt: skip
        module = "".join(f'module asm "{line.replace(chr(34), chr(92) + "22")}"\n' for line in assembly)
        public = (f"{name}_run", f"{name}_reset", *(symbols[i] for i in program.imports if symbols[i] != i))
        data = llvm_ir_to_object(module + routines + functions, cpu_features(program.level), public)
    return EmittedC(
        name,
        data,
        header_text(name, artifact, program, layout),
        example_text(name, program),
        layout.arena_bytes + layout.scratch_bytes,
    )
