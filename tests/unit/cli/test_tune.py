"""`lowerkit tune` on a card that runs nothing and says how long it took, up to a compilation that takes the tiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lowerkit.cli import tune_command
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.cuda.device import CudaDevice
from lowerkit.runtimes.cuda.driver import Driver, LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.device import Bytes
from lowerkit.targets.cuda.model.attentions import AttentionShape
from lowerkit.targets.cuda.model.convolutions import ConvShape
from lowerkit.targets.cuda.model.measured_tiles import MeasuredTile, TileFile, asked_of, measured_tile, using_tiles
from lowerkit.targets.cuda.model.products import GemmTile, Product, shortlist
from lowerkit.targets.cuda.model.shortlists import candidates_of, tile_words
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
        self,
        kernel: Any,
        blocks: int,
        threads: int,
        shared: int,
        arguments: Sequence[LaunchBuffer | LaunchTensorMap | int],
        queue: int,
        *,
        early: bool = False,
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
    asked = [each["asked"] for each in document["kernels"]]
    assert {each["type"] for each in asked} == {"gemm"}
    sizes = {(each["rows"], each["columns"], each["depth"]) for each in asked}
    assert sizes == {(64, 512, 256), (64, 64, 512), (64, 64, 64)}  # equal ones are measured once
    assert card.fake.closed and not card.fake.sizes and card.fake.launches > 100
    better = 0
    for each in document["kernels"]:
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


WINDOWS = """
import torch
from torch import nn
from torch.nn import functional as F


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.conv(x)).flatten(2).unflatten(1, (2, 32)).transpose(2, 3)
        return F.scaled_dot_product_attention(x, x, x)


def model():
    torch.manual_seed(3)
    return Mixed().eval().bfloat16(), (torch.randn(2, 32, 16, 16).bfloat16(),)
