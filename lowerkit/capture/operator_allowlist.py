"""Which operators a model file may name: those that compute on what they are given and reach nothing else.

The rule is about schemas, so that it holds for operators that are not there yet: one that takes tensors, numbers and
lists of them can name no file, process or address. One that takes text, an object or a value of any type must be in the
lists below. Namespaces of PyTorch's own that are not needed are refused whole.
"""

# torch lists the operators of its registry in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_TORCH = _words(
    "aoti _native _dtensor _test c10d c10d_functional cuda debug_mode_ops debugprims executorch export fbgemm "
    "inductor inductor_prims llvm mkl mkldnn mkldnn_prepacked onednn onnx prepacked profiler quantization rngprims "
    "rpc sparse static_runtime streams symm_mem tensorexpr torchbind triton xnnpack _TorchScriptTesting _nnapi "
)
"""Namespaces of PyTorch that no model needs."""
_TEXT = _words(
    # Modes, names of algorithms and of reductions.
    "__interpolate __upsample _convolution_mode _linalg_check_errors _linalg_eigh _linalg_svd "
    "_segment_reduce_backward _sparse_mm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward _mixed_dtypes_linear "
    "conv1d conv2d conv3d device div div_ divide divide_ einsum fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 "
    "fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft "
    "fft_rfft2 fft_rfftn gelu gelu_ gelu_backward index_reduce index_reduce_ linalg_cond linalg_eigh linalg_eigvalsh "
    "linalg_lstsq linalg_matrix_norm linalg_norm linalg_qr linalg_svd linalg_svdvals meshgrid nanquantile pad "
    "pad_sequence quantile scatter scatter_ scatter_reduce scatter_reduce_ searchsorted segment_reduce stft istft "
    "get_autocast_dtype "
    # Messages.
    "_assert_async _assert_scalar _functional_assert_async _functional_assert_scalar _assert_tensor_metadata warn "
    # Text itself, and what TorchScript's lists, dicts and tuples do.
    "Delete Float Int __contains__ __getitem__ __is__ __isnot__ _set_item _unwrap_optional add add_ any append "
    "as_tensor bin chr hex oct quantized_gru quantized_lstm capitalize center clear copy count dequantize dict "
    "endswith eq expandtabs extend find format ge get gt hash index insert isalnum isalpha isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper items join keys le len list ljust lower "
    "lstrip lt mul mul_ ne ord partition percentFormat pop popitem remove replace reverse rfind rindex rjust "
    "rpartition rsplit rstrip select setdefault slice sort sorted split splitlines startswith str strip swapcase "
    "tensor title update upper values wait zfill "
)
"""Operators of ``aten`` that take text or values of any type, and only compute with them."""
_UNCHECKED = _words(
    "_reshape_alias _reshape_alias_copy _nested_view_from_buffer _nested_view_from_buffer_copy "
    "_nested_view_from_jagged _nested_view_from_jagged_copy _sparse_coo_tensor_unsafe "
    "_sparse_compressed_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe "
    "_sparse_bsc_tensor_unsafe set set_ data_ptr record_stream _resize_output _resize_output_ "
)
"""Operators of ``aten`` that take sizes and addresses on trust."""
_PRIM = _words(
    "AutogradAdd AutogradZero ConstantChunk EnumName EnumValue IfThenElse ModuleContainerIndex NumToTensor Print "
    "RaiseException StringIndex TupleIndex TupleUnpack Uninitialized VarConcat VarStack abs data device dtype grad id "
    "index is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse "
    "is_sparse_csr is_vulkan is_xla is_xpu itemsize layout max min name nbytes rangelist requires_grad tolist type "
    "unchecked_cast unchecked_unwrap_optional "
)
"""TorchScript's own operators that a saved program may name. Not among them: remote calls, Python, fused regions."""
_COLLECTIVES = _words(
    "all_gather_into_tensor all_gather_into_tensor_coalesced all_reduce all_reduce_ all_reduce_coalesced "
    "all_reduce_coalesced_ all_to_all_single broadcast broadcast_ reduce_scatter_tensor "
    "reduce_scatter_tensor_coalesced wait_tensor "
)
_HIGHER_ORDER = _words(
    "_export_tracepoint associative_scan auto_functionalized auto_functionalized_v2 cond flex_attention hints_wrapper "
    "invoke_subgraph map_impl out_dtype run_and_save_rng_state run_with_rng_state scan strict_mode "
    "tag_activation_checkpoint while_loop while_loop_stack_output with_effects wrap wrap_activation_checkpoint "
    "wrap_with_autocast wrap_with_set_grad_enabled "
)
_PREDISPATCH = _words(
    "_add_batch_dim _remove_batch_dim _vmap_decrement_nesting _vmap_increment_nesting lazy_load_decompositions "
)
_OVERLOAD = re.compile(r"torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)(?:\.(?P<overload>\w+))?", re.ASCII)
_SUSPECT = re.compile(r"\b(?:str|Any|Storage|Stream|Future|RRef|Await|Capsule|PyObject|t\d?)\b|\(\)|Class|AnyEnum")


