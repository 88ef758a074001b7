"""``LowerkitPredictor``: an artifact in ``map_batches`` of Ray Data.

::

    actors = ray.data.ActorPoolStrategy(size=2)
    dataset.map_batches(LowerkitPredictor, fn_constructor_args=["model.lk"], batch_size=64, compute=actors)

Each actor maps the file: the weights of all actors of a node are the same pages of its memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from lowerkit.errors import UsageError
from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.replicas.batch import Batch, join_outputs
from lowerkit.runtimes.session import load


class LowerkitPredictor:
    """A callable class for ``map_batches`` with ``batch_format="numpy"`` (its default)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        keep: bool = True,
        threads: int = 1,
    ) -> None:
        """Loads the artifact; Ray calls it once in each actor.

        Args:
            path: of the artifact, the same on every node.
            inputs: name of an input to the column that it comes from; inputs that are not named: their own names.
            outputs: name of an output to the column that it becomes; outputs that are not named: their own names.
            keep: whether the columns of the batch stay in the result.
            threads: of a run; ask for as many CPUs by ``num_cpus=`` of ``map_batches``.

        Raises:
            UnsupportedError: LK4008, the model has no symbolic batch.
            UsageError: LK1009, ``inputs`` or ``outputs`` name what the model has not.
            LowerkitError: as ``lowerkit.load``.
        """
        self._session = load(path, threads=threads)
        self._batch = Batch.of(self._session.program)
        signature = self._session.signature
        self._inputs = _columns("inputs", inputs, [spec.name for spec in signature.inputs])
        self._outputs = _columns("outputs", outputs, [spec.name for spec in signature.outputs])
        self._keep = keep

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model on a batch: columns in, columns out, one row of each for each row.

        A batch that is larger than the model takes runs in parts.

        Raises:
            UsageError: LK1009, a column is missing, or an output has the name of a column that is kept.
            RuntimeFault: LK8004, a column does not fit the model's input.
        """
        missing = [column for column in self._inputs.values() if column not in batch]
        if missing:
            raise UsageError("LK1009", f"the batch has no column {missing[0]!r}, it has {', '.join(batch)}")
        taken = [column for column in self._outputs.values() if self._keep and column in batch]
        if taken:
            raise UsageError(
                "LK1009",
                f"the batch has a column {taken[0]!r} already, which an output would become",
                hint=f'rename it: outputs={{"{taken[0]}": "another"}}',
            )
        arrays = self._session.collect(**{name: _stacked(batch[column]) for name, column in self._inputs.items()})
        parts = [self._session.run(*part) for part in self._batch.cut(arrays, 1)]
        results = dict(zip(self._outputs.values(), join_outputs(parts), strict=True))
        return {**batch, **results} if self._keep else results


def _columns(option: str, given: Mapping[str, str] | None, names: list[str]) -> dict[str, str]:
    unknown = sorted(set(given or ()) - set(names))
    if unknown:
        raise UsageError("LK1009", f"{option} names {unknown[0]!r}, the model has {', '.join(names)}")
    return {name: (given or {}).get(name, name) for name in names}


def _stacked(column: Array) -> Array:
    """Returns a column as one array: Ray gives rows that are arrays of their own as an array of objects."""
    return np.stack(list(column)) if column.dtype == np.object_ and len(column) else column
