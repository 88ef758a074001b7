"""lowerkit as a backend of ``onnx.backend``: what the suite of ONNX, and anybody's own, calls.

    from onnx.backend.test import BackendTest
    from lowerkit.conformance.onnx_backend import LowerkitBackend
    globals().update(BackendTest(LowerkitBackend, __name__).enable_report().test_cases)

Shapes are fixed by the first run's inputs; other shapes compile again. So are the values of small inputs that shapes
depend on (:mod:`lowerkit.capture.onnx.shape_parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.shape_parameters import parameter_inputs
from lowerkit.compiler import Compiled, CompileOptions, compile_program
from lowerkit.errors import CaptureError, InputError, UnsupportedError, UsageError
from lowerkit.program.dtypes import NUMPY_DTYPES

Array = np.ndarray[Any, Any]
_Key = tuple[tuple[str, tuple[int, ...], bytes], ...]
_SUPPORTED = frozenset(NUMPY_DTYPES.values())


class PreparedModel(BackendRep):
    """A model, compiled for each set of input shapes that it is run with.

    Attributes:
        fixed_inputs: names of the inputs whose values are compiled in.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        constants = {tensor.name for tensor in model.graph.initializer}
        self._names = [value.name for value in model.graph.input if value.name not in constants]
        self._compiled: dict[_Key, Compiled] = {}
        self.fixed_inputs = parameter_inputs(model)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs the model once.

        Args:
            inputs: arrays in the order of the model's inputs, or by name.
            kwargs: none is known.

        Returns:
            Arrays in the order of the model's outputs.

        Raises:
            LowerkitError: the model is not supported, or an input does not fit.
        """
        named = self._by_name(inputs)
        fixed = {name: named[name] for name in self.fixed_inputs if name in named}
        free = {name: array for name, array in named.items() if name not in fixed}
        key: _Key = tuple(
            (str(array.dtype), array.shape, array.tobytes() if name in fixed else b"") for name, array in named.items()
        )
        if key not in self._compiled:
            self._compiled[key] = self._compile(free, fixed)
        return tuple(self._compiled[key].session.run(**free))

    def _by_name(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            given = dict(cast("Mapping[str, Any]", inputs))
        else:
            values = cast("Sequence[Any]", inputs)
            if len(values) > len(self._names):
                raise UsageError("LK1003", f"{len(values)} inputs were given, the model takes {len(self._names)}")
            given = dict(zip(self._names, values, strict=False))
        foreign = [f"{name!r} is {_kind(value)}" for name, value in given.items() if not _is_supported(value)]
        if foreign:
            raise UnsupportedError("LK4001", f"{len(foreign)} inputs are of types not supported", details=foreign)
        return {name: np.asarray(value) for name, value in given.items()}

    def _compile(self, free: Mapping[str, Array], fixed: Mapping[str, Array]) -> Compiled:
        program = capture_onnx(
            self._model,
            input_shapes={name: array.shape for name, array in free.items()},
            example_inputs=list(free.values()),
            fixed_inputs=fixed,
        )
        compiled = compile_program(program, CompileOptions(workers=1, golden=False))
        compiled.threads = 1
        return compiled


def _is_supported(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype in _SUPPORTED


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


class LowerkitBackend(Backend):
    """Compiles and runs ONNX models on the CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Returns the model, ready to run; it is compiled at the first run, when the shapes are known."""
        return _SkippingModel(model)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one node on arrays; ``outputs_info`` gives element type and shape of each output."""
        arrays = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        wanted = outputs_info or [None] * len(node.output)
        graph = helper.make_graph(
            [node],
            "node",
            [_value_info(name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True)],
            [
                helper.make_value_info(name, helper.make_tensor_type_proto(0, None))
                if info is None
                else _value_info(name, np.dtype(info[0]), info[1])
                for name, info in zip(node.output, wanted, strict=True)
            ],
        )
        version = kwargs.get("opset_version")
        opsets = None if version is None else [helper.make_opsetid(node.domain, version)]
        return cls.prepare(helper.make_model(graph, opset_imports=opsets), device).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns whether ``device`` is a CPU."""
        return Device(device).type == DeviceType.CPU


class _SkippingModel(PreparedModel):
    """Says what is refused as the suite wants to hear it: as a skipped test."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

        try:
            return super().run(inputs, **kwargs)
        except (UnsupportedError, CaptureError, InputError) as error:
            raise BackendIsNotSupposedToImplementIt(error.render()) from error


def _value_info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), list(shape))