def is_harmless_operator(namespace: str, name: str) -> bool:
    """Whether a model file may name the operator ``namespace::name``, with all its overloads.

    One that is not registered in this process is harmless: nothing can call it.
    """
    if namespace == "aten":
        return name in _TEXT or (name not in _UNCHECKED and not _takes_objects(namespace, name))
    if namespace == "prim":
        return name in _PRIM
    if namespace == "higher_order":
        return name in _HIGHER_ORDER
    if namespace == "_c10d_functional":
        return name in _COLLECTIVES
    if namespace in ("quantized", "_quantized"):
        return True  # of packed weights, whose classes torch has in C++
    return namespace not in _OF_TORCH and not _takes_objects(namespace, name)


@cache
def is_harmless_target(target: str) -> bool:
    """Whether a node of a ``.pt2`` may call ``target``: the overload ``aten.add.Tensor``, ``_operator.mul``.

    The text decides before anything is looked up, as a look-up alone can import a module.
    """
    match = _OVERLOAD.fullmatch(target)
    if match is None:
        return target in _functions_of_sizes()
    space, name, overload = match.groups()
    return is_harmless_operator(space, name) and _is_operator(space, name, overload)


def _is_operator(space: str, name: str, overload: str | None) -> bool:
    """Whether a name that torch would look up is that of an operator (or of nothing) and not of a method."""
    found: Any = getattr(torch.ops, space, None)
    if not isinstance(found, (torch._ops._OpNamespace, type(torch.ops.higher_order))):
        return False
    operator = getattr(found, name, None)
    if operator is None:
        return True
    if isinstance(operator, torch._ops.OpOverloadPacket) and overload is not None:
        return overload in operator.overloads() or not hasattr(operator, overload)
    return isinstance(operator, torch._ops.HigherOrderOperator) and overload is None


@cache
def _functions_of_sizes() -> frozenset[str]:
    """Python's functions on symbolic sizes, and those that ``vmap`` leaves in a graph, as torch writes them."""
    return frozenset(
        [f"_operator.{name}" for name in _words("eq ne le ge lt gt neg pos mul add sub floordiv mod pow truediv")]
        + [f"_operator.{name}" for name in _words("and_ or_ lshift rshift getitem")]
        + [f"math.{name}" for name in _words("trunc floor ceil sqrt")]
        + [f"torch.sym_{name}" for name in _words("not int float ite max min sqrt fresh_size sum")]
        + [f"torch._sym_{name}" for name in _words("sqrt log2 exp")]
        + [f"torch._functorch.predispatch.{name}" for name in _PREDISPATCH]
    )


@cache
def _takes_objects(namespace: str, name: str) -> bool:
    """Whether an overload takes or returns more than tensors, numbers and lists of them."""
    qualified = f"{namespace}::{name}"
    jit: Any = torch._C
    return any(
        bool(_SUSPECT.search(str(value.type))) or "__torch__" in str(value.type)
        for schema in jit._jit_get_schemas_for_operator(qualified)
        for value in [*schema.arguments, *schema.returns]
    )
