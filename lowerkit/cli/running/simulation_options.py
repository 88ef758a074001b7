"""The options of `lowerkit run --sim` that say how the ranks are joined, what their steps take, and who fails."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from lowerkit.runtimes.mesh.run_time import Network
    from lowerkit.runtimes.mesh.step_seconds import StepSeconds

_KILL = re.compile(r"(\d+)@(\d+)")


@dataclass(frozen=True)
class SimulationOptions:
    """What was asked of a simulation; the fields are texts of the options, None where they were not given.

    Attributes:
        link: bandwidth and latency of each way between two ranks, ``25GB/s,5us``.
        jitter: time on top of the latency.
        loss: probability that a message never arrives.
        kill: for each rank that dies ``RANK@MESSAGES``.
        device_flops, device_bandwidth: of a rank's device.
        step_times: a JSON file, from patterns of step names to times.
    """

    link: str | None = None
    jitter: str | None = None
    loss: float | None = None
    kill: tuple[str, ...] = ()
    device_flops: str | None = None
    device_bandwidth: str | None = None
    step_times: Path | None = None

    def given(self) -> list[str]:
        """Returns the names of the options that were given."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, ())]

    def network(self, ranks: int, seed: int, timeout: float) -> Network:
        """Returns what joins ``ranks`` ranks; ``timeout`` is in seconds of their clock.

        Raises:
            UsageError: LK1009, an option is malformed.
        """
        from lowerkit.runtimes.mesh.run_time import Network
        from lowerkit.spmd.cost.machine import LinkModel
        from lowerkit.spmd.cost.quantities import parse_seconds

        link = None if self.link is None else LinkModel.parse(self.link)
        return Network(
            latency=0.0 if link is None else link.latency,
            bandwidth=0.0 if link is None else link.bandwidth,
            jitter=0.0 if self.jitter is None else parse_seconds(self.jitter, "--jitter"),
            loss=self.loss or 0.0,
            death=dict(_death(text, ranks) for text in self.kill),
            seed=seed,
            timeout=timeout,
        )

    def step_seconds(self) -> StepSeconds | None:
        """Returns what steps take; None: they are to be measured.

        Raises:
            UsageError: LK1009, an option is malformed, or one excludes another.
            InputError: LK1001, the file of times cannot be read.
        """
        from lowerkit.runtimes.mesh.step_seconds import GivenSeconds, ModelledSeconds
        from lowerkit.spmd.cost.quantities import parse_operations, parse_rate

        device = (self.device_flops, self.device_bandwidth)
        if self.step_times is not None:
            if device != (None, None):
                raise UsageError(
                    "LK1009", "--step-times and --device-flops exclude each other", hint="give one of them"
                )
            return GivenSeconds(_read_times(self.step_times))
        if device == (None, None):
            return None
        if self.device_flops is None or self.device_bandwidth is None:
            raise UsageError(
                "LK1009",
                "--device-flops and --device-bandwidth belong together",
                hint="a step takes the longer of its operations and its bytes",
            )
        flops = parse_operations(self.device_flops, "--device-flops")
        return ModelledSeconds(flops, parse_rate(self.device_bandwidth, "--device-bandwidth"))


def simulation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, which gets them as one argument ``simulated``."""

    @functools.wraps(command)
    def gathered(*arguments: Any, **given: Any) -> None:
        names = list(SimulationOptions.__dataclass_fields__)
        simulated = SimulationOptions(**{name: given.pop(name) for name in names})
        command(*arguments, simulated=simulated, **given)

    options = (
        click.option("--link", metavar="RATE,LATENCY", help="With --sim, between any two ranks: 25GB/s,5us."),
        click.option("--jitter", metavar="TIME", help="With --sim: up to so much more latency of each message, 1us."),
        click.option(
            "--loss", metavar="P", type=click.FloatRange(0, 1), help="With --sim: how likely a message is to get lost."
        ),
        click.option(
            "--kill",
            metavar="RANK@MESSAGES",
            multiple=True,
            help="With --sim: the rank dies when it has sent so many messages of the run; repeat.",
        ),
        click.option(
            "--device-flops",
            metavar="RATE",
            help="With --sim: operations per second of a rank, 990T. [default: steps are measured here]",
        ),
        click.option("--device-bandwidth", metavar="RATE", help="With --sim: between a rank and its memory, 3.35TB/s."),
        click.option(
            "--step-times",
            type=click.Path(path_type=Path),
            metavar="TIMES.json",
            help='With --sim: what steps take, from patterns of their names: {"linear*": "1.2ms", "*": "20us"}.',
        ),
    )
    for option in reversed(options):
        gathered = option(gathered)
    return gathered


def _death(text: str, ranks: int) -> tuple[int, int]:
    match = _KILL.fullmatch(text)
    if match is None or int(match[1]) >= ranks:
        raise UsageError(
            "LK1009",
            f"--kill is {text!r}, expected RANK@MESSAGES with a rank from 0 to {ranks - 1}",
            hint="--kill 1@20: rank 1 dies when it has sent 20 messages",
        )
    return int(match[1]), int(match[2])


def _read_times(path: Path) -> dict[str, float]:
    from lowerkit.spmd.cost.quantities import parse_seconds

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("LK1001", f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError("LK1009", f"--step-times: {path} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UsageError(
            "LK1009",
            f"--step-times: {path} is no object from patterns of step names to times",
            hint='write it as {"linear*": "1.2ms", "*": "20us"}',
        )
    return {pattern: parse_seconds(text, f"the time of {pattern!r}") for pattern, text in found.items()}
