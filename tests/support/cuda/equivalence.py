"""Arguments that a mutant is equivalent: it cannot be told from its kernel by anything that the kernel computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.support.cuda.mutants import REGISTER, Line, Mutant, instructions, split_operands

_ARITHMETIC = frozenset({
    "mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "neg", "setp", "selp", "cvt", "bfe",
    "min", "max", "div", "rem", "cvta",
})  # fmt: skip
_ACCESSES = frozenset({
    "ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wgmma", "mbarrier", "fence", "membar",
})  # fmt: skip
_SPECIAL = re.compile(r"%(tid\.x|laneid)\b")
_FOREIGN = re.compile(r"%(?!tid\.x\b|laneid\b)[a-z]+\.?[a-z]*\b(?!\d)")


class Equivalence:
    """The arguments for the mutants of one kernel, which runs with ``threads`` threads in a block."""

    def __init__(self, ptx: str, threads: int) -> None:
        self._lines = instructions(ptx)
        self._threads = threads
        self._text = ptx.splitlines()
        self._at = {line.number: place for place, line in enumerate(self._lines)}
        self._writers: dict[str, list[Line]] = {}
        for line in self._lines:
            for name in results(line):
                self._writers.setdefault(name, []).append(line)
        self._of_thread = self._registers_of_thread()
        self._values = self._evaluate(self._lines)

    def argument(self, mutant: Mutant) -> str | None:
        """Returns why a mutant is equivalent; None where no argument is known."""
        for each in (
            self._unused, self._overwritten, self._doubled, self._same_for_every_thread, self._same_lanes_combined,
            _same_shift, _unselected, _symmetric,
        ):  # fmt: skip
            found = each(mutant)
            if found is not None:
                return found
        return None

    def _unused(self, mutant: Mutant) -> str | None:
        """Nothing reads the result, before or after the change."""
        written = results(mutant.line)
        changed = [] if mutant.changed is None else results(mutant.changed)
        if not written or any(each.name in _ACCESSES for each in (mutant.line, mutant.changed) if each is not None):
            return None
        read = {name for line in self._lines for name in sources(line)}
        return "nothing reads its result" if not read & {*written, *changed} else None

    def _overwritten(self, mutant: Mutant) -> str | None:
        """A value that a load behind a predicate overwrites, where only stores behind the predicate see it."""
        if mutant.line.name != "mov" or mutant.line.guard is not None:
            return None
        written = results(mutant.line)
        behind = self._lines[self._at[mutant.line.number] + 1 :]
        load = next((line for line in behind if set(written) & {*results(line), *sources(line)}), None)
        if load is None or load.name != "ld" or load.guard is None or not set(written) <= set(results(load)):
            return None
        if len(self._writers[load.guard]) > 1 or any(len(self._writers[name]) > 2 for name in written):
            return None
        reached = set(written)
        for line in behind:
            if not reached & {*sources(line), *guards(line)}:
                continue
            if (line.name, line.guard, line.negated) == ("st", load.guard, load.negated):
                continue
            if line.name not in _ARITHMETIC or line.guard is not None:
                return None
            reached |= set(results(line))
        return "it is overwritten wherever it is stored"

    def _doubled(self, mutant: Mutant) -> str | None:
        """A barrier or a wait that is gone, beside another one of its kind, with no access between them."""
        if mutant.kind != "deleted" or mutant.line.name not in ("bar", "cp"):
            return None
        place = self._at[mutant.line.number]
        for step in (1, -1):
            at = place + step
            while 0 <= at < len(self._lines) and not self._joined(self._lines[at - max(step, 0)], self._lines[at]):
                other = self._lines[at]
                if (other.guard, other.opcode, other.operands) == (None, mutant.line.opcode, mutant.line.operands):
                    return "another one beside it does the same"
                if other.name in _ACCESSES or other.name in ("bar", "bra", "ret"):
                    break
                at += step
        return None

    def _joined(self, first: Line, second: Line) -> bool:
        """Whether a label lies between two instructions."""
        between = self._text[min(first.number, second.number) + 1 : max(first.number, second.number)]
        return any(re.match(r"^\$(?!L__tmp)\w+:", text) for text in between)

    def _same_for_every_thread(self, mutant: Mutant) -> str | None:
        """It computes from the number of the thread alone, and all threads of a block get the same from it."""
        if mutant.changed is None or mutant.line.number not in self._of_thread:
            return None
        if sources(mutant.changed) != sources(mutant.line) and set(sources(mutant.changed)) - set(sources(mutant.line)):
            return None
        changed = [mutant.changed if line.number == mutant.line.number else line for line in self._lines]
        values = self._evaluate(changed)
        if values is None or self._values is None or not np.array_equal(values, self._values):
            return None
        return "every thread of a block gets the same from it"

    def _same_lanes_combined(self, mutant: Mutant) -> str | None:
        """A butterfly whose distances, with the changed one, still reach the same lanes, each of them once."""
        if mutant.changed is None or mutant.line.name != "shfl" or mutant.changed.name != "shfl":
            return None
        before, after = split_operands(mutant.line.operands), split_operands(mutant.changed.operands)
        if "bfly" not in mutant.line.opcode or [*before[:2], *before[3:]] != [*after[:2], *after[3:]]:
            return None
        chain = self._butterfly(mutant.line)
        distances = [int(split_operands(line.operands)[2]) for line in chain]
        changed = [
            int(after[2]) if line is mutant.line else distance for line, distance in zip(chain, distances, strict=True)
        ]
        if _reached(distances) == _reached(changed) and len(_reached(changed)) == 1 << len(chain):
            return "the butterfly combines the same lanes, each once"
        return None

    def _butterfly(self, line: Line) -> Sequence[Line]:
        """Returns the shuffles that together combine lanes: each takes what the one before was combined into."""
        chain = [line]
        while (before := self._shuffle_behind(split_operands(chain[0].operands)[1])) is not None:
            chain.insert(0, before)
        while (after := self._shuffle_of(chain[-1])) is not None:
            chain.append(after)
        return chain

    def _shuffle_behind(self, name: str) -> Line | None:
        """Returns the shuffle of x, where ``name`` is x combined with it."""
        for shuffle in self._lines:
            if shuffle.name == "shfl" and "bfly" in shuffle.opcode and self._combined(shuffle) == name:
                return shuffle
        return None

    def _shuffle_of(self, shuffle: Line) -> Line | None:
        name = self._combined(shuffle)
        for line in self._lines:
            if name and line.name == "shfl" and "bfly" in line.opcode and split_operands(line.operands)[1] == name:
                return line
        return None

    def _combined(self, shuffle: Line) -> str | None:
        """Returns the register that holds x combined with its shuffle, by an operation that takes either first."""
        target, source = split_operands(shuffle.operands)[:2]
        for line in self._lines:
            operands = split_operands(line.operands)
            if line.name in ("add", "max", "min") and sorted(operands[1:]) == sorted([target, source]):
                return operands[0]
        return None

    def _registers_of_thread(self) -> Mapping[int, str]:
        """Returns the instructions, by line, that compute from the number of the thread and constants.

        Each register has one value: where several instructions write it, on different ways, they do the same.
        """
        known: set[str] = set()
        found: dict[int, str] = {}
        for line in self._lines:
            written = results(line)
            if line.name not in _ARITHMETIC or line.guard is not None or len(written) != 1 or "cc" in line.opcode:
                continue
            twins = {(each.opcode, each.operands, each.guard) for each in self._writers[written[0]]}
            if len(twins) > 1 or not set(sources(line)) <= known:
                continue
            if _FOREIGN.search(_SPECIAL.sub("0", line.operands)) or "{" in line.operands:
                continue
            known.add(written[0])
            found[line.number] = written[0]
        return found

    def _evaluate(self, lines: Sequence[Line]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]] | None:
        """Returns what the rest of the kernel gets from these instructions: [registers, threads]; None: no PTX."""
        inner = [line for line in lines if line.number in self._of_thread]
        names = {self._of_thread[line.number] for line in inner}
        outer = {
            name for line in lines if line.number not in self._of_thread for name in (*sources(line), *guards(line))
        }
        wanted = sorted(names & outer)
        if not wanted:
            return np.zeros((0, self._threads), np.uint64)
        body = [text for text in self._text if text.lstrip().startswith(".reg")]
        body += [
            ".reg .b64 %at, %wide; .reg .b32 %own;",
            *(re.sub(r"\bglobal_smem\b", "0", each.text()) for each in inner),
        ]
        body += ["ld.param.u64 %at, [out]; mov.u32 %own, %tid.x; mad.wide.u32 %at, %own, 8, %at;"]
        for number, name in enumerate(wanted):
            kind = REGISTER.fullmatch(name)
            assert kind is not None, "a register as LLVM names them"
            widened = {
                "p": f"selp.b64 %wide, 1, 0, {name};",
                "rd": f"mov.b64 %wide, {name};",
                "r": f"cvt.u64.u32 %wide, {name};",
                "rs": f"cvt.u64.u16 %wide, {name};",
            }[kind[2]]
            body.append(f"{widened} st.global.b64 [%at+{8 * number * self._threads}], %wide;")
        text = "\n".join(body)
        ptx = (
            f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n{text}\nret;\n}}\n"
        )
        gpu = SimulatedGpu()
        size = 8 * len(wanted) * self._threads
        address = gpu.allocate(size)
        try:
            gpu.launch(gpu.load(ptx).kernels["k"], [1], [self._threads], [address])
        except (KernelFault, UnknownPtx):
            return None
        return gpu.read(address, size).view(np.uint64).reshape(len(wanted), self._threads)


def _same_shift(mutant: Mutant) -> str | None:
    """A shift of a signed number by its last bit, or further."""
    changed = mutant.changed
    bits = {"shr.s32": 32, "shr.s64": 64}.get(mutant.line.opcode)
    if changed is None or changed.opcode != mutant.line.opcode or bits is None:
        return None
    before, after = split_operands(mutant.line.operands), split_operands(changed.operands)
    counts = [each[2] for each in (before, after)]
    if before[:2] != after[:2] or not all(each.isdecimal() and int(each) >= bits - 1 for each in counts):
        return None
    return "both shifts leave the sign alone"


def _symmetric(mutant: Mutant) -> str | None:
    """A question that does not depend on the order of its operands, or a zero added or taken away."""
    changed, line = mutant.changed, mutant.line
    if changed is None:
        return None
    if mutant.kind == "operands exchanged" and {"nan", "num"} & set(line.opcode.split(".")):
        return "the question is the same for both orders"
    zero = split_operands(line.operands)[2:] == ["0f00000000"]
    if mutant.kind == "operation" and {line.name, changed.name} == {"add", "sub"} and zero:
        return "a zero is added or taken away: the sign of a zero at most is another"
    return None


def _unselected(mutant: Mutant) -> str | None:
    """The second source of a permutation of bytes that takes all of them from the first."""
    changed = mutant.changed
    if changed is None or mutant.line.opcode != "prmt.b32" or changed.opcode != "prmt.b32":
        return None
    before, after = split_operands(mutant.line.operands), split_operands(changed.operands)
    selector = re.fullmatch(r"0x([0-9a-fA-F]{1,4})U?", before[3])
    if selector is None or [*before[:2], before[3]] != [*after[:2], after[3]]:
        return None
    taken = {int(digit, 16) & 7 for digit in selector[1].zfill(4)}
    return "all bytes are of its first source" if max(taken) < 4 else None


def results(line: Line) -> list[str]:
    """Returns the registers that an instruction writes."""
    if line.name in ("st", "bar", "red", "cp", "fence", "membar", "bra", "ret", "stmatrix") or not line.operands:
        return []
    return [name for name, _ in REGISTER.findall(split_operands(line.operands)[0])]


def sources(line: Line) -> list[str]:
    """Returns the registers that an instruction reads, but for its predicate."""
    operands = split_operands(line.operands)
    behind = operands[1:] if results(line) else operands
    return [name for operand in behind for name, _ in REGISTER.findall(operand)]


def guards(line: Line) -> list[str]:
    """Returns the predicate of an instruction."""
    return [] if line.guard is None else [line.guard]


def _reached(distances: Sequence[int]) -> set[int]:
    """Returns the lanes that a butterfly combines with lane 0."""
    lanes = {0}
    for distance in distances:
        lanes |= {lane ^ distance for lane in lanes}
    return lanes
