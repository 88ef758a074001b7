"""Folders that show a finding again: a script, the IR it starts from, the inputs.

The script runs one pass, or compiles one region, and compares with the numpy interpreter. It prints both values and
ends with exit code 1 while the bug is there, 0 when it is gone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.artifact.atomic_file import replace_file
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import InputError, LowerkitError
from lowerkit.parity.bisect.cut import cut_program
from lowerkit.parity.bisect.divergence import same
from lowerkit.parity.bisect.evaluation import Evaluation, evaluate
from lowerkit.parity.bisect.finding import Finding
from lowerkit.parity.bisect.prefixes import Piece
from lowerkit.parity.bisect.replay import pack_arrays
from lowerkit.passes.base import PassContext
from lowerkit.passes.registry import find_pass
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.program import Program
from lowerkit.program.stage_file import write_stage
from lowerkit.runtimes.manifest import HOST

if TYPE_CHECKING:
    from lowerkit.compiled import CompileOptions

_REWRITE_SCRIPT = '''"""{sentence}.

{cause}

    python reproduce.py     exit code 1 while the bug is there, 0 when it is gone
"""

import sys
from pathlib import Path

from lowerkit.parity.bisect.evaluation import evaluate
from lowerkit.parity.bisect.replay import read_inputs, show_difference
from lowerkit.passes.base import PassContext
from lowerkit.passes.function_by_function import run_on_functions
from lowerkit.passes.registry import find_pass
from lowerkit.program.stage_file import read_stage

folder = Path(__file__).parent
program = read_stage(folder / "before.mlir", "{stage}")
inputs = read_inputs(folder / "inputs.npz", program)
expected = evaluate(program, inputs, float64=True).outputs
run_on_functions(find_pass("{name}")(), program.module, PassContext(program.weights), "{target}")
actual = evaluate(program, inputs, float64=True).outputs
print(program.text())
sys.exit(show_difference(actual, expected))
'''

_KERNEL_SCRIPT = '''"""{sentence}.

{cause}

    python reproduce.py     exit code 1 while the bug is there, 0 when it is gone
"""

import sys
from pathlib import Path

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.bisect.evaluation import evaluate
from lowerkit.parity.bisect.replay import kernel_limit, read_inputs, show_difference
from lowerkit.program.stage_file import read_stage

folder = Path(__file__).parent
program = read_stage(folder / "region.mlir", "fused")
inputs = read_inputs(folder / "inputs.npz", program)
print(program.text())
expected = evaluate(program, inputs, float64=True).outputs
allow = {allow!r}
limit = kernel_limit(program, inputs, expected, allow)
compiled = compile_program(program, CompileOptions("{target}", frozenset(allow), golden=False, device={device!r}))
sys.exit(show_difference(compiled.session.run(*inputs), expected, limit))
'''

_MEMORY_SCRIPT = '''"""{sentence}.

{cause}

    python reproduce.py     exit code 1 while the bug is there, 0 when it is gone
