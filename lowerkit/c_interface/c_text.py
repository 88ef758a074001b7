"""The header and the example that ``emit-c`` writes beside the object."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.c_interface.bad_index_text import BAD_INDEX_STATUS, RUN, RUN_WITH_CHECKS, bad_index_text, checked_places
from lowerkit.c_interface.layout import Layout
from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.conditions import condition_text
from lowerkit.runtimes.expressions import Expr, to_text
from lowerkit.runtimes.manifest import ITEM_SIZES, ProgramSpec, TensorSpec

_TYPES = {
    "f64": "double", "f32": "float", "f16": "uint16_t", "bf16": "uint16_t", "i64": "int64_t", "i32": "int32_t",
    "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "i1": "uint8_t", "u64": "uint64_t", "u32": "uint32_t",
    "u16": "uint16_t",
}  # fmt: skip
_C_WORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
})  # fmt: skip
_RESERVED = ("state", "arena", "parallel", "pool", "bad_index")


def identifier(text: str) -> str:
    """Returns a C identifier that reads like ``text``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if name in _C_WORDS or keyword.iskeyword(name) else name


@dataclass(frozen=True)
class Names:
    """The fields of the struct of arguments: symbolic dims, inputs and outputs, no two alike."""

    dims: dict[str, str]
    inputs: list[str]
    outputs: list[str]

    @classmethod
    def of(cls, program: ProgramSpec) -> Names:
        """Names the fields after the signature."""
        taken: set[str] = set(_RESERVED)

        def unique(text: str) -> str:
            stem = name = identifier(text)
            number = 1
            while name in taken:
                name, number = f"{stem}_{number}", number + 1
            taken.add(name)
            return name

        signature = program.signature
        return cls(
            {dim.name: unique(dim.name) for dim in signature.dims},
            [unique(spec.name) for spec in signature.inputs],
            [unique(spec.name) for spec in signature.outputs],
        )


def header_text(name: str, artifact: Artifact, program: ProgramSpec, layout: Layout) -> str:
    """Returns ``NAME.h``: sizes, the struct of arguments, the functions, each with what a caller must know."""
    names, upper = Names.of(program), name.upper()
    signature = program.signature
    fields: list[str] = []
    for dim, (low, high) in layout.ranges.items():
        fields.append(f"    int64_t {names.dims[dim]}; /* {low} to {high} */")
    for spec, field in zip(signature.inputs, names.inputs, strict=True):
        fields.append(f"    const {_TYPES[spec.dtype]} *{field}; /* {_described(spec)} */")
    for spec, field in zip(signature.outputs, names.outputs, strict=True):
        fields.append(f"    {_TYPES[spec.dtype]} *{field}; /* written: {_described(spec)} */")
    if signature.states:
        fields.append(f"    void *state; /* {upper}_STATE_BYTES; call {name}_reset before the first run */")
    fields += [
        f"    void *arena; /* {upper}_ARENA_BYTES, at a multiple of 64; holds nothing between runs */",
        f"    {name}_parallel *parallel; /* NULL: the thread that calls does all the work */",
        "    void *pool; /* handed to parallel as it is */",
    ]
    checks = checked_places(program)
    if checks:
        fields.append(f"    {name}_bad_index *bad_index; /* NULL, or written where a run returns 3 */")
    sizes = [
        f"#define {upper}_{field.upper()}_BYTES(a) ((size_t)({_size(spec, name, names)}))"
        for spec, field in zip([*signature.inputs, *signature.outputs], [*names.inputs, *names.outputs], strict=True)
    ]
    states = (
        f"\n#define {upper}_STATE_BYTES ((size_t){layout.state_bytes})\n"
        f"/* Puts every state to its initial value. */\nvoid {name}_reset(void *state);\n"
        if signature.states
        else ""
    )
    return _HEADER.format(
        name=name,
        upper=upper,
        source=artifact.path.name,
        content_id=artifact.manifest.content_id,
        cpu=program.level,
        arena=layout.arena_bytes,
        scratch=layout.scratch_bytes,
        fields="\n".join(fields),
        sizes="\n".join(sizes),
        guards=_guards(program),
        statuses=BAD_INDEX_STATUS if checks else ".",
        bad_index=bad_index_text(name, checks),
        arithmetic=_ARITHMETIC.format(name=name) if _divides(program) else "",
        states=states,
        supported=_supported(name, program),
    )


