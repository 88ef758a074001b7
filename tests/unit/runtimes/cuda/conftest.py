"""The codes of the simulated device, until the table of errors lists them."""

from __future__ import annotations

from lowerkit.errors import CODES

CODES.setdefault("LK8017", "a kernel on the simulated device does what no kernel may do")
CODES.setdefault("LK8018", "the simulated device does not know this PTX")
