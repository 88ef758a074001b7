"""A line is the user's unless it lies in the package of PyTorch, whatever a folder is called."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.capture.torchscript.operations import stack_trace
from lowerkit.codegen.step_place import portable_location
from lowerkit.program.locations import Origin, inside_torch, is_users_file, origin_of, users_line
from tests.unit.capture.running import operations

TORCH = Path(torch.__file__).parent


@pytest.mark.parametrize(
    ("file", "inside"),
    [
        (f"{TORCH}/nn/modules/linear.py", "nn/modules/linear.py"),
        (f"{TORCH.resolve()}/_ops.py", "_ops.py"),
        ("/opt/conda/lib/python3.12/site-packages/torch/nn/functional.py", "nn/functional.py"),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", "_tensor.py"),
        (r"C:\Python\Lib\site-packages\torch\nn\functional.py", "nn/functional.py"),
        ("/home/ada/torch/model.py", None),
        ("/home/ada/torch/nn/modules/module.py", None),
        ("/opt/lib/python3.12/site-packages/vision/torch/model.py", None),
        ("/opt/lib/python3.12/site-packages/torchvision/models/resnet.py", None),
        ("torch/model.py", None),
    ],
)
def test_only_what_lies_in_the_package_is_pytorchs(file: str, inside: str | None) -> None:
    assert inside_torch(file) == inside
    assert is_users_file(file) == (inside is None)


def test_neither_generated_lines_nor_ours_are_the_users() -> None:
    assert not is_users_file("<eval_with_key>.1")
    assert not is_users_file(capture_module.__code__.co_filename)


def test_innermost_line_of_the_user_counts() -> None:
    trace = f'''  File "/home/ada/main.py", line 3, in <module>
  File "/home/ada/torch/model.py", line 5, in forward
  File "{TORCH}/nn/functional.py", line 7, in gelu
  File "<eval_with_key>.1", line 9, in forward
'''
    assert users_line(trace) == "/home/ada/torch/model.py:5"
    assert users_line(f'  File "{TORCH}/nn/functional.py", line 7, in gelu') == ""
    frames = (("/home/ada/torch/model.py", 5), (f"{TORCH}/nn/functional.py", 7))
    assert Origin("gelu", "", frames).source_line == "/home/ada/torch/model.py:5"
    assert Origin("gelu", "", frames[1:]).source_line == f"{TORCH}/nn/functional.py:7"


def test_machinery_of_module_calls_is_pytorchs_alone() -> None:
    source = f"""{TORCH}/nn/modules/module.py(1500): _slow_forward
/home/ada/torch/jit/model.py(5): forward
/home/ada/torch/utils/main.py(3): <module>
"""
    assert [line.split(",")[0].strip() for line in stack_trace(source).splitlines()] == [
        'File "/home/ada/torch/utils/main.py"',
        'File "/home/ada/torch/jit/model.py"',
    ]


def test_steps_name_files_of_packages_from_the_package_on() -> None:
    inside = "torchvision/models/resnet.py:90"
    assert portable_location(f"/opt/lib/python3.12/site-packages/{inside}") == inside
    assert portable_location(f"/usr/lib/python3/dist-packages/{inside}") == inside
    assert portable_location("/home/ada/torch/model.py:5") == "model.py:5"


def test_model_in_a_folder_called_torch_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "torch" / "model.py"
    path.parent.mkdir()
    path.write_text(
        "import torch\n\n\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.glu(x)\n"
    )
    program = capture_module(_module_of(path).Model().eval(), (torch.ones(2, 4),))
    lines = {origin_of(operation.location).source_line for operation in operations(program) if operation.results}
    assert f"{path}:6" in lines


def _module_of(path: Path) -> Any:
    spec = spec_from_file_location("model_in_torch", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