"""


def test_convolutions_and_attention_are_measured_too(
    card: TimingCard, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    (tmp_path / "mixed.py").write_text(WINDOWS)
    model, file = f"{tmp_path / 'mixed.py'}:model", tmp_path / "tiles.json"
    done = lowerkit_command("tune", model, "--candidates", "4", "--database", file, "--json")
    assert done.code == 0, done.err
    kernels = {each["asked"]["type"]: each for each in json.loads(done.out)["kernels"]}
    assert kernels.keys() == {"conv", "attention"}
    assert (kernels["conv"]["asked"]["rows"], kernels["conv"]["asked"]["taps"]) == (512, 9)
    assert (kernels["attention"]["asked"]["keys"], kernels["attention"]["asked"]["features"]) == (256, 32)
    for each in kernels.values():
        assert [trial["problem"] for trial in each["trials"]] == [""] * 4
        assert each["tile"] in [trial["tile"] for trial in each["trials"]]
    assert kernels["attention"]["trials"][0]["predicted_seconds"] is None
    assert kernels["conv"]["trials"][0]["predicted_seconds"] > 0

    tiles = TileFile.load(file).tiles
    assert len(tiles) == 2
    slow = {key: candidates_of(key[1], key[0])[3].tile for key in tiles}
    entries = [MeasuredTile(level, asked, tile, 1.0, 0.0) for (level, asked), tile in slow.items()]
    TileFile("Fake 9000", entries).save(file)
    target = ("--target", "cuda:sm_90", "-q", "--tiles", file)
    assert lowerkit_command("compile", model, *target, "-o", tmp_path / "slow.lk").code == 0
    done = lowerkit_command("inspect", tmp_path / "slow.lk", "--json")
    threads = {each["family"]: each["threads"] for each in json.loads(done.out)["cuda"]["launches"]}
    for (_, asked), tile in slow.items():
        assert threads[msgspec.to_builtins(asked)["type"]] == 32 * tile.warps


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
    found = {
        each["asked"]["rows"] * each["asked"]["columns"] * each["asked"]["depth"]: each
        for each in json.loads(done.out)["kernels"]
    }
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


TILE: dict[str, Any] = {"type": "gemm", "m": 64, "n": 64, "k": 64, "warps": 4, "stages": 3, "split": 1}
PRODUCT: dict[str, Any] = {"type": "gemm", "rows": 64, "columns": 64, "depth": 64, "batch": 1, "element": "bf16"}
CONVOLUTION, ATTENTION = (
    msgspec.to_builtins(each)
    for each in (ConvShape("bf16", 64, 64, 1, 9, 64, 1, True, 0), AttentionShape("bf16", 512, 512, 8, 64, False))
)
CONV_TILE, ATTENTION_TILE = (
    msgspec.to_builtins(candidates_of(asked_of(json.dumps(each)), "sm_90")[1].tile) for each in (CONVOLUTION, ATTENTION)
)
GOOD: dict[str, Any] = {"level": "sm_90", "asked": PRODUCT, "tile": TILE, "seconds": 1.0, "predicted": 1.0}


def test_tiles_of_the_tma_unit_are_kept_and_older_files_read(tmp_path: Path) -> None:
    """A file has no word of the unit, or all that is said of a tile."""
    path = tmp_path / "tiles.json"
    described = PRODUCT | {"described": True}
    entries = [
        GOOD,
        GOOD | {"asked": described | {"rows": 4096}, "tile": TILE | {"n": 192, "tma": True}},
        GOOD | {"asked": described, "tile": TILE | {"n": 32, "tma": True, "persistent": True}},
    ]
    path.write_text(json.dumps({"schema": "lowerkit.cuda_tiles", "version": 2, "card": "x", "entries": entries}))
    read = TileFile.load(path)
    read.save(path)
    assert TileFile.load(path) == read
    first, second, third = read.entries
    assert first.tile == GemmTile(64, 64, 64, 4, 3)
    assert tile_words(second.tile) == "64 x 192 x 64, 4 warps, 3 stages, TMA"
    assert tile_words(third.tile) == "64 x 32 x 64, 4 warps, 3 stages, TMA, persistent"
    with using_tiles(read.tiles):
        assert measured_tile(Product(64, 64, 64, 1, "bf16"), "sm_90") == first.tile
        assert measured_tile(Product(64, 64, 64, 1, "bf16", described=True), "sm_90") == third.tile


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": "sm_70"}, "no card for 'sm_70'"),
        ({"tile": TILE | {"m": 48}}, "no kernel with"),
        ({"tile": TILE | {"m": 8}}, "no kernel with"),
        ({"tile": TILE | {"warps": 32}}, "no kernel with"),
        ({"tile": TILE | {"split": 128}}, "no kernel with"),
        ({"tile": TILE | {"tma": True}}, "no kernel with"),
        ({"tile": TILE | {"persistent": True}}, "no kernel with"),
        ({"asked": PRODUCT | {"described": True}, "tile": TILE | {"tma": True, "n": 80}}, "no kernel with"),
        ({"asked": PRODUCT | {"described": True}, "tile": TILE | {"tma": True}, "level": "sm_100"}, "no kernel with"),
        ({"tile": TILE | {"m": 256, "n": 256, "k": 256}}, "no kernel with"),
        ({"asked": PRODUCT | {"element": "f7"}}, "no kernel with"),
        ({"asked": PRODUCT | {"rows": 0}}, "no kernel with"),
        ({"asked": CONVOLUTION}, "no kernel with"),
        ({"tile": ATTENTION_TILE}, "no kernel with"),
        ({"asked": CONVOLUTION, "tile": CONV_TILE | {"m": 48}}, "no kernel with"),
        ({"asked": CONVOLUTION | {"rows": -1}, "tile": CONV_TILE}, "no kernel with"),
        ({"asked": ATTENTION, "tile": ATTENTION_TILE | {"keys": 4096}}, "no kernel with"),
        ({"asked": ATTENTION | {"element": "i8"}, "tile": ATTENTION_TILE}, "no kernel with"),
        ({"seconds": "long"}, "Expected `float`"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_files_with_tiles_that_are_none(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    document = {"schema": "lowerkit.cuda_tiles", "version": 2, "card": "x", "entries": [GOOD]}
    path.write_text(json.dumps(document))
    assert len(TileFile.load(path).entries) == 1
    others = [
        GOOD | {"asked": CONVOLUTION, "tile": CONV_TILE},
        GOOD | {"asked": ATTENTION, "tile": ATTENTION_TILE},
    ]
    path.write_text(json.dumps(document | {"entries": others}))
    assert len(TileFile.load(path).tiles) == 2
    path.write_text(json.dumps(document | {"entries": [GOOD | change]}))
    with pytest.raises(LowerkitError, match=words) as caught:
        TileFile.load(path)
    assert caught.value.code == "LK1002"
    path.write_text(json.dumps(document | {"version": 1}))
    with pytest.raises(LowerkitError, match="version 2: it is lowerkit.cuda_tiles 1"):
        TileFile.load(path)


def test_tiles_hold_within_their_block_alone() -> None:
    product = Product(64, 64, 64, 1, "bf16")
    tile = shortlist(product, "sm_90")[3].tile
    with using_tiles({("sm_90", product): tile}):
        assert measured_tile(product, "sm_90") == tile
        assert measured_tile(product, "sm_80") is None
    assert measured_tile(product, "sm_90") is None
