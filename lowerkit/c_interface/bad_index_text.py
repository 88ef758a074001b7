"""How the header and the example say which index was out of range."""

from __future__ import annotations

from lowerkit.runtimes.manifest import ProgramSpec


def checked_places(program: ProgramSpec) -> list[str]:
    """Returns the op and the source line of each check of indices, in the order of the steps."""
    steps = [(step.check.operator, step.location) for step in program.steps if step.check is not None]
    return [f"{operator} at {location}" if location else operator for operator, location in steps]


def bad_index_text(name: str, places: list[str]) -> str:
    """Returns the struct that says which index was out of range, and the texts of its first field."""
    if not places:
        return ""
    texts = ",\n".join(f'        "{_quoted(place)}"' for place in places)
    return _BAD_INDEX.format(name=name, texts=texts)


def _quoted(text: str) -> str:
    """Returns the inside of a C string, in plain characters."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return "".join(plain)


BAD_INDEX_STATUS = """,
   3 where an index is out of range: the states are as they were, and *bad_index, if it is not NULL, says which."""

_BAD_INDEX = """\
/* Element number `element` of the indices of a look-up or an update is `index`, where there are `extent` elements. */
typedef struct {{
    int64_t check; /* for {name}_check */
    int64_t element;
    int64_t index;
    int64_t extent;
}} {name}_bad_index;

/* The op and its line in the source of the model. */
static inline const char *{name}_check(int64_t check) {{
    static const char *const places[] = {{
{texts}
    }};
    return places[check];
}}

"""

RUN = """\
    if ({name}_run(&a) != 0) return fprintf(stderr, "a dim is out of its range or breaks a condition\\n"), 1;"""

RUN_WITH_CHECKS = """\
    {name}_bad_index bad = {{0}};
    a.bad_index = &bad;
    int status = {name}_run(&a);
    if (status == 3)
        return fprintf(stderr, "%s: index %lld is out of range\\n", {name}_check(bad.check), (long long)bad.index), 1;
    if (status != 0) return fprintf(stderr, "a dim is out of its range or breaks a condition\\n"), 1;"""
