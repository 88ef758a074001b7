"""The family of ``lk.attention``: tasks over (batch, head, block of queries), flash style: ``flash_kernel.py``."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.attention.flash_kernel import emit_attention_task
from lowerkit.targets.cpu.attention.scratch import scratch_floats
from lowerkit.targets.cpu.attention.shape import AttentionShape, AttentionTiling, MaskAccess
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.gemm.arithmetic import BF16_PAIRS, of_numbers, takes_pairs
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.linear_access import broadcast_strides
from lowerkit.targets.cpu.text.region_values import Located
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.epilogue import make_epilogue
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["AttentionFamily", "choose_tiling"]

# Scores of up to this many keys stay alive together: 64 KiB for 32 rows, well inside L2, and no rescaling.
_WHOLE_ROW_KEYS = 512
_BLOCK_KEYS = 256


class AttentionFamily(KernelFamily):
    """``lk.attention`` of f32, f16 and bf16 with masks, causal order, grouped queries and an epilogue.

    Batch, heads, queries and keys may be dynamic (heads only where query and key heads are equal in number); the
    feature dimensions must be static.
    """

    name: ClassVar[str] = "attention"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not an attention that this family computes."""
        if region.anchor is None or region.anchor.operation.name != "lk.attention":
            return Refusal("the anchor is not lk.attention")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        text = frame.text
        sources: list[Located] = []
        for number in range(len(operation.operands)):
            source = anchor_operand(region, frame, number)
            if isinstance(source, Refusal):
                return source
            sources.append(source)
        query, key, value = sources[:3]
        if query.buffer.element not in ("f32", "f16", "bf16"):
            return Refusal(f"attention of {query.buffer.element}")
        batch, heads, queries, depth = query.sizes
        key_heads, keys = key.sizes[1], key.sizes[2]
        value_depth = value.sizes[3]
        if not isinstance(depth, int) or not isinstance(value_depth, int):
            return Refusal("the feature dimensions are dynamic")
        if isinstance(heads, int) != isinstance(key_heads, int):
            return Refusal("one of the head counts is dynamic")
        if 0 in (keys, depth):
            return Refusal("there are no keys, or no features to compare")
        group = heads // key_heads if isinstance(heads, int) and isinstance(key_heads, int) else 1
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        causal = ir.BoolAttr(operation.attributes["causal"]).value
        masking = ir.StringAttr(operation.attributes["masking"]).value
        tiling = choose_tiling(cpu, queries, keys, group)
        paired = takes_pairs(query.buffer.element, cpu) and depth % 2 == 0
        text.native_bf16 = cpu.avx512_bf16 and not region.invariant
        stacked = group > 1 and isinstance(queries, int) and queries < tiling.block_rows
        shape = AttentionShape(
            rows=text.imul(queries, group) if stacked else queries,
            queries=queries,
            keys=keys,
            depth=depth,
            value_depth=value_depth,
            scale=ir.FloatAttr(operation.attributes["scale"]).value,
            arithmetic=BF16_PAIRS if paired else of_numbers(query.buffer.element),
            causal=causal,
            fill=ir.FloatAttr(operation.attributes["fill"]).value if masking == "select" else None,
            empty_rows=ir.StringAttr(operation.attributes["empty_rows"]).value,
            stacked=stacked,
        )
        mask_strides = broadcast_strides(text, sources[3].sizes, 4) if len(sources) == 4 else None
        packed_mask = mask_strides is not None and (mask_strides[2] != 0 or (stacked and mask_strides[1] != 0))
        scratch = scratch_floats(shape, tiling, packed_mask)
        task_heads = key_heads if stacked else heads

        with frame.tasks() as task:
            blocks = text.iceildiv(shape.rows, tiling.block_rows)
            at_batch, head, block = text.unravel(task, [batch, task_heads, blocks])
            key_head = head if stacked or group == 1 else text.idiv(head, group)
            mask = None
            if mask_strides is not None:
                per_head = text.imul(mask_strides[1], group) if stacked else mask_strides[1]
                base = text.iadd(text.imul(at_batch, mask_strides[0]), text.imul(head, per_head))
                mask = MaskAccess(sources[3].buffer, base, mask_strides[1], mask_strides[2], mask_strides[3])
            at_query = text.iadd(text.imul(at_batch, task_heads), head)
            at_key = text.iadd(text.imul(at_batch, key_heads), key_head)
            first_row = text.imul(block, tiling.block_rows)

            def write_row(row: Index, results: Buffer) -> None:
                if stacked:
                    member, position = text.unravel(row, [group, queries])
                    place: list[Index] = [at_batch, text.iadd(text.imul(head, group), member), position]
                else:
                    place = [at_batch, head, row]

                def write(index: Index, lanes_mask: Value | None, carried: list[Value]) -> list[Value]:
                    vector = text.narrow(text.read(results, index, tiling.lanes), query.buffer.element)
                    epilogue.store(vector, [*place, index], 3, lanes_mask)
                    return carried

                text.strip(value_depth, tiling.lanes, write)

            def emit(tiling: AttentionTiling) -> None:
                emit_attention_task(
                    text,
                    shape,
                    tiling,
                    text.part(query.buffer, text.imul(at_query, text.imul(shape.rows, depth))),
                    text.part(key.buffer, text.imul(at_key, text.imul(keys, depth))),
                    text.part(value.buffer, text.imul(at_key, text.imul(keys, value_depth))),
                    mask,
                    first_row,
                    frame.scratch,
                    write_row,
                )

            if tiling.may_end_narrow(shape.rows):
                few = text.compare("sle", text.as_value(text.isub(shape.rows, first_row)), text.i64(tiling.lanes))
                with text.when(few):
                    emit(narrow_tiling(cpu, tiling.block_keys))
                with text.when(text.binary("arith.xori", few, text.constant(1, "i1"))):
                    emit(tiling)
            else:
                emit(tiling)
        extents = frame.extents[query.operand]
        row_extent = expression("mul", extents[2], group) if stacked else extents[2]
        head_extent = frame.extents[key.operand][1] if stacked else extents[1]
        tasks = product([extents[0], head_extent, expression("ceildiv", row_extent, tiling.block_rows)])
        way = "whole rows" if isinstance(keys, int) and keys <= tiling.block_keys else "online softmax"
        note = f"{tiling.block_rows} queries a task, {tiling.tile_rows}x{tiling.vectors} vectors, {way}"
        note += ", pairs of bf16" if paired else ""
        return frame.plan(self.name, tasks, 4 * scratch, note)


def narrow_tiling(cpu: CpuFeatures, block_keys: int) -> AttentionTiling:
    """Returns the tiling of as many rows as a vector has lanes."""
    return AttentionTiling(cpu.lanes(32), 1, 24 if cpu.vector_registers == 32 else 12, block_keys)


def choose_tiling(cpu: CpuFeatures, queries: Index, keys: Index, group: int) -> AttentionTiling:
    """Returns the register tile and blocks: 14 x 2 vectors with 32 registers (0.57 loads per FMA), 6 x 2 with 16."""
    lanes = cpu.lanes(32)
    rows = queries * group if isinstance(queries, int) else None
    if isinstance(keys, int):
        blocks = 1 if keys <= _WHOLE_ROW_KEYS else -(-keys // _BLOCK_KEYS)
        block_keys = max(-(-keys // blocks), 1)
    else:
        block_keys = _BLOCK_KEYS
    if rows is not None and rows <= lanes:
        return narrow_tiling(cpu, block_keys)
    return AttentionTiling(lanes, 2, 14 if cpu.vector_registers == 32 else 6, block_keys)
