"""LLVM IR that looks for an index out of range, for C programs: ``runtimes/native/executor/index_check.cpp``."""

from __future__ import annotations

SEARCH = """
define internal i64 @{name}_index(ptr %indices, i64 %number, i64 %item) {{
  %offset = mul i64 %number, %item
  %place = getelementptr i8, ptr %indices, i64 %offset
  switch i64 %item, label %of8 [ i64 1, label %of1  i64 2, label %of2  i64 4, label %of4 ]
of1:
  %v1 = load i8, ptr %place, align 1
  %w1 = sext i8 %v1 to i64
  ret i64 %w1
of2:
  %v2 = load i16, ptr %place, align 1
  %w2 = sext i16 %v2 to i64
  ret i64 %w2
of4:
  %v4 = load i32, ptr %place, align 1
  %w4 = sext i32 %v4 to i64
  ret i64 %w4
of8:
  %v8 = load i64, ptr %place, align 1
  ret i64 %v8
}}

define internal i64 @{name}_first_fault(ptr %indices, i64 %count, i64 %item, i1 %wraps, i1 %has_exempt, i64 %exempt,
                                        ptr %extents, i64 %extent_count) {{
entry:
  br label %turn
turn:
  %number = phi i64 [ 0, %entry ], [ %next, %inside ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %look, label %none
look:
  %index = call i64 @{name}_index(ptr %indices, i64 %number, i64 %item)
  %which = srem i64 %number, %extent_count
  %extent_at = getelementptr i64, ptr %extents, i64 %which
  %extent = load i64, ptr %extent_at, align 8
  %negative = sub i64 0, %extent
  %least = select i1 %wraps, i64 %negative, i64 0
  %below = icmp slt i64 %index, %least
  %above = icmp sge i64 %index, %extent
  %outside = or i1 %below, %above
  %same = icmp eq i64 %index, %exempt
  %excused = and i1 %same, %has_exempt
  %asked = xor i1 %excused, true
  %fault = and i1 %outside, %asked
  br i1 %fault, label %found, label %inside
inside:
  %next = add i64 %number, 1
  br label %turn
found:
  ret i64 %number
none:
  ret i64 -1
}}
"""
"""To be formatted with ``name``. The second gives the number of the element, -1 where all are in range."""
