"""README and docs say what the code does: links, commands, options, tables, fields; snippets marked runnable run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import pytest

from lowerkit import errors
from lowerkit.cli.main import COMMANDS, cli, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "CHANGELOG.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNNABLE = re.compile(
    r"<!-- runnable(?:: (?P<file>[\w.]+))? -->\n```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
_PATH = re.compile(r"(?:lowerkit|passes|runtimes|tests|tools|docs)/[\w/.-]*\.(?:py|md|sh|txt|svg|cpp|h)\b")
_FOLDER = re.compile(r"`((?:lowerkit|passes|runtimes|tests|tools|docs)(?:/[\w-]+)+/?)`")
# Options of other programs that the pages name alone: the dialect's generator, tools/test.sh.
FOREIGN_OPTIONS = {"--write", "--quick", "--changed", "--all", "--record", "--since", "--tier"}
# Pages for contributors, which the index links and the README need not.


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def snippets(text: str) -> Iterator[str]:
    """Yields inline code and the lines of fenced blocks."""
    for fence in _FENCE.finditer(text):
        yield from fence["text"].splitlines()
    for inline in re.finditer(r"`([^`\n]+)`", _FENCE.sub("", text)):
        yield inline[1]


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub makes of headings."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def options_of(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    commands = [found, *(found.commands.values() if isinstance(found, click.Group) else ())]
    parameters = [parameter for one in commands for parameter in one.params]
    return {"--help", *(name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts))}


def table_rows(text: str, first_cell: str) -> dict[str, str]:
    """Returns first cell -> rest of the row, for rows whose first cell matches."""
    return {match[1]: match[2] for match in re.finditer(rf"^\| `?({first_cell})`? \| (.+) \|$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_resolve(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for match in _LINK.finditer(_FENCE.sub("", read(name))):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("https://", "http://")):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            broken.append(match["target"])
    assert not broken


def test_readme_links_the_index_and_the_index_links_every_page() -> None:
    folder = ROOT / "docs"
    pages = {str(page.relative_to(folder)) for page in folder.rglob("*.md")} - {"README.md"}
    linked = {match["target"].partition("#")[0] for match in _LINK.finditer(read("docs/README.md"))}
    assert not pages - linked
    assert "(docs/README.md)" in read("README.md")


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_exist(name: str) -> None:
    general = {option for parameter in cli.params for option in parameter.opts}
    known = set.union(general, *(options_of(command) for command in COMMANDS)) | FOREIGN_OPTIONS
    wrong: list[str] = []
    for snippet in snippets(read(name)):
        text = snippet.partition(" #")[0].strip()
        words = text.split()
        if words[:1] == ["lowerkit"] and len(words) > 1:
            command = words[1]
            if command not in COMMANDS:
                wrong.append(text)
                continue
            used = {word for word in words[2:] if _OPTION.fullmatch(word)}
            wrong += [f"{text}: {option}" for option in used - options_of(command)]
        elif text.startswith("--"):
            option = _OPTION.match(text)
            wrong += [text] if option is None or option[0] not in known else []
    assert not wrong


def test_table_of_commands_is_complete() -> None:
    assert table_rows(read("docs/commands.md"), r"lowerkit [\w-]+").keys() == {f"lowerkit {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", NAMES)
def test_paths_exist(name: str) -> None:
    found = [*_PATH.findall(read(name)), *_FOLDER.findall(read(name))]
    missing = [path for path in found if not (ROOT / path).exists()]
    # Pages name files of the package in short: codegen/schedule.py, cpu/objects/linker.py.
    assert not [path for path in missing if not list((ROOT / "lowerkit").glob(f"**/{path}"))]


def test_table_of_codes_is_complete() -> None:
    assert table_rows(read("docs/errors.md"), r"LK\d{4}") == errors.CODES


def test_every_code_in_use_is_in_the_table_and_every_code_of_the_table_is_in_use() -> None:
    sources = [*ROOT.glob("lowerkit/**/*.py"), *ROOT.glob("passes/**/*.py"), *ROOT.glob("runtimes/**/*.py")]
    used = {
        code
        for path in sources
        if path != ROOT / "lowerkit/errors.py"
        for code in re.findall(r"\bLK\d{4}\b", path.read_text(encoding="utf-8"))
    }
    assert used == set(errors.CODES)


def test_exit_codes() -> None:
    documented = {int(code) for code in table_rows(read("docs/errors.md"), r"\d+")}
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert documented == {0, 130} | {kind.exit_code for kind in classes if issubclass(kind, errors.LowerkitError)}
    line = "0 ok, 2 usage, 3 bad input, 4 unsupported, 5 internal, 6 parity, 7 resources, 8 device, 130 interrupted"
    assert line in (cli.help or "")


def test_gates_are_those_of_the_code() -> None:
    from lowerkit.parity.gates import GATES

    rows = table_rows(read("docs/parity.md"), r"f64|f32|f16|bf16")
    assert rows.keys() == GATES.keys()
    for dtype, row in rows.items():
        gate = GATES[dtype]
        numbers = [float(number) for number in re.findall(r"\d[\d.]*(?:e-\d+)?", row)]
        assert numbers == [gate.relative, gate.absolute, gate.model_sqnr_db, gate.model_cosine], dtype


def test_families_and_levels_are_those_of_the_code() -> None:
    from lowerkit.targets.cpu.families import default_families
    from lowerkit.targets.cpu.levels import LEVELS

    section = read("docs/codegen.md").partition("| family | takes |")[2].partition("\n\n")[0]
    named = [
        name for row in section.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    ]
    assert sorted(named) == sorted(family.name for family in default_families())
    rows = table_rows(read("docs/target.md"), r"x86-64-v\d|znver\d|sapphirerapids")
    assert list(rows) == list(LEVELS)


def test_families_of_cuda_are_those_of_the_code() -> None:
    from lowerkit.targets.cuda.select import fast_families

    section = read("docs/cuda.md").partition("| family | regions | how |")[2].partition("\n\n")[0]
    named = {name for row in section.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {"threads", *(family.name for family in fast_families())}


def test_manifest_fields_are_documented() -> None:
    from lowerkit.runtimes.manifest import FORMAT_MAJOR, FORMAT_MINOR, KNOWN_FEATURES, Manifest, ProgramSpec

    page = read("docs/artifact.md")
    for title, struct in (("## The manifest", Manifest), ("## A program", ProgramSpec)):
        section = page.partition(title)[2].partition("\n## ")[0]
        rows = [row for row in section.splitlines() if row.startswith("| `")]
        cells = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert cells == set(struct.__struct_fields__), title
    assert f"Artifact {FORMAT_MAJOR}.{FORMAT_MINOR}" in read("CHANGELOG.md")
    assert all(f"`{feature}`" in page for feature in KNOWN_FEATURES)


def test_snippets_are_found() -> None:
    pages = {where.partition(":")[0] for where, _ in runnable_snippets()}
    named = ("artifact", "codegen", "collectives", "program", "state-and-control-flow", "target", "torch_compile")
    assert pages == {"README.md", *(f"docs/{name}.md" for name in named)}


def runnable_snippets() -> list[tuple[str, str]]:
    return [
        (f"{name}:{number}", match["text"])
        for name in NAMES
        for number, match in enumerate(_RUNNABLE.finditer(read(name)))
        if match["file"] is None
    ]


@pytest.mark.parametrize(("where", "code"), runnable_snippets(), ids=lambda value: value if ".md:" in value else "")
def test_snippets_run(where: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippet")  # classes of a snippet look their module up by name
    monkeypatch.setitem(sys.modules, "snippet", module)
    exec(compile(code, where, "exec"), vars(module))


def test_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs the commands of the README on its model; each prints the fields that docs/json.md lists, and no others."""
    text = read("README.md")
    model = next(match for match in _RUNNABLE.finditer(text) if match["file"])
    (tmp_path / str(model["file"])).write_text(model["text"])
    samples = np.random.default_rng(0).standard_normal((8, 4, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=samples)  # which the README says that the user has
    monkeypatch.chdir(tmp_path)
    # `targets new` and its package have tests of their own (tests/unit/cli/test_targets_new.py).
    commands = [snippet.split() for snippet in readme_commands(text) if "acme_npu" not in snippet]
    ran: list[str] = []
    for words in [*commands, ["lowerkit", "targets"], ["lowerkit", "doctor"], ["lowerkit", "opt", "--list", "-"]]:
        monkeypatch.setattr(sys, "argv", [*words, "--json"])
        with pytest.raises(SystemExit) as caught:
            main(supervised=False)
        output = capfd.readouterr()
        assert caught.value.code in (0, None), output.err
        document = json.loads(output.out)
        schema = document.pop("schema").removeprefix("lowerkit.")
        assert documented_fields(schema, words) == document.keys() - {"version"}, schema
        ran.append(schema)
    first_model, debugging = ["compile", "run", "check"], ["check", "compile", "inspect", "verify"]
    several_devices, gpu = ["compile", "run", "plan"], ["compile", "run"]
    rest = ["targets", "doctor", "passes"]
    assert ran == [*first_model, *debugging, "quantize", *several_devices, *gpu, *rest]


def readme_commands(text: str) -> list[str]:
    """Returns the commands on the page's model, in their order on the page."""
    found = re.findall(r"(?:^|`)(lowerkit [^`\n]*\bmlp\b[^`\n]*)", text, re.MULTILINE)
    return [command for command in found if command.split()[1] in COMMANDS]


def documented_fields(schema: str, command: list[str]) -> set[str]:
    """Returns the top-level fields that docs/json.md lists for a command with its options."""
    row = table_rows(read("docs/json.md"), schema)[schema].partition("|")[2]
    while row != (flat := re.sub(r"\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)", "", row)):
        row = flat
    fields, *others = row.split("; ")
    options = [re.fullmatch(r"with `(?P<option>--[\w-]+)`: (?P<fields>.*)", other) for other in others]
    further = [match["fields"] for match in options if match is not None and match["option"] in command]
    return set(re.findall(r"`(\w+)`", " ".join([fields, *further])))