def example_text(name: str, program: ProgramSpec) -> str:
    """Returns ``example.c``: reads each input from a file of raw values, runs once, writes each output to a file."""
    names, upper = Names.of(program), name.upper()
    fields = [*names.dims.values(), *names.inputs]
    arguments = " ".join([*(field.upper() for field in names.dims.values()), *(f"{x}.bin" for x in names.inputs)])
    body = [f"    a.{field} = atoll(argv[{number + 1}]);" for number, field in enumerate(names.dims.values())]
    first_file = len(names.dims) + 1
    body += [
        f"    a.{field} = read_values(argv[{first_file + number}], {upper}_{field.upper()}_BYTES(a));"
        for number, field in enumerate(names.inputs)
    ]
    body += [f"    a.{field} = malloc({upper}_{field.upper()}_BYTES(a) + 1);" for field in names.outputs]
    body.append(f"    a.arena = aligned_alloc(128, {upper}_ARENA_BYTES(1) + 128);")
    if program.signature.states:
        body += [f"    a.state = aligned_alloc(128, {upper}_STATE_BYTES);", f"    {name}_reset(a.state);"]
    writes = [
        f'    write_values("{field}.bin", a.{field}, {upper}_{field.upper()}_BYTES(a));' for field in names.outputs
    ]
    return _EXAMPLE.format(
        name=name,
        count=len(fields) + 1,
        arguments=arguments,
        body="\n".join(body),
        run=(RUN_WITH_CHECKS if checked_places(program) else RUN).format(name=name),
        writes="\n".join(writes),
    )


def _described(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(to_text(extent) for extent in spec.shape)}] {_safe(spec.name)}"


