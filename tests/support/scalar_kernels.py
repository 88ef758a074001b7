"""Small kernels that the tests of the compiler and the linker share."""

from __future__ import annotations

from lowerkit.targets.cpu.text.abi import Shaped, kernel_module, prologue
from lowerkit.targets.plan import DeviceCode, dim


def unary_text(scalar_body: str, element: str = "f32", helpers: str = "") -> str:
    """A kernel over ``[?, 16]``: ``%y`` of ``scalar_body`` is computed from ``%x``, one row a task."""
    head = prologue([Shaped((None, 16), element), Shaped((None, 16), element)])
    body = f"""{head.text}
  %first = arith.index_cast %task_begin : i64 to index
  %last = arith.index_cast %task_end : i64 to index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  scf.for %i = %first to %last step %c1 {{
    scf.for %j = %c0 to %c16 step %c1 {{
      %x = memref.load {head.buffers[0]}[%i, %j] : {head.types[0]}
      {scalar_body}
      memref.store %y, {head.buffers[1]}[%i, %j] : {head.types[1]}
    }}
  }}
"""
    return kernel_module(body, helpers)


def unary_plan(scalar_body: str, element: str = "f32", helpers: str = "") -> DeviceCode:
    return DeviceCode("test", unary_text(scalar_body, element, helpers), dim(0))


def add_constant(value: int) -> DeviceCode:
    """x + value."""
    return unary_plan(f"%k = arith.constant {value}.0 : f32\n      %y = arith.addf %x, %k : f32")
