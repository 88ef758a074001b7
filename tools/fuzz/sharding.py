"""Random small programs, split among the ranks of random meshes by random plans, compared with one device.

    python tools/fuzz/sharding.py 1000 --seed 1

What program, mesh and plan a number has is decided by (seed, number) alone; ``--only NUMBER`` repeats one. All ranks
run in numpy; every ``--compile``-th program is compiled too and runs in simulated ranks. Where a plan asks for what
cannot be, the entries that can be are tried. A failure is made smaller and printed. Exit code 1 where anything failed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from sharding_compiled import judge_compiled
from sharding_graphs import Graph, Mesh, random_graph, random_mesh
from sharding_judge import Outcome, allowed, judge, smaller


def main() -> int:
    """Runs, and prints how programs ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one program, which is printed")
    parser.add_argument("--compile", type=int, default=0, help="compile every so many-th program; 0: none")
    options = parser.parse_args()
    numbers = [options.only] if options.only is not None else range(options.count)
    kinds: Counter[str] = Counter()
    collectives = cut = 0
    started = time.monotonic()
    for number in numbers:
        compiled = bool(options.compile) and number % options.compile == 0
        graph, mesh, outcome = outcome_of(options.seed, number, compiled=compiled)
        kinds[outcome.kind] += 1
        collectives += outcome.collectives
        cut += outcome.cut
        if outcome.failed and not compiled:
            graph, mesh = smaller(graph, mesh, outcome.kind)
            outcome = judge(graph, mesh)
        if outcome.failed or options.only is not None:
            print(f"--- {options.seed}:{number} {outcome}\n{mesh}\n{graph.text}", flush=True)
    text = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    found = f"{collectives} collectives, {cut} states in parts"
    print(f"{len(numbers)} programs: {text}; {found}; {time.monotonic() - started:.0f} s")
    return 1 if kinds["wrong"] + kinds["crashed"] else 0


def outcome_of(seed: int, number: int, *, compiled: bool = False) -> tuple[Graph, Mesh, Outcome]:
    """Returns a program, the plan that was possible for it, and how they ended."""
    rng = random.Random(f"{seed}:{number}")
    graph = random_graph(rng)
    mesh = random_mesh(rng, graph)
    outcome = judge(graph, mesh)
    if outcome.kind == "refused":
        mesh = allowed(graph, mesh)
        outcome = judge(graph, mesh)
    if compiled and outcome.kind == "passed":
        outcome = judge_compiled(graph, mesh)
    return graph, mesh, outcome


if __name__ == "__main__":
    raise SystemExit(main())
