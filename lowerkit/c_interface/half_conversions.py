"""Conversions between 16-bit floats and wider ones that kernels may call, as LLVM IR: libgcc has not all of them.

They give the same bits as ``runtimes/native/executor/support_routines.cpp``. Doubles are rounded once: first to float32
with rounding to odd (the last bit says whether anything was cut off), which a second rounding to fewer bits cannot
mistake (Boldo and Melquiond, "When double rounding is odd", 2004).
"""

from __future__ import annotations

ROUTINES: dict[str, str] = {
    "__truncsfhf2": """
define hidden half @{name}(float %x) {{
  %y = fptrunc float %x to half
  ret half %y
}}
""",
    "__truncdfhf2": """
define hidden half @{name}(double %x) {{
  %odd = call float @{prefix}round_to_odd(double %x)
  %y = fptrunc float %odd to half
  ret half %y
}}
""",
    "__truncsfbf2": """
define hidden bfloat @{name}(float %x) {{
  %y = call bfloat @{prefix}to_bfloat(float %x)
  ret bfloat %y
}}
""",
    "__truncdfbf2": """
define hidden bfloat @{name}(double %x) {{
  %odd = call float @{prefix}round_to_odd(double %x)
  %y = call bfloat @{prefix}to_bfloat(float %odd)
  ret bfloat %y
}}
""",
    "__extendhfsf2": """
define hidden float @{name}(half %x) {{
  %y = fpext half %x to float
  ret float %y
}}
""",
    "__extendhfdf2": """
define hidden double @{name}(half %x) {{
  %wide = fpext half %x to float
  %y = fpext float %wide to double
  ret double %y
}}
""",
}
"""Import name -> IR of the function ``{name}`` that takes its place."""

HELPERS = """
define internal float @{prefix}round_to_odd(double %x) {{
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %near_size = call double @llvm.fabs.f64(double %back)
  %size = call double @llvm.fabs.f64(double %x)
  %above = fcmp ogt double %near_size, %size
  %bits = bitcast float %near to i32
  %below = sub i32 %bits, 1
  %cut = select i1 %above, i32 %below, i32 %bits
  %inexact = fcmp one double %back, %x
  %sticky = zext i1 %inexact to i32
  %odd = or i32 %cut, %sticky
  %y = bitcast i32 %odd to float
  ret float %y
}}

define internal bfloat @{prefix}to_bfloat(float %x) {{
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %last = and i32 %high, 1
  %half = add i32 %last, 32767
  %sum = add i32 %bits, %half
  %rounded = lshr i32 %sum, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %x, %x
  %chosen = select i1 %nan, i32 %quiet, i32 %rounded
  %narrow = trunc i32 %chosen to i16
  %y = bitcast i16 %narrow to bfloat
  ret bfloat %y
}}

declare double @llvm.fabs.f64(double)
"""


def routine_ir(imports: list[str], prefix: str) -> tuple[str, dict[str, str]]:
    """Returns the IR of the imports that are defined here, and import name -> the symbol to call for all of them.

    Args:
        imports: names that a code image calls.
        prefix: of every symbol that is defined.
    """
    symbols = {name: f"{prefix}{name.strip('_')}" if name in ROUTINES else name for name in imports}
    own = [name for name in imports if name in ROUTINES]
    if not own:
        return "", symbols
    text = HELPERS.format(prefix=prefix) + "".join(
        ROUTINES[name].format(name=symbols[name], prefix=prefix) for name in own
    )
    kept = ", ".join(f"ptr @{symbols[name]}" for name in own)
    return (
        f'{text}\n@llvm.compiler.used = appending global [{len(own)} x ptr] [{kept}], section "llvm.metadata"\n',
        symbols,
    )
