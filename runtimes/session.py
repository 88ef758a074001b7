"""A loaded artifact: ``load(path).run(x)``. Needs numpy, msgspec and the native module only.

One call of ``run`` checks the arguments, looks up (or makes) the binding of these shapes, allocates the outputs and
makes one native call that runs all steps. Weights are used where they lie in the mapped file, of which a rank of a mesh
maps its parts only; so never rewrite an artifact in place while it is loaded (writers replace it: that is safe).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowerkit.errors import ResourceError
from lowerkit.runtimes import _native
from lowerkit.runtimes.arguments import Array, address_of, bind_dims, collect, describe, mismatch, ready
from lowerkit.runtimes.artifact_reader import Artifact, damaged, open_artifact
from lowerkit.runtimes.binding import bind_model
from lowerkit.runtimes.bound_model import BoundModel, StepTime
from lowerkit.runtimes.cpu.code import load_code
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.runtimes.cpu.topology import thread_pool, threads_of_rank
from lowerkit.runtimes.device_calls import DeviceCalls
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.manifest import MAIN_PROGRAM, WEIGHTS_ENTRY, Manifest, ProgramSpec, Signature
from lowerkit.runtimes.mapping.address_space import limit_lines
from lowerkit.runtimes.mapping.mapped_weights import MappedWeights, weights_crc32
from lowerkit.runtimes.mesh.fit import take_part
from lowerkit.runtimes.nesting import flatten_arguments, rebuild_outputs
from lowerkit.runtimes.on_device.states import StateMemory
from lowerkit.runtimes.validation import manifest_problems

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.group import Group

Integrity = Literal["checksum", "sha256", "structure"]
_BOUND_MODELS_KEPT = 64
_PROBLEMS_SHOWN = 20


class Session:
    """An artifact, ready to run. Safe to use from several threads: runs follow one another.

    Make one with :func:`load`. A session has its own thread pool, arena and states; sessions run concurrently. After
    ``fork()`` the child may go on using it.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int,
        integrity: Integrity,
        target: str | None = None,
        program: str = MAIN_PROGRAM,
        device: str | None = None,
        group: Group | None = None,
    ) -> None:
        self._artifact, self._manifest = artifact, artifact.manifest
        self._pool = thread_pool(threads)
        self._check_manifest()
        self._program = choose_program(self._manifest, target, program, 0 if group is None else group.rank)
        self._group = group
        self._collectives = take_part(artifact.path, self._program, group)
        self._ranks = {} if self._collectives is None else self._collectives.ranks
        self._code = load_code(artifact, self._program)
        self._weights = MappedWeights(artifact, self._program, self._ranks)
        self._check_weights(integrity)
        self._calls = DeviceCalls(artifact, self._program, self._weights, device)
        weakref.finalize(self, self._calls.close)
        self._bound: OrderedDict[tuple[tuple[int, ...], ...], BoundModel] = OrderedDict()
        self._arena, self._scratch = _native.Memory(0), _native.Memory(0)
        self._states = StateMemory(self._program, self._weights, self._calls.memories, self._ranks)
        self._output_dtypes = [numpy_dtype(spec.dtype) for spec in self.signature.outputs]
        self._lock = threading.Lock()
        _sessions.add(self)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        integrity: Integrity = "checksum",
        target: str | None = None,
        program: str = MAIN_PROGRAM,
        device: str | None = None,
        group: Group | None = None,
    ) -> Session:
        """Loads an artifact.

        Args:
            path: the ``.lk`` file.
            threads: threads of a run; None: the physical cores this process may use.
            integrity: how the weights are checked, beside the structure of the file and the sha-256 of the code, which
                are always checked. ``checksum``: CRC-32 of all weights (about 10 GB/s a core). ``sha256``: of every
                entry. ``structure``: the weights are not read.
            target: which of the programs to run, as they were compiled for targets (``cpu:x86-64-v3``); None is the
                first one that this machine can run: the artifact names the best ones first.
            program: which of the programs to run, by name.
            device: takes the place of the program's, such as ``cuda-sim``; ``NAME=DEVICE,...`` of several.
            group: the ranks that run a program for a mesh together; this session is one of them. Each runs it from one
                thread, all as often, with inputs of the same shapes.

        Raises:
            UsageError: LK8021, the program is for other ranks than those of ``group``.
            ArtifactError: LK1001 unreadable, LK1002 no artifact, LK8001 damaged, LK8002 of another format.
            RuntimeFault: LK8003 the CPU lacks features, LK8005 no program for that target, LK8016 a device failed.
            ResourceError: LK7002, out of memory.
        """
        threads_here = threads_of_rank(threads)
        artifact = open_artifact(path, own_parts=group is not None)
        try:
            return Session(artifact, threads_here, integrity, target, program, device, group)
        except MemoryError as error:
            raise ResourceError("LK7002", f"no memory to load {path}", details=limit_lines()) from error
        finally:
            artifact.close()

    @property
    def signature(self) -> Signature:
        """Names, dtypes, shapes and dim ranges of inputs, outputs and states."""
        return self._program.signature

    @property
    def manifest(self) -> Manifest:
        """Everything the artifact says about itself."""
        return self._manifest

    @property
    def program(self) -> ProgramSpec:
        """The program of the artifact that this session runs."""
        return self._program

    @property
    def group(self) -> Group | None:
        """The ranks that run the program together, this one among them; None for a program of one rank."""
        return self._group

    @property
    def path(self) -> Path:
        """The file this session was loaded from."""
        return self._artifact.path

    @property
    def threads(self) -> int:
        """Threads of a run, the caller's included."""
        return self._pool.threads

    def run(self, *inputs: Any, **named: Any) -> list[Array]:
        """Runs the model once.

        Args:
            inputs: numpy arrays, torch tensors or other DLPack arrays on the CPU, in the order of the signature, or
                nested as the model takes them. None is copied unless it is not C-contiguous.
            named: further inputs by name, or keyword arguments of the model.

        Returns:
            New arrays in the order of the signature's outputs.

        Raises:
            RuntimeFault: LK8004, with every mismatch of dtype, rank, shape and range; LK8014, a loop does not end;
                LK8015, an index is out of range, and no state has changed; LK8016, a device failed.
            ResourceError: LK7002, out of memory.
            LowerkitError: in a group, as its operations: LK8008 to LK8012, LK7004.
        """
        arrays = self.collect(*inputs, **named)
        with self._lock:
            bound, outputs, bases = self._prepare(arrays)
            bound.run(self._pool, bases, self._scratch)
            self._calls.finish()
        return outputs

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once, as :meth:`run`; the arrays that it returns are nested as the model's own results."""
        return rebuild_outputs(self._program.output_tree, self.run(*inputs, **named))

    def profile(self, *inputs: Any, **named: Any) -> list[StepTime]:
        """Runs the model once, as :meth:`run`, and returns the time of each step instead of the outputs."""
        arrays = self.collect(*inputs, **named)
        with self._lock:
            bound, _outputs, bases = self._prepare(arrays)
            self._calls.one_by_one(enabled=True)
            try:
                return bound.profile(self._pool, bases, self._scratch)
            finally:
                self._calls.one_by_one(enabled=False)

    @property
    def state(self) -> dict[str, Array]:
        """The current value of each state, by name: copies, also of what lives on a device."""
        with self._lock:
            return self._states.values()

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Gives states new values, by name; those that are not named keep theirs.

        Raises:
            RuntimeFault: LK8004, with every name that is no state and every mismatch of dtype and shape.
        """
        with self._lock:
            self._states.assign(values)

    def reset(self) -> None:
        """Puts every state back to its initial value: the one stored in the artifact, else zeros."""
        with self._lock:
            self._states.reset()

    def weight(self, name: str) -> Array:
        """Returns a stored weight as a read-only view (in the layout that the kernels use)."""
        return self._weights.tensor(name)

    def arena_size(self, *inputs: Any, **named: Any) -> int:
        """Returns the bytes of temporary memory that a run with these inputs needs."""
        arrays = self.collect(*inputs, **named)
        with self._lock:
            return self._bind(arrays).arena_size

    def __repr__(self) -> str:
        inputs = ", ".join(describe(spec) for spec in self.signature.inputs)
        outputs = ", ".join(describe(spec) for spec in self.signature.outputs)
        types = f"({inputs}) -> ({outputs})"
        return f"Session({str(self.path)!r}, {types}, target={self._program.label}, threads={self.threads})"

    def collect(self, *inputs: Any, **named: Any) -> list[Array]:
        """Returns the arguments of :meth:`run` as arrays in the order of the signature; shapes are not checked."""
        problems: list[str] = []
        flat = flatten_arguments(
            self._program.input_tree, [s.name for s in self.signature.inputs], inputs, named, problems
        )
        if problems:
            raise mismatch(problems, self.signature)
        return collect(self.signature, inputs, named) if flat is None else collect(self.signature, (), flat)

    def _prepare(self, arrays: list[Array]) -> tuple[BoundModel, list[Array], list[int]]:
        try:
            bound = self._bind(arrays)
            arrays[:] = map(ready, arrays)  # the caller keeps the copies
            arena = self._reserve(bound)
            for name, size in bound.device_arenas.items():
                self._calls.memories[name].reserve(size)
            if bound.scratch_stride * self.threads > self._scratch.size:
                self._scratch = _native.Memory(bound.scratch_stride * self.threads)
            outputs: list[Array] = [
                np.empty(shape, dtype) for shape, dtype in zip(bound.output_shapes, self._output_dtypes, strict=True)
            ]
        except MemoryError as error:
            raise ResourceError("LK7002", f"no memory to run {self.path}: {error}", details=limit_lines()) from error
        bases = [
            arena,
            self._weights.address,
            *self._states.addresses,
            *map(address_of, arrays),
            *map(address_of, outputs),
            *(base for memory in self._calls.memories.values() for base in (memory.arena, memory.weights)),
        ]
        return bound, outputs, bases

    def _reserve(self, bound: BoundModel) -> int:
        if self._collectives is not None:
            return self._collectives.reserve(bound.arena_size, bound.dims)
        if bound.arena_size > self._arena.size:
            self._arena = _native.Memory(0)  # give the old one back first
            self._arena = _native.Memory(bound.arena_size)
        return self._arena.address

    def _bind(self, arrays: Sequence[Array]) -> BoundModel:
        key = tuple(array.shape for array in arrays)
        bound = self._bound.get(key)
        if bound is None:
            dims = bind_dims(self.signature, arrays)
            bound = bind_model(
                self._program, dims, self._weights.places, self._kernel_address, self._calls, self._collectives
            )
            self._bound[key] = bound
            if len(self._bound) > _BOUND_MODELS_KEPT:
                self._bound.popitem(last=False)
        else:
            self._bound.move_to_end(key)
        return bound

    def _kernel_address(self, kernel: int) -> int:
        assert self._code is not None, "a program with kernels has code"
        return self._code.entry(self._program.kernels[kernel].offset)

    def _check_manifest(self) -> None:
        problems = manifest_problems(self._manifest, self._artifact.weights)
        if problems:
            raise damaged(self.path, "its manifest contradicts itself", problems[:_PROBLEMS_SHOWN])

    def _check_weights(self, integrity: Integrity) -> None:
        if integrity == "sha256":
            mismatches = self._artifact.hash_mismatches()
            if mismatches:
                raise damaged(self.path, "entries differ from the manifest", mismatches)
        elif integrity == "checksum":
            entry = self._artifact.entries.get(WEIGHTS_ENTRY)
            if entry and weights_crc32(self._artifact, self._pool) != entry.crc32:
                raise damaged(self.path, f"the checksum of {WEIGHTS_ENTRY} differs")


load = Session.load
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _renew_locks() -> None:
    # Another thread may have held a lock at the fork; it does not exist in the child and would never release it.
    for session in list(_sessions):
        session._lock = threading.Lock()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_renew_locks)
