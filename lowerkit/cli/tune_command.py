"""`lowerkit tune`: measures the kernels of a model on this machine's card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.model_options import capture_model, model_options
from lowerkit.cli.output import json_option, print_json, print_table, progress, quiet_option
from lowerkit.errors import RuntimeFault, UsageError

if TYPE_CHECKING:
    from lowerkit.bench.tile_tuning import Trial
    from lowerkit.runtimes.cuda.device import CudaDevice
    from lowerkit.targets.cuda.model.measured_tiles import MeasuredTile


@click.command("tune")
@model_options
@click.option("--target", default="cuda:sm_90", show_default=True, metavar="cuda:LEVEL", help="The card's level.")
@click.option("--candidates", default=8, show_default=True, help="Tiles that are measured for each.")
@click.option(
    "--database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. [default: the card's, in the cache]",
)
@click.option("--dry-run", is_flag=True, help="Write no file.")
@json_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    target: str,
    candidates: int,
    database: Path | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure tiles of MODEL's products, convolutions and attention on this card, for `compile --tiles`.

    JSON fields: card, file (null: `--dry-run`), kernels [{level, asked {type: gemm, conv or attention; its sizes},
    tile, trials [{tile, predicted_seconds, seconds, problem}]}]; tile is null where no candidate ran,
    predicted_seconds is null where none are predicted.
    """
    if candidates < 1:
        raise UsageError("LK1009", f"--candidates is {candidates}, expected at least 1")

    from lowerkit.bench.tile_tuning import best_of, tune_tiles
    from lowerkit.compiled import CompileOptions
    from lowerkit.targets.cuda.model.launches import DEVICE
    from lowerkit.targets.cuda.model.measured_tiles import TileFile, default_path

    options = CompileOptions(target=target, golden=False)
    level = next((each.level for each in options.spec.accelerator_targets if each.name == DEVICE), None)
    if level is None:
        raise UsageError("LK1009", f"--target is {target!r}, expected cuda with a level, such as cuda:sm_90")
    device = open_card(level)
    try:
        card = str(getattr(device.driver, "name", "card"))
        path = database or default_path(card)
        known = TileFile.load(path) if path.exists() else TileFile(card, [])
        if known.card != card:
            raise UsageError("LK1009", f"{path} was measured on {known.card}, this card is {card}", hint="name another")
        with progress(quiet) as show:
            trials = tune_tiles(capture_model(model, inputs, dynamic, seed), options, device, candidates, show)
    finally:
        device.close()
    best = best_of(trials)
    if not dry_run:
        known.with_entries(best).save(path)
    if as_json:
        print_json("tune", {"card": card, "file": None if dry_run else str(path), "kernels": _json(trials, best)})
        return
    print_table(f"kernels on {card}", _COLUMNS, _rows(trials, best))
    click.echo("nothing was written (--dry-run)" if dry_run else f"wrote {path}: lowerkit compile --tiles takes it")


def open_card(level: str) -> CudaDevice:
    """Opens this machine's card.

    Raises:
        RuntimeFault: LK8020, there is none that runs code of the level.
    """
    from lowerkit.runtimes.cuda.device import CudaDevice

    try:
        return CudaDevice(level)
    except RuntimeFault as error:
        raise RuntimeFault(error.code, error.message, hint="tiles are measured on a card: run it there") from error


_COLUMNS = ("level", "kernel", "tile", "predicted us", "us", "")


def _rows(trials: Sequence[Trial], best: Sequence[MeasuredTile]) -> list[list[object]]:
    from lowerkit.targets.cuda.model.shortlists import asked_words, tile_words

    chosen = {(each.level, each.asked): each.tile for each in best}
    return [
        [
            each.level,
            asked_words(each.asked),
            tile_words(each.tile),
            f"{each.predicted * 1e6:.2f}" if each.predicted else "-",
            "-" if each.problem else f"{each.seconds * 1e6:.2f}",
            each.problem or ("taken" if chosen.get((each.level, each.asked)) == each.tile else ""),
        ]
        for each in sorted(trials, key=lambda each: (each.level, str(each.asked)))
    ]


def _json(trials: Sequence[Trial], best: Sequence[MeasuredTile]) -> list[dict[str, Any]]:
    import msgspec

    chosen = {(each.level, each.asked): msgspec.to_builtins(each.tile) for each in best}
    return [
        {
            "level": level,
            "asked": msgspec.to_builtins(asked),
            "tile": chosen.get((level, asked)),
            "trials": [
                {
                    "tile": msgspec.to_builtins(each.tile),
                    "predicted_seconds": each.predicted or None,
                    "seconds": each.seconds,
                    "problem": each.problem,
                }
                for each in trials
                if (each.level, each.asked) == (level, asked)
            ],
        }
        for level, asked in dict.fromkeys((each.level, each.asked) for each in trials)
    ]
