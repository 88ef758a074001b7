"""What threads wrote to shared memory must be fenced before the async proxy reads or overwrites it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lowerkit.runtimes.cuda.simulated.ordering_lint.flow import Paths
from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origin, Origins
from lowerkit.runtimes.cuda.simulated.ordering_lint.regions import Region, Regions
from lowerkit.runtimes.cuda.simulated.ordering_lint.rule import Gap, Rule
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Instruction, Number

_NEAR = 128  # bytes; copies begin at multiples of them
_TENSOR_MAP_BYTES = 128
_ROW_BYTES = 16  # that one lane writes by stmatrix
_SHARED = ("shared", "shared::cta", "shared::cluster")
_TENSOR_CORES = ("wgmma", "tcgen05")  # find matrices by descriptors


class _Writes(NamedTuple):
    """Numbers of instructions: ``done`` have written, ``begun`` are copies that may still be under way."""

    done: frozenset[int]
    begun: frozenset[int]


class SharedWrites(Rule[_Writes]):
    """``st``, ``stmatrix``, atomics, ``tensormap.replace``, ``cp.async``, and ``mbarrier.inval``, which leaves its
    bytes to others: up to ``fence.proxy.async``.

    What a store writes to a fixed address is a word of the program's own, such as the one by which warps are told what
    to do, and no part of a tile: like an mbarrier it counts only where a copy begins at the very place. The word that
    ``tcgen05.alloc`` writes is not looked at: all warps have read it, behind a barrier, before anything lies there.
    """

    name = "shared_writes"

    def __init__(self, instructions: Sequence[Instruction], origins: Origins) -> None:
        super().__init__(instructions, origins)
        self._regions = Regions(origins)
        self._largest = _largest_arrival(instructions)
        self._received: dict[int, frozenset[int]] = {}  # what other warps have written, by where they are met

    def start(self) -> _Writes:
        """See :meth:`Rule.start`."""
        return _Writes(frozenset(), frozenset())

    def merge(self, first: _Writes, second: _Writes) -> _Writes:
        """See :meth:`Rule.merge`."""
        return _Writes(first.done | second.done, first.begun | second.begun)

    def step(self, number: int, state: _Writes) -> _Writes:
        """See :meth:`Rule.step`."""
        instruction = self.instructions[number]
        opcode, modifiers = instruction.opcode, instruction.modifiers
        if opcode == "fence" and modifiers[:2] == ("proxy", "async") and instruction.guard is None:
            return state._replace(done=frozenset()) if "global" not in modifiers else state
        if opcode == "cp" and "bulk" not in modifiers:
            if modifiers[1] in ("wait_group", "wait_all"):  # what arrives is written now, not when it was begun
                every = modifiers[1] == "wait_all" or getattr(instruction.operands[0], "value", 1) == 0
                return _Writes(state.done | state.begun, frozenset() if every else state.begun)
            return state if modifiers[1] == "commit_group" else state._replace(begun=state.begun | {number})
        if _writes_shared(instruction):
            return state._replace(done=state.done | {number})
        return state._replace(done=state.done | self._received[number]) if number in self._received else state

    def exchange(self, paths: Paths, states: Mapping[int, _Writes]) -> bool:
        """See :meth:`Rule.exchange`: between warps with tasks of their own, whose texts do not lead to each other.

        Where one text leads to the other, what the first one leaves open is carried along the path.
        """
        giving = {number: state.done for number, state in states.items() if state.done and _meeting(self, number, 0)}
        news = False
        for number in states:
            place = _meeting(self, number, 1)
            if not place:
                continue
            known = self._received.get(number, frozenset())
            for other, writes in giving.items():
                apart = number not in paths.reached(other) and other not in paths.reached(number)
                if writes <= known or _meeting(self, other, 0) != place or not apart:
                    continue
                known |= writes
                news = True
            if known:
                self._received[number] = known
        return news

    def gaps(self, number: int, state: _Writes) -> Iterator[Gap]:
        """See :meth:`Rule.gaps`."""
        instruction = self.instructions[number]
        user = _user(instruction)
        if user:
            for write in sorted(state.done):
                if self._apart(write, number):
                    continue
                yield write, f"fence.proxy.async is missing before {user}, behind a write to shared memory by threads"

    def _apart(self, write: int, use: int) -> bool:
        """Returns whether a write lies elsewhere than what is used, as far as that is known."""
        written, used = self._written(write), self._used(use)
        if written is not None and used is not None and written.apart(used):
            return True
        word = self._origin(write) if self.instructions[write].opcode in ("st", "mbarrier") else None
        if word is None or not word.fixed:
            return self.instructions[write].opcode == "mbarrier"
        place = None if self.instructions[use].opcode in _TENSOR_CORES else self._origin(use)
        return place is None or place.base != word.base or not 0 <= word.offset - place.offset < _NEAR

    def _written(self, number: int) -> Region | None:
        instruction = self.instructions[number]
        width = _width(instruction)
        return None if width is None else self._region(number, width)

    def _used(self, number: int) -> Region | None:
        """Returns what a bulk copy may touch: to shared memory no more than the mbarrier expects."""
        if self.instructions[number].opcode in _TENSOR_CORES:
            return None
        loads = "mbarrier::complete_tx::bytes" in self.instructions[number].modifiers
        return self._region(number, self._largest if loads else None)

    def _region(self, number: int, width: int | None) -> Region | None:
        operand = _shared_place(self.instructions[number])
        at = None if operand is None else self._regions.of(operand.base, self.instructions[number].scope)
        if at is None or at.high is None or operand is None:
            return None
        end = None if width is None else at.high - 1 + operand.offset + width
        return Region(at.base, at.low + operand.offset, end)

    def _origin(self, number: int) -> Origin | None:
        """Returns the place in shared memory that an instruction names."""
        operand = _shared_place(self.instructions[number])
        if operand is None:
            return None
        return self.origins.of(operand.base, self.instructions[number].scope, operand.offset)


def _meeting(rule: SharedWrites, number: int, side: int) -> str:
    """Returns where warps meet at an instruction: in front of it (side 0) or behind it (1); empty if they do not."""
    instruction = rule.instructions[number]
    if instruction.opcode == "mbarrier":
        return "mbarrier" if instruction.modifiers[0] in (("arrive",), ("try_wait", "test_wait"))[side] else ""
    if instruction.opcode not in ("bar", "barrier") or "warp" in instruction.modifiers:
        return ""
    return f"barrier {instruction.operands[0] if instruction.operands else Number(0)}"


def _shared_place(instruction: Instruction) -> Address | None:
    """Returns the address in shared memory; of two addresses the first is the destination."""
    places = [operand for operand in instruction.operands if isinstance(operand, Address)]
    goes_to_global = "bulk_group" in instruction.modifiers and len(places) > 1
    return places[1 if goes_to_global else 0] if places else None


def _writes_shared(instruction: Instruction) -> bool:
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode == "tensormap":
        return "replace" in modifiers and "shared::cta" in modifiers
    if opcode == "mbarrier":
        return modifiers[0] == "inval"
    return opcode in ("st", "stmatrix", "atom", "red") and any(each in modifiers for each in _SHARED)


def _width(instruction: Instruction) -> int | None:
    """Returns how many bytes a write takes from its address on; None if that is not known."""
    modifiers = instruction.modifiers
    if instruction.opcode == "tensormap":
        return _TENSOR_MAP_BYTES
    if instruction.opcode == "stmatrix":
        return _ROW_BYTES
    if instruction.opcode == "cp":
        size = instruction.operands[2] if len(instruction.operands) > 2 else None
        return size.value if isinstance(size, Number) else None
    count = next((int(each[1]) for each in modifiers if each in ("v2", "v4", "v8")), 1)
    return BYTES.get(modifiers[-1], 8) * count


def _largest_arrival(instructions: Sequence[Instruction]) -> int | None:
    """Returns the most bytes that any mbarrier expects at once; None if that is not known."""
    largest: int | None = None
    for instruction in instructions:
        if instruction.opcode != "mbarrier" or "expect_tx" not in instruction.modifiers:
            continue
        size = instruction.operands[-1]
        if not isinstance(size, Number):
            return None
        largest = max(size.value, largest or 0)
    return largest


def _user(instruction: Instruction) -> str:
    """Returns the words for an instruction that uses shared memory by the async proxy; none for another one."""
    if instruction.opcode == "wgmma" and instruction.modifiers[0] == "mma_async":
        return "wgmma"
    if instruction.opcode == "tcgen05" and instruction.modifiers[0] == "mma":
        return "tcgen05.mma"
    modifiers = instruction.modifiers
    if instruction.opcode != "cp" or "bulk" not in modifiers or not any(each in modifiers for each in _SHARED):
        return ""
    return "a bulk copy"