"""

import sys
from pathlib import Path

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.bisect.evaluation import evaluate
from lowerkit.parity.bisect.recorded_run import MemoryFault, recorded_run
from lowerkit.parity.bisect.replay import read_inputs, show_difference
from lowerkit.program.stage_file import read_stage

folder = Path(__file__).parent
program = read_stage(folder / "region.mlir", "fused")
inputs = read_inputs(folder / "inputs.npz", program)
fused = evaluate(program, inputs, float64=False, keep=True)
allow = {allow!r}
options = CompileOptions("{target}", frozenset(allow), golden=False, device={device!r})
session = compile_program(program, options).session
fault = recorded_run(session, inputs, fused, allow).fault
if not isinstance(fault, MemoryFault):
    print("no value is overwritten: the bug is gone")
    sys.exit(0)
print(f"step {{fault.writer}} writes over the value of step {{fault.maker}}, which step {{fault.reader}} reads")
sys.exit(show_difference([fault.actual], [fault.expected]))
'''


def pass_reproducer(
    program: Program, name: str, before: Evaluation, finding: Finding, target: str = HOST
) -> tuple[dict[str, bytes], str]:
    """Returns the folder for a pass that changes what is computed, and how small it could be made.

    Args:
        program: with the module before the pass.
        name: the pass.
        before: its evaluation in float64, with values.
        finding: what was found in the module after the pass.
        target: whose pass it is; functions of accelerators are not cut.
    """
    node = finding.node.partition("@")[0]
    for reach in (0, 1, 2, 4, 8) if target == HOST else ():
        piece = cut_program(program, before, node, reach)
        if piece is not None and _shows(piece, name):
            return _pass_files(
                piece.program, piece.inputs, name, finding, HOST
            ), f"the ops of {node} and {reach} ops around"
    inputs = before.arguments
    specs = program.signature.inputs
    own = [array.astype(NUMPY_DTYPES[spec.dtype]) for array, spec in zip(inputs, specs, strict=True)]
    return _pass_files(program, own, name, finding, target), "the whole module: no smaller part shows it"


def kernel_reproducer(piece: Piece, finding: Finding, options: CompileOptions) -> dict[str, bytes]:
    """Returns the folder for a region whose kernel computes something else."""
    script = _KERNEL_SCRIPT.format(sentence=finding.sentence, cause=finding.cause, **_settings(options))
    return _files(piece.program, piece.inputs, "region.mlir", script)


def memory_reproducer(
    program: Program, inputs: Sequence[Array], finding: Finding, options: CompileOptions
) -> dict[str, bytes]:
    """Returns the folder for a value that is overwritten while it is needed."""
    script = _MEMORY_SCRIPT.format(sentence=finding.sentence, cause=finding.cause, **_settings(options))
    return _files(program, inputs, "region.mlir", script)


def _settings(options: CompileOptions) -> dict[str, object]:
    return {"target": options.target, "device": options.device, "allow": sorted(options.allow)}


def write_reproducer(files: dict[str, bytes], folder: Path) -> None:
    """Writes the files of a reproducer into ``folder``, which is made.

    Raises:
        InputError: LK1005, the folder cannot be written.
        ResourceError: LK7001, the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("LK1005", f"the reproducer cannot be written to {folder}: {error.strerror}") from error
    for name, data in files.items():
        with replace_file(folder / name) as file:
            file.write(data)


def _shows(piece: Piece, name: str) -> bool:
    try:
        expected = evaluate(piece.program, piece.inputs, float64=True).outputs
        copy = piece.program.copy()
        find_pass(name)().run(copy.module, PassContext(copy.weights))
        actual = evaluate(copy, piece.inputs, float64=True).outputs
    except (LowerkitError, ValueError, RuntimeError):
        return False
    return not all(same(*pair) for pair in zip(actual, expected, strict=True))


def _pass_files(
    program: Program, inputs: Sequence[Array], name: str, finding: Finding, target: str
) -> dict[str, bytes]:
    script = _REWRITE_SCRIPT.format(
        sentence=finding.sentence, cause=finding.cause, stage=program.stage, name=name, target=target
    )
    return _files(program, inputs, "before.mlir", script)


def _files(program: Program, inputs: Sequence[Array], ir_name: str, script: str) -> dict[str, bytes]:
    stage = "fused" if program.stage == "compiled" else program.stage
    with tempfile.TemporaryDirectory(prefix="lowerkit-") as folder:
        path = Path(folder) / ir_name
        write_stage(replace(program, stage=stage), path)
        files = {entry.name: entry.read_bytes() for entry in sorted(Path(folder).iterdir())}
    names = [spec.name for spec in program.signature.inputs]
    files["inputs.npz"] = pack_arrays(dict(zip(names, inputs, strict=True)))
    files["reproduce.py"] = script.encode()
    return files
