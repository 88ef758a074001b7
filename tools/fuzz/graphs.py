"""Random graphs through every capture, level and thread count, held against eager and float64.

    python tools/fuzz/graphs.py --count 20000 --seed 1 --state graphs.json

A program of ``--together`` random functions is decided by (seed, number) alone; ``--only NUMBER`` repeats one. It is
compiled as one module in a forked child; if that does not pass, each function by itself. A failure is made smaller and
written to the folder ``--found`` as a test for pytest. ``--state`` keeps the totals and how far the run came.
"""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from graph.builder import random_function
from graph.children import in_child
from graph.function import Function
from graph.minimize import minimized
from graph.run import Outcome, Way, outcome_of
from graph.statements import statements
from graph.text import as_test


@dataclass
class Totals:
    """How far a run came, and how its functions ended."""

    done: int = 0
    graphs: int = 0
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter[str])
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def note(self, outcome: Outcome, count: int = 1) -> None:
        self.graphs += count
        self.outcomes[f"{outcome.kind} {outcome.code}".strip()] += count

    def save(self, path: Path) -> None:
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps({**vars(self), "outcomes": dict(self.outcomes)}, indent=1))
        beside.replace(path)

    @staticmethod
    def load(path: Path) -> Totals:
        data = json.loads(path.read_text())
        return Totals(data["done"], data["graphs"], collections.Counter(data["outcomes"]), data["failures"])

    def text(self) -> str:
        kinds: collections.Counter[str] = collections.Counter()
        for name, count in self.outcomes.items():
            kinds[name.split(" ")[0]] += count
        heads = ", ".join(f"{kinds[kind]} {kind}" for kind in ("wrong", "crashed", "hung", "internal"))
        rest = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        return f"{self.graphs} graphs: {heads}; in detail: {rest}"


def program(
    seed: int, number: int, together: int, cpus: list[str], captures: tuple[str, ...] = ()
) -> tuple[list[Function], Way]:
    """The functions of one program and how it is taken; ``captures`` names those wanted, all if empty."""
    rng = random.Random(f"{seed}:{number}")
    while True:
        scriptable = rng.random() < 0.1
        way = Way.drawn(rng, scriptable=scriptable, cpus=cpus)
        if not captures or ("symbolic" if way.symbolic else way.capture) in captures:
            break
    count = 1 if way.capture == "script" else max(together // 2, 1) if way.symbolic else together
    # A trace records the branch that it took, eager's own: nothing to hold a program against.
    known = statements(scriptable=scriptable, control=not scriptable and way.capture != "trace")
    made = [random_function(rng, known, scriptable=scriptable) for _ in range(count)]
    return [function for function in made if function.inputs and function.returns], way


def judge(functions: list[Function], way: Way, seconds: float) -> list[tuple[Function, Outcome]]:
    """The outcome of each function: of all together if they pass; those that a problem names alone, others again."""
    whole = in_child(lambda: outcome_of(functions, way), seconds)
    if whole.kind == "passed" or len(functions) == 1:
        return [(function, whole) for function in functions]
    named = _named(functions, whole)
    if not named or len(named) == len(functions):
        half = len(functions) // 2
        found = judge(functions[:half], way, seconds) + judge(functions[half:], way, seconds)
    else:
        refused = whole.kind == "refused"
        found = [(f, whole) if refused else judge([f], way, seconds)[0] for f in named]
        found += judge([f for f in functions if f not in named], way, seconds)
    if whole.failed and not any(outcome.failed for _, outcome in found):
        found[0] = (found[0][0], Outcome(whole.kind, whole.code, f"only together: {whole.detail}"))
    return found


def _named(functions: list[Function], outcome: Outcome) -> list[Function]:
    """The functions that an outcome's text names, by the file of their text or by the place of an output."""
    places = (
        {int(place) for place in re.findall(r"output (\d+):", outcome.detail)} if outcome.kind == "wrong" else set()
    )
    named: list[Function] = []
    first = 0
    for function in functions:
        end = first + len(function.returns)
        if function.text_name() in outcome.detail or any(first <= place < end for place in places):
            named.append(function)
        first = end
    return named


def smaller(function: Function, way: Way, outcome: Outcome, seconds: float, tries: int) -> Function:
    """A smaller function that fails in the same way."""

    def fails(candidate: Function) -> bool:
        found = in_child(lambda: outcome_of([candidate], way), seconds)
        return found.kind == outcome.kind and found.code == outcome.code

    return minimized(function, fails, tries=tries)


def warm_up() -> None:
    """Imports and first-time work, once for all children."""
    outcome_of([Function(lines=["v0 = x0 + 1"], returns=["v0"], given=[_plain()])], Way())


def _plain() -> Any:
    from graph.function import Given

    return Given("x0", "input", (2, 3), "float32", "normal", 1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", default=50, help="Programs to run.")
@click.option("--seconds", default=0.0, help="Stop after so many seconds; 0: no limit.")
@click.option("--seed", default=0, help="Seed of the run; 0 draws one.")
@click.option("--together", default=6, help="Functions in a program.")
@click.option("--only", type=int, help="Run this program alone and print it.")
@click.option("--capture", "captures", multiple=True, help="export, symbolic, trace, script, onnx; all by default.")
@click.option("--cpu", "cpus", multiple=True, default=["host"], help="CPU level, or cuda:sm_80; repeatable.")
@click.option("--deadline", default=90.0, help="Seconds that one compilation and its runs may take.")
@click.option("--tries", default=40, help="Attempts to make a failure smaller; 0: none.")
@click.option("--state", type=click.Path(path_type=Path), help="JSON file of totals; a run goes on from it.")
@click.option("--found", type=click.Path(path_type=Path), help="Folder for failing graphs.")
def main(
    count: int, seconds: float, seed: int, together: int, only: int | None, captures: tuple[str, ...],
    cpus: tuple[str, ...], deadline: float, tries: int, state: Path | None, found: Path | None,
) -> None:  # fmt: skip
    seed = seed or random.SystemRandom().randrange(1, 1 << 31)
    totals = Totals.load(state) if state and state.exists() else Totals()
    print(f"seed {seed}", flush=True)
    warm_up()
    numbers = [only] if only is not None else range(totals.done, totals.done + count)
    start = time.monotonic()
    for number in numbers:
        if seconds and time.monotonic() - start > seconds:
            break
        functions, way = program(seed, number, together, list(cpus), captures)
        for function, outcome in judge(functions, way, deadline) if functions else []:
            totals.note(outcome)
            if not outcome.failed:
                if only is not None:
                    print(way, outcome, function.body(), sep="\n")
                continue
            small = smaller(function, way, outcome, deadline, tries)
            text = as_test(small, way, outcome, f"{seed}:{number}")
            print(f"--- program {number}: {outcome.kind} {outcome.code}\n{text}", flush=True)
            totals.failures.append({"number": number, "kind": outcome.kind, "code": outcome.code, "way": way.to_json(),
                                    "function": small.to_json(), "detail": outcome.detail})  # fmt: skip
            if found is not None:
                found.mkdir(parents=True, exist_ok=True)
                (found / f"test_{outcome.kind}_{seed}_{number}_{len(totals.failures)}.py").write_text(text)
        totals.done = number + 1
        if state:
            totals.save(state)
    print(totals.text())
    sys.exit(1 if totals.failures else 0)


if __name__ == "__main__":
    main()
