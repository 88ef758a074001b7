"""The registers of wgmma: fenced before it uses them, and left alone until it was waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origins, Register, read, registers_of, written
from lowerkit.runtimes.cuda.simulated.ordering_lint.rule import Gap, Rule
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, Number, Vector

_NONE = 64  # commits: more than a wait can name
_START = -1


class _Product(NamedTuple):
    """A wgmma.mma_async: the registers of its accumulator, and those of A."""

    accumulator: frozenset[Register]
    factor: frozenset[Register]


class _Use(NamedTuple):
    """What holds of the registers.

    Attributes:
        touched: registers that threads used since the last fence, with the number of one instruction that did (-1: none
            stands before, and there was no fence).
        under_way: for each product how many groups were committed since it was begun, the fewest of all paths.
    """

    touched: frozenset[tuple[Register, int]]
    under_way: tuple[int, ...]


class ProductRegisters(Rule[_Use]):
    """Use by threads, up to ``wgmma.fence``; products, up to the ``wait_group`` of their group."""

    name = "product_registers"

    def __init__(self, instructions: Sequence[Instruction], origins: Origins) -> None:
        super().__init__(instructions, origins)
        self._products = {number: _product(each) for number, each in enumerate(instructions) if _multiplies(each)}
        self._places = {number: place for place, number in enumerate(self._products)}
        self._of_products = frozenset(each for product in self._products.values() for each in _all(product))
        accesses = ((number, read(each), written(each)) for number, each in enumerate(instructions))
        self._reads: dict[int, frozenset[Register]] = {}
        self._writes: dict[int, frozenset[Register]] = {}
        for number, reads, writes in accesses:
            if number not in self._products:
                self._reads[number] = self._of_products & reads
                self._writes[number] = self._of_products & writes

    def start(self) -> _Use:
        """See :meth:`Rule.start`."""
        return _Use(frozenset((each, _START) for each in self._of_products), (_NONE,) * len(self._products))

    def merge(self, first: _Use, second: _Use) -> _Use:
        """See :meth:`Rule.merge`."""
        fewest = tuple(map(min, first.under_way, second.under_way))
        return _Use(first.touched | second.touched, fewest)

    def step(self, number: int, state: _Use) -> _Use:
        """See :meth:`Rule.step`."""
        instruction = self.instructions[number]
        if number in self._products:
            groups = list(state.under_way)
            groups[self._places[number]] = 0
            return state._replace(under_way=tuple(groups))
        if instruction.opcode == "wgmma":
            return _synchronised(instruction, state)
        used = self._reads[number] | self._writes[number]
        if not used:
            return state
        others = frozenset(each for each in state.touched if each[0] not in used)
        return state._replace(touched=others | {(each, number) for each in used})

    def gaps(self, number: int, state: _Use) -> Iterator[Gap]:
        """See :meth:`Rule.gaps`."""
        if number in self._products:
            yield from self._gaps_of_product(number, state)
            return
        reads, writes = self._reads[number], self._writes[number]
        if not reads and not writes:
            return
        for other, product in self._under_way(state):
            if (reads | writes) & product.accumulator or writes & product.factor:
                yield other, "wgmma.wait_group is missing before its registers are used, behind wgmma"

    def _gaps_of_product(self, number: int, state: _Use) -> Iterator[Gap]:
        mine = self._products[number]
        registers = _all(mine)
        for other in sorted({other for each, other in state.touched if each in registers}):
            behind = "behind another use of its registers" if other != _START else "the first in the kernel"
            yield None if other == _START else other, f"wgmma.fence is missing before wgmma, {behind}"
        for other, product in self._under_way(state):
            # Products of one shape may follow one another in one accumulator.
            shares = bool(mine.accumulator & product.accumulator) and mine.accumulator != product.accumulator
            if shares or mine.factor & product.accumulator or mine.accumulator & product.factor:
                yield other, "wgmma.wait_group is missing before its registers are used by another wgmma, behind wgmma"

    def _under_way(self, state: _Use) -> Iterator[tuple[int, _Product]]:
        for number, product in self._products.items():
            if state.under_way[self._places[number]] != _NONE:
                yield number, product


def _multiplies(instruction: Instruction) -> bool:
    return instruction.opcode == "wgmma" and "mma_async" in instruction.modifiers


def _product(instruction: Instruction) -> _Product:
    accumulator, factor = instruction.operands[:2]
    of_factor = registers_of(factor, instruction.scope) if isinstance(factor, Vector) else ()
    return _Product(frozenset(registers_of(accumulator, instruction.scope)), frozenset(of_factor))


def _all(product: _Product) -> frozenset[Register]:
    return product.accumulator | product.factor


def _synchronised(instruction: Instruction, state: _Use) -> _Use:
    """Returns what holds behind a fence, a commit or a wait; under a predicate they are not counted on."""
    if instruction.guard is not None:
        return state
    if "fence" in instruction.modifiers:
        return state._replace(touched=frozenset())
    if "commit_group" in instruction.modifiers:
        later = tuple(each if each >= _NONE - 1 else each + 1 for each in state.under_way)
        return state._replace(under_way=later)
    keep = instruction.operands[0]
    most = keep.value if isinstance(keep, Number) else _NONE
    return state._replace(under_way=tuple(_NONE if each > most else each for each in state.under_way))
