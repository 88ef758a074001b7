"""A test names everything that a registry lists: ops, nodes, passes, kernel families and collectives.

docs/contributing.md has a recipe for each. These tests fail where a forgotten step would otherwise go unnoticed.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from lowerkit.capture.onnx.nodes import RULES
from lowerkit.capture.torch_export.decompositions.own_table import OWN_BY_NAME, OWN_DECOMPOSITIONS
from lowerkit.dialect.ops import collective as collective_op
from lowerkit.passes import registry
from lowerkit.passes.base import Pass
from lowerkit.runtimes.collective.calls import Operation
from lowerkit.runtimes.collective.mpi import operations as mpi_operations
from lowerkit.runtimes.mesh import dims, structs
from lowerkit.spmd.certificate.graph import Form
from lowerkit.spmd.certificate.loop_nests.nest import Shapes
from lowerkit.spmd.certificate.loop_nests.views import collective
from lowerkit.spmd.cost.collective_time import algorithms
from lowerkit.spmd.cost.timeline_svg import COLOURS
from lowerkit.targets.cpu.families import default_families
from lowerkit.targets.cuda.select import fast_families
from tests.support.faults.cells import COLLECTIVES
from tests.support.fuzz_tools import fuzz_tool
from tests.support.mesh.collective_programs import CALLS

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "runtimes/native/collective"

TORCH_OPS_THAT_NO_TEST_NAMES = """
    Bool FloatImplicit IntImplicit ScalarImplicit __and__ __not__ _adaptive_avg_pool2d _adaptive_avg_pool3d
    _cast_Float _cast_Long _cdist_forward _convolution _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex
    _linalg_svd _local_scalar_dense _log_softmax_backward_data _native_batch_norm_legit_no_training _pdist_forward
    _scaled_dot_product_flash_attention_for_cpu _unsafe_index _unsafe_view _upsample_nearest_exact1d
    _upsample_nearest_exact3d alpha_dropout atleast_1d atleast_2d bitwise_not cholesky_inverse convert_element_type
    detach_copy diag diagonal_copy empty_strided expand_copy feature_dropout flipud grid_sampler_2d grid_sampler_3d
    heaviside iota lift lift_fresh linalg_cholesky linalg_householder_product linalg_inv linalg_inv_ex linalg_lu
    linalg_lu_factor linalg_lu_factor_ex linalg_pinv linalg_qr linalg_solve linalg_solve_triangular linalg_tensorinv
    log_sigmoid logit max_pool1d_with_indices native_dropout new_empty_strided numpy_T reflection_pad3d
    replication_pad3d reshape_as rnn_relu rnn_tanh row_stack special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_erfcx
    special_expm1 special_hermite_polynomial_h special_hermite_polynomial_he special_legendre_polynomial_p
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_zeta split_copy split_dim
    split_with_sizes swapdims transpose_copy tril_indices type_as upsample_nearest1d upsample_nearest3d view_as
    view_copy view_of
    """
"""Aliases, forms that PyTorch rewrites before export, and ops that PyTorch's own operator tests cover. Do not add to
it: give a new op a case in tests/support/torch_cases.py."""

ONNX_NODES_THAT_NO_TEST_NAMES = {"Atanh", "CastLike", "GlobalLpPool", "NonMaxSuppression"}
"""Nodes that ONNX's own tests cover (`lowerkit conformance onnx`). Do not add to it: give a new node a test."""


ONNX_NODES_THAT_THE_FUZZER_DOES_NOT_DRAW = """
    Atanh BitCast BitwiseNot CastLike Compress Constant ConstantOfShape CumProd GlobalLpPool MatMulInteger
    NonMaxSuppression NonZero Not RMSNormalization Range RoiAlign Scatter Swish Unique
    """
"""Nodes from before this list. Do not add to it: give a new node a case in tools/fuzz/onnx_node."""


@cache
def words_of_tests() -> frozenset[str]:
    """Returns every word of the tests and of the fuzz tools, without this file and the support of the truth table."""
    files = [path for name in ("tests", "tools/fuzz") for path in (ROOT / name).rglob("*.py")]
    left_out = {Path(__file__).resolve(), *(ROOT / "tests/support/truth_table").glob("*.py")}
    texts = [path.read_text(encoding="utf-8") for path in files if path not in left_out]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def torch_ops() -> set[str]:
    """Returns the ops that rules and our own decompositions take, by name without overload."""
    own = {str(target).split(".")[1] for target in (*OWN_DECOMPOSITIONS, *OWN_BY_NAME)}
    return own | {name.split(".")[2] for name in registry.ops_with_rules()}


