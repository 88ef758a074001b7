"""The runtime needs numpy, msgspec and its native module: proven in a process where the rest cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.handmade_code import reference, write_tanh_of_sum

BLOCKED = ("torch", "torch_mlir", "onnx", "llvmlite", "ml_dtypes", "safetensors", "click", "rich", "filelock")

SCRIPT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import numpy as np
import lowerkit
from lowerkit.runtimes.verify import verify_artifact
session = lowerkit.load(sys.argv[1])
np.save(sys.argv[2], session.run(np.load(sys.argv[3]))[0])
assert verify_artifact(sys.argv[1]).passed
loaded = {{name.split(".")[0] for name, module in sys.modules.items() if module is not None}}
ours = {{name for name in sys.modules if name.startswith("lowerkit.")}}
compiler = sorted(name for name in ours if not name.startswith("lowerkit.runtimes"))
print(sorted(loaded & set({blocked!r})), compiler)
"""


def python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    result = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_load_run_and_verify_need_nothing_of_the_compiler(tmp_path: Path) -> None:
    artifact = write_tanh_of_sum(tmp_path / "model.lk", golden=True)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "x.npy", x)
    script = SCRIPT.format(blocked=BLOCKED)
    output = python("-c", script, str(artifact), str(tmp_path / "y.npy"), str(tmp_path / "x.npy"))
    assert output.strip() == "[] ['lowerkit.errors', 'lowerkit.launching', 'lowerkit.launching.loading']"
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), reference(x), rtol=1e-6)


def test_bfloat16_without_ml_dtypes_is_uint16() -> None:
    script = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy as np; from lowerkit.runtimes.dtypes import numpy_dtype, fits\n"
        "assert numpy_dtype('bf16') == np.uint16 and fits(np.dtype(np.uint16), 'bf16')"
    )
    python("-c", script)


def test_importing_the_package_loads_nothing() -> None:
    script = (
        "import sys; before = set(sys.modules); import lowerkit, lowerkit.runtimes\n"
        "print(sorted(set(sys.modules) - before))"
    )
    modules = python("-c", script)
    for name in ("numpy", "msgspec", "torch", "lowerkit.errors", "lowerkit.runtimes.session"):
        assert f"'{name}'" not in modules
