"""`lowerkit tune` on a card that runs nothing and says how long it took, up to a compilation that takes the tiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lowerkit.cli import tune_command
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.cuda.device import CudaDevice
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer
from lowerkit.runtimes.device import Bytes
from lowerkit.targets.cuda.model.measured_tiles import MeasuredTile, TileFile, measured_tile, using_tiles
from lowerkit.targets.cuda.model.products import GemmTile, Product, shortlist
from tests.unit.cli.conftest import RunCommand

MODEL = """
import torch
from torch import nn


def model():
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    return layers.eval().bfloat16(), (torch.ones(64, 256, dtype=torch.bfloat16),)
"""


class TimingDriver(Driver):
    """Runs nothing; a launch takes as long as it has blocks: the largest tiles are the fastest."""

    def __init__(self, room: int, name: str) -> None:
        self.capability = 9, 0
        self.name = name
        self.room = room
        self.now = 0.0
        self.sizes: dict[int, int] = {}
        self.launches = 0
        self.closed = False

    def allocate(self, size: int) -> int:
        if size > self.room:
            raise MemoryError(f"{size} bytes")
        address = 256 * (1 + max(self.sizes, default=0) // 256) + sum(self.sizes.values()) // 256 * 256
        self.sizes[address] = size
        return address

    def free(self, address: int) -> None:
        del self.sizes[address]

    def write(self, address: int, data: Bytes, queue: int) -> None:
        assert data.size <= self.sizes[address]

    def read(self, data: Bytes, address: int, queue: int) -> None:
        raise AssertionError("no result is looked at")

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        raise AssertionError("nothing is copied")

    def load(self, ptx: bytes, cubin: bytes, level: str) -> Any:
        assert ptx and level == "sm_90"
        return ptx

    def kernel(self, module: Any, name: str) -> Any:
        assert name.encode() in module
        return name

    def launch(
        self, kernel: Any, blocks: int, threads: int, shared: int, arguments: Sequence[LaunchBuffer | int], queue: int
    ) -> None:
        self.launches += 1
        self.now += 1e-6 * blocks

    def record(self, queue: int) -> Any:
        return None

    def wait(self, event: Any, queue: int) -> None:
        pass

    def synchronize(self, queue: int) -> None:
        pass

    def mark(self, queue: int) -> float:
        return self.now

    def seconds_between(self, first: float, last: float) -> float:
        return last - first

    def begin_capture(self, queue: int) -> None:
        raise AssertionError("launches are put into the queue one by one")

    def end_capture(self, queue: int) -> Any:
        raise AssertionError("nothing is captured")

    def launch_graph(self, graph: Any, queue: int) -> None:
        raise AssertionError("nothing is captured")

    def destroy_graph(self, graph: Any) -> None:
        raise AssertionError("nothing is captured")

    def close(self) -> None:
        self.closed = True


class TimingCard(CudaDevice):
    """A card by that driver."""

    def __init__(self, room: int = 1 << 30, name: str = "Fake 9000") -> None:
        self.fake = TimingDriver(room, name)
        super().__init__("sm_90")

    def _open_driver(self) -> Driver:
        return self.fake


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> TimingCard:
    made = TimingCard()
    monkeypatch.setattr(tune_command, "open_card", lambda level: made)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tune") / "layers.py"
    path.write_text(MODEL)
    return f"{path}:model"


def blocks_of(artifact: Path, lowerkit_command: RunCommand) -> dict[str, int]:
    done = lowerkit_command("inspect", artifact, "--json")
    assert done.code == 0, done.err
    return {each["step"]: each["blocks"] for each in json.loads(done.out)["cuda"]["launches"] if each["flops"] > 10**5}


def test_from_a_model_to_tiles_that_a_compilation_takes(
    model: str, card: TimingCard, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    file = tmp_path / "tiles.json"
    done = lowerkit_command("tune", model, "--candidates", "6", "--database", file, "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["card"], document["file"]) == ("Fake 9000", str(file))
    sizes = {(each["rows"], each["columns"], each["depth"]) for each in document["products"]}
    assert sizes == {(64, 512, 256), (64, 64, 512), (64, 64, 64)}  # equal ones are measured once
    assert card.fake.closed and not card.fake.sizes and card.fake.launches > 100
    better = 0
    for each in document["products"]:
        assert len({json.dumps(trial["tile"]) for trial in each["trials"]}) == len(each["trials"]) == 6
        seconds = [trial["seconds"] for trial in each["trials"]]
        assert each["tile"] == each["trials"][seconds.index(min(seconds))]["tile"]
        assert [trial["predicted_seconds"] for trial in each["trials"]] == sorted(
            trial["predicted_seconds"] for trial in each["trials"]
        )
        better += each["tile"] != each["trials"][0]["tile"]
    assert better, "some tile that is not the predicted best is the fastest on this card"
    read = TileFile.load(file)
    assert (read.card, len(read.entries)) == ("Fake 9000", 3)

    for name, arguments in (("plain", ()), ("tuned", ("--tiles", file))):
        target = ("--target", "cuda:sm_90", "-o", tmp_path / f"{name}.lk", "-q")
        assert lowerkit_command("compile", model, *target, *arguments).code == 0
    plain, tuned = (blocks_of(tmp_path / f"{name}.lk", lowerkit_command) for name in ("plain", "tuned"))
    assert plain.keys() == tuned.keys()
    assert all(tuned[step] <= plain[step] for step in plain) and plain != tuned


def test_a_table_and_a_file_that_grows(
    model: str, card: TimingCard, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiles.json"
    other = MeasuredTile("sm_90", Product(16, 16, 16, 1, "bf16"), GemmTile(16, 16, 16, 4, 4), 1.0, 2.0)
    TileFile("Fake 9000", [other]).save(file)
    before = file.read_bytes()
    done = lowerkit_command("tune", model, "--candidates", "1", "--database", file, "--dry-run")
    assert done.code == 0 and "nothing was written" in done.out and file.read_bytes() == before
    assert "64 x 512 x 256" in done.out and "taken" in done.out
    done = lowerkit_command("tune", model, "--candidates", "1", "--database", file)
    assert done.code == 0, done.err
    assert len(TileFile.load(file).entries) == 4 and other in TileFile.load(file).entries
    monkeypatch.setattr(tune_command, "open_card", lambda level: TimingCard(name="Other"))
    done = lowerkit_command("tune", model, "--database", file)
    assert done.code == 2 and "LK1009" in done.err and "Fake 9000" in done.err


def test_what_does_not_fit_on_the_card_is_said(
    model: str, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_command, "open_card", lambda level: TimingCard(room=40_000))
    done = lowerkit_command("tune", model, "--candidates", "1", "--database", tmp_path / "tiles.json", "--json")
    assert done.code == 0, done.err
    found = {each["rows"] * each["columns"] * each["depth"]: each for each in json.loads(done.out)["products"]}
    assert found[64 * 64 * 64]["tile"] is not None
    assert found[64 * 512 * 256]["tile"] is None
    assert "do not fit on the card" in found[64 * 512 * 256]["trials"][0]["problem"]


def test_without_a_card_and_with_wrong_options(model: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    done = lowerkit_command("tune", model)
    assert done.code == 8 and "LK8020" in done.err and "measured on a card" in done.err
    done = lowerkit_command("tune", model, "--target", "cpu")
    assert done.code == 2 and "LK1009" in done.err
    done = lowerkit_command("tune", model, "--candidates", "0")
    assert done.code == 2 and "LK1009" in done.err
    missing = tmp_path / "none.json"
    arguments = ("compile", model, "-o", tmp_path / "x.lk", "--tiles", missing)
    done = lowerkit_command(*arguments)
    assert done.code == 2 and "LK1004" in done.err and "without the target cuda" in done.err
    done = lowerkit_command(*arguments, "--target", "cuda:sm_90")
    assert done.code == 3 and "LK1001" in done.err and "lowerkit tune" in done.err


TILE: dict[str, int] = {"m": 64, "n": 64, "k": 64, "warps": 4, "stages": 3, "split": 1}
PRODUCT: dict[str, Any] = {"rows": 64, "columns": 64, "depth": 64, "batch": 1, "element": "bf16"}
GOOD: dict[str, Any] = {"level": "sm_90", "product": PRODUCT, "tile": TILE, "seconds": 1.0, "predicted": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": "sm_70"}, "no card for 'sm_70'"),
        ({"tile": TILE | {"m": 48}}, "no tile"),
        ({"tile": TILE | {"m": 8}}, "no tile"),
        ({"tile": TILE | {"warps": 32}}, "no tile"),
        ({"tile": TILE | {"split": 128}}, "no tile"),
        ({"tile": TILE | {"m": 256, "n": 256, "k": 256}}, "does not fit"),
        ({"product": PRODUCT | {"element": "f64"}}, "no product"),
        ({"product": PRODUCT | {"rows": 0}}, "no product"),
        ({"seconds": "long"}, "Expected `float`"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_files_with_tiles_that_are_none(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    document = {"schema": "lowerkit.cuda_tiles", "version": 1, "card": "x", "entries": [GOOD]}
    path.write_text(json.dumps(document))
    assert len(TileFile.load(path).entries) == 1
    path.write_text(json.dumps(document | {"entries": [GOOD | change]}))
    with pytest.raises(LowerkitError, match=words) as caught:
        TileFile.load(path)
    assert caught.value.code == "LK1002"
    path.write_text(json.dumps(document | {"version": 2}))
    with pytest.raises(LowerkitError, match="version 1"):
        TileFile.load(path)


def test_tiles_hold_within_their_block_alone() -> None:
    product = Product(64, 64, 64, 1, "bf16")
    tile = shortlist(product, "sm_90")[3].tile
    with using_tiles({("sm_90", product): tile}):
        assert measured_tile(product, "sm_90") == tile
        assert measured_tile(product, "sm_80") is None
    assert measured_tile(product, "sm_90") is None