def test_every_torch_op_with_a_rule_or_a_decomposition_is_named_by_a_test() -> None:
    assert torch_ops() - words_of_tests() - set(TORCH_OPS_THAT_NO_TEST_NAMES.split()) == set()


def test_every_onnx_node_with_a_rule_is_named_by_a_test() -> None:
    assert set(RULES) - words_of_tests() - ONNX_NODES_THAT_NO_TEST_NAMES == set()


def test_the_fuzzer_draws_every_onnx_node_with_a_rule() -> None:
    names = ("elementwise_cases", "layer_cases", "movement_cases")
    drawn = {op_type for name in names for op_type in fuzz_tool(f"onnx_node.{name}").CASES}
    assert set(RULES) - drawn - set(ONNX_NODES_THAT_THE_FUZZER_DOES_NOT_DRAW.split()) == set()


def test_every_pass_is_named_after_its_file() -> None:
    """A pass under another name is not found, and not missed by a test that goes over those that are."""
    modules = [f"lowerkit.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in passes()]
    misnamed = [
        f"{module}: {value.__name__}"
        for module in modules
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, Pass) and value.__module__ == module
        if "name" in vars(value) and vars(value)["name"] != module.rpartition(".")[2].replace("_", "-")
    ]
    assert misnamed == []


def passes() -> list[Path]:
    return [path for path in (ROOT / "passes").glob("*/**/*.py") if path.name != "__init__.py"]


def test_every_pass_stands_in_a_pipeline() -> None:
    """Those of a stage in lowerkit/pipeline.py, of a target in its passes.py, of meshes in lowerkit/spmd."""
    sources = [path for path in (ROOT / "lowerkit").rglob("*.py") if "passes" not in path.relative_to(ROOT).parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    unused = [
        name for name in registry.pass_names() if not re.search(rf"\b{registry.find_pass(name).__name__}\(", text)
    ]
    assert unused == []


def kernel_tests(target: str) -> str:
    files = (ROOT / "tests/kernels" / target).rglob("*.py")
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_every_kernel_family_of_the_cpu_has_a_test_of_its_kernels() -> None:
    text = kernel_tests("cpu")
    unnamed = {type(family).__name__ for family in default_families() if type(family).__name__ not in text}
    assert unnamed == {"EmptyFamily"}  # it writes no kernel


def test_every_kernel_family_of_cuda_has_a_test_of_its_kernels() -> None:
    text = kernel_tests("cuda")
    assert {family.name for family in fast_families() if f'"{family.name}"' not in text} == set()


def test_the_native_interface_and_its_python_side_list_the_same_collectives() -> None:
    header = (NATIVE / "lowerkit_collective.h").read_text(encoding="utf-8")
    enumerators = re.findall(r"LK_(\w+) = (\d+)", header.partition("typedef enum lk_operation {")[2].partition("}")[0])
    assert {name: int(number) for name, number in enumerators} == {each.name: each.value for each in Operation}
    names = (NATIVE / "dtypes.h").read_text(encoding="utf-8").partition("kOperationNames[kOperations] = {")[2]
    assert re.findall(r'"(\w+)"', names.partition("}")[0]) == [each.name.lower() for each in Operation]


def test_every_collective_has_an_mpi_form_and_a_fault_cell() -> None:
    assert set(mpi_operations.BEGINNINGS) == set(Operation)
    assert {*COLLECTIVES, "send", "receive"} == {each.name.lower() for each in Operation}


def test_the_collectives_of_the_dialect_are_those_of_the_manifest() -> None:
    kinds = set(collective_op.KINDS)
    assert kinds == set(get_args(structs.CollectiveOperation)) == set(dims.OPERATIONS)


def test_every_collective_of_the_dialect_runs_in_sessions() -> None:
    assert {operation for operation, _ in CALLS} == set(collective_op.KINDS) - {"send", "receive"}


@pytest.mark.parametrize("kind", collective_op.KINDS)
def test_every_collective_of_the_dialect_has_a_cost_and_a_colour(kind: str) -> None:
    assert algorithms(kind, 2, 1024)
    assert kind in COLOURS


@pytest.mark.parametrize("kind", collective_op.KINDS)
def test_the_certificate_knows_the_loops_of_every_collective_of_the_dialect(kind: str) -> None:
    gathers, scatters = kind == "all_gather", kind == "reduce_scatter"
    shape, result = ((4, 8), (2, 4, 8)) if gathers else ((2, 4, 8), (4, 8)) if scatters else ((4, 8), (4, 8))
    shapes = Shapes((shape,), (result,))
    assert (collective(Form("lk.collective_start", {"kind": kind}), shapes, shapes) is None) == (kind == "send")
