"""The argument that all threads of a block get the same numbers from what they compute of their own number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.support.cuda.equivalence.flow import guards, results, sources
from tests.support.cuda.mutants import REGISTER, Line, Mutant

_ARITHMETIC = frozenset({
    "mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "neg", "setp", "selp", "cvt", "bfe",
    "min", "max", "div", "rem", "cvta",
})  # fmt: skip
_SPECIAL = re.compile(r"%(tid\.x|laneid)\b")
_FOREIGN = re.compile(r"%(?!tid\.x\b|laneid\b)[a-z]+\.?[a-z]*\b(?!\d)")


class ThreadNumbers:
    """The instructions of a kernel that compute from the number of the thread alone, run on the simulated device."""

    def __init__(self, ptx: str, lines: Sequence[Line], threads: int) -> None:
        self._lines, self._threads = lines, threads
        self._text = ptx.splitlines()
        self._writers: dict[str, list[Line]] = {}
        for line in lines:
            for name in results(line):
                self._writers.setdefault(name, []).append(line)
        self._of_thread = self._registers_of_thread()
        self._values = self._evaluate(lines)

    def argument(self, mutant: Mutant) -> str | None:
        """Returns why a mutant is equivalent: every thread gets from it what it got before."""
        if mutant.changed is None or mutant.line.number not in self._of_thread:
            return None
        if sources(mutant.changed) != sources(mutant.line) and set(sources(mutant.changed)) - set(sources(mutant.line)):
            return None
        changed = [mutant.changed if line.number == mutant.line.number else line for line in self._lines]
        values = self._evaluate(changed)
        if values is None or self._values is None or not np.array_equal(values, self._values):
            return None
        return "every thread of a block gets the same from it"

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
