"""41 and 52: outputs that cannot be written, or must not be."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.bad_inputs.case import OUTPUT, BadInput, compile_commands
from tests.support.bad_inputs.files import INPUT, exported


def sound_model(folder: Path) -> list[list[str]]:
    (folder / "model.pt2").write_bytes(exported())
    return compile_commands("model.pt2", inputs=(INPUT,))


def unwritable(folder: Path) -> list[list[str]]:
    """This user may be root, whom permissions do not stop: folders of the kernel stop everyone."""
    (command,) = sound_model(folder)
    places = ["/proc/model.lk", "/sys/model.lk", "/dev/null", "no/such/folder/model.lk", ".", "model.pt2/x.lk"]
    return [[place if text == OUTPUT else text for text in command] for place in places]


def output_is_input(folder: Path) -> list[list[str]]:
    (command,) = sound_model(folder)
    (folder / "link.pt2").symlink_to("model.pt2")
    os.link(folder / "model.pt2", folder / "hard.pt2")
    places = ["model.pt2", "./model.pt2", "link.pt2", "hard.pt2", str(folder / "model.pt2")]
    return [[place if text == OUTPUT else text for text in command] for place in places]


CASES = [
    BadInput(41, "full-disk", sound_model, exit_code=7, says=("LK7001",), file_bytes=4096),
    BadInput(41, "read-only-output", unwritable, says=("LK1005",)),
    BadInput(52, "output-is-input", output_is_input, exit_code=2, says=("LK1006",)),
]