def _safe(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ")


def _size(spec: TensorSpec, name: str, names: Names) -> str:
    factors = [_c_expression(extent, name, names) for extent in spec.shape]
    return " * ".join([*factors, str(ITEM_SIZES[spec.dtype])])


def _c_expression(expr: Expr, name: str, names: Names) -> str:
    if isinstance(expr, int):
        return str(expr)
    if isinstance(expr, str):
        return f"(a).{names.dims[expr]}"
    assert len(expr) == 3, "a manifest holds no kernel dims"
    left, right = _c_expression(expr[1], name, names), _c_expression(expr[2], name, names)
    infix = {"add": "+", "sub": "-", "mul": "*"}.get(expr[0])
    return f"({left} {infix} {right})" if infix else f"{name}_{expr[0]}({left}, {right})"


def _divides(program: ProgramSpec) -> bool:
    specs: Sequence[TensorSpec] = [*program.signature.inputs, *program.signature.outputs]
    return any(_has_call(extent) for spec in specs for extent in spec.shape)


def _has_call(expr: Expr) -> bool:
    if isinstance(expr, (int, str)) or len(expr) == 2:
        return False
    return expr[0] not in ("add", "sub", "mul") or _has_call(expr[1]) or _has_call(expr[2])


def _guards(program: ProgramSpec) -> str:
    """Returns the conditions on dims as a part of a sentence."""
    texts = [condition_text(guard.condition) for guard in program.signature.guards]
    return f" or one of these does not hold:\n   {_safe('; '.join(texts))};\n   " if texts else ""


def _supported(name: str, program: ProgramSpec) -> str:
    """Returns the inline function that asks the CPU for the features that the code uses."""
    features = sorted(feature.lstrip("+") for feature in program.requires)
    tests = [f'__builtin_cpu_supports("{f}")' for f in features if f not in _NOT_IN_GCC]
    if any(feature.startswith("amx-") for feature in features):
        # Linux hands out the tile registers on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
        tests.append("syscall(158, 0x1023, 18) == 0")
    condition = " &&\n           ".join(tests) or "1"
    return (
        f"/* Whether this CPU has what the code uses ({program.level}). */\n"
        f"static inline int {name}_supported(void) {{\n    __builtin_cpu_init();\n    return {condition};\n}}\n"
    )


_NOT_IN_GCC = frozenset({"movbe", "lzcnt", "f16c", "amx-tile", "amx-int8", "amx-bf16", "avx512fp16"})
"""Features that GCC 10 has no name for; CPUs with AVX2, or with AMX's system call, have them."""

_HEADER = """\
/* {name}: made by `lowerkit emit-c` from {source} (content id {content_id}).
   Link {name}.o with -lm. Values lie in row-major order; nothing is allocated, nothing is global, no thread is started:
   runs with arenas and states of their own may go on at the same time. */
#ifndef LOWERKIT_{upper}_H
#define LOWERKIT_{upper}_H

#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Does the tasks begin to end - 1 of a step; `thread` is 0 to the number of threads - 1, and no two calls that go on at
   the same time may share it. */
typedef void {name}_task(void *work, int64_t begin, int64_t end, int thread);
/* Calls task(work, begin, end, thread) until 0 to count - 1 are done, on any number of threads, then returns. */
typedef void {name}_parallel(void *pool, int64_t count, {name}_task *task, void *work);

/* Bytes of the arena for a number of threads. */
#define {upper}_ARENA_BYTES(threads) ((size_t){arena} + (size_t){scratch} * (threads))

{bad_index}typedef struct {{
{fields}
}} {name}_arguments;

{arithmetic}{sizes}

/* Runs the model. Returns 0, 1 where a dim is out of its range{guards}, 2 where a pointer is NULL{statuses} */
int {name}_run(const {name}_arguments *arguments);
{states}
{supported}
#ifdef __cplusplus
}}
#endif

#endif
"""

_ARITHMETIC = """\
/* Integer arithmetic of shapes, rounding towards minus infinity. */
static inline int64_t {name}_floordiv(int64_t a, int64_t b) {{ return a / b - (a % b < 0); }}
static inline int64_t {name}_ceildiv(int64_t a, int64_t b) {{ return -{name}_floordiv(-a, b); }}
static inline int64_t {name}_mod(int64_t a, int64_t b) {{ return a % b + (a % b < 0 ? b : 0); }}
static inline int64_t {name}_min(int64_t a, int64_t b) {{ return a < b ? a : b; }}
static inline int64_t {name}_max(int64_t a, int64_t b) {{ return a > b ? a : b; }}

"""

_EXAMPLE = """\
/* cc -O2 example.c {name}.o -lm -o example && ./example {arguments} */
#include <stdio.h>
#include <stdlib.h>
#include "{name}.h"

static void *read_values(const char *path, size_t bytes) {{
    void *values = malloc(bytes + 1);
    FILE *file = fopen(path, "rb");
    if (!file || !values || fread(values, 1, bytes, file) != bytes)
        fprintf(stderr, "%s does not hold %zu bytes\\n", path, bytes), exit(1);
    fclose(file);
    return values;
}}

static void write_values(const char *path, const void *values, size_t bytes) {{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(values, 1, bytes, file) != bytes || fclose(file)) perror(path), exit(1);
}}

int main(int argc, char **argv) {{
    {name}_arguments a = {{0}};
    if (argc != {count}) return fprintf(stderr, "usage: %s {arguments}\\n", argv[0]), 2;
    if (!{name}_supported()) return fprintf(stderr, "this CPU lacks what {name} was compiled for\\n"), 1;
{body}
{run}
{writes}
    return 0;
}}
"""
