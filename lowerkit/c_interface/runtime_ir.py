"""LLVM IR that every model has: arithmetic of shapes, and how a step is handed to the caller's threads."""

from __future__ import annotations

SHARED = """
@{name}_code = external hidden global i8
@{name}_weights = external hidden global i8

declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal i64 @{name}_floordiv(i64 %a, i64 %b) {{
  %quotient = sdiv i64 %a, %b
  %rest = srem i64 %a, %b
  %below = icmp slt i64 %rest, 0
  %down = sext i1 %below to i64
  %floor = add i64 %quotient, %down
  ret i64 %floor
}}

define internal i64 @{name}_ceildiv(i64 %a, i64 %b) {{
  %negative = sub i64 0, %a
  %floor = call i64 @{name}_floordiv(i64 %negative, i64 %b)
  %ceiling = sub i64 0, %floor
  ret i64 %ceiling
}}

define internal i64 @{name}_mod(i64 %a, i64 %b) {{
  %rest = srem i64 %a, %b
  %below = icmp slt i64 %rest, 0
  %more = select i1 %below, i64 %b, i64 0
  %mod = add i64 %rest, %more
  ret i64 %mod
}}

define internal void @{name}_task(ptr %work, i64 %begin, i64 %end, i32 %thread) {{
  %kernel = load ptr, ptr %work, align 8
  %buffers_at = getelementptr i8, ptr %work, i64 8
  %buffers = load ptr, ptr %buffers_at, align 8
  %dims_at = getelementptr i8, ptr %work, i64 16
  %dims = load ptr, ptr %dims_at, align 8
  %scratch_at = getelementptr i8, ptr %work, i64 24
  %scratch = load ptr, ptr %scratch_at, align 8
  %number = sext i32 %thread to i64
  %offset = mul i64 %number, {scratch}
  %own = getelementptr i8, ptr %scratch, i64 %offset
  call void %kernel(ptr %buffers, ptr %dims, i64 %begin, i64 %end, ptr %own)
  ret void
}}

define internal void @{name}_dispatch(ptr %kernel, ptr %buffers, ptr %dims, i64 %tasks, ptr %scratch, ptr %parallel,
                                      ptr %pool) noinline {{
  %some = icmp sgt i64 %tasks, 0
  br i1 %some, label %work, label %done
work:
  %alone = icmp eq ptr %parallel, null
  br i1 %alone, label %here, label %spread
here:
  call void %kernel(ptr %buffers, ptr %dims, i64 0, i64 %tasks, ptr %scratch)
  br label %done
spread:
  %call = alloca [4 x ptr], align 8
  store ptr %kernel, ptr %call, align 8
  %buffers_at = getelementptr i8, ptr %call, i64 8
  store ptr %buffers, ptr %buffers_at, align 8
  %dims_at = getelementptr i8, ptr %call, i64 16
  store ptr %dims, ptr %dims_at, align 8
  %scratch_at = getelementptr i8, ptr %call, i64 24
  store ptr %scratch, ptr %scratch_at, align 8
  call void %parallel(ptr %pool, i64 %tasks, ptr @{name}_task, ptr %call)
  br label %done
done:
  ret void
}}

"""
"""To be formatted with ``name`` and ``scratch``, the bytes of a thread."""
