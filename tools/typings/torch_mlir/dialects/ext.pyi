# The bindings carry no types; this keeps pyright from calling every name in them unknown.
# pyright: basic
from typing import Any

def __getattr__(name: str) -> Any: ...
