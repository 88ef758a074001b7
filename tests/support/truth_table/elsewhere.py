"""Overloads that capture accepts and that are no row of the table, each with the reason.

What PyTorch's operator tests (OpInfo) hold is run by ``lowerkit conformance torch``, with samples of their own: ops
that reduce, move, multiply or look up have no table of single values. The rest is listed here by kind of name.
"""

from __future__ import annotations

import re
from functools import cache

from lowerkit.conformance.torch_cases import operator_aliases
from tests.support.truth_table.registry import RANDOM, WHOLE, accepted_overloads, rows

_KINDS = {
    r"backward|_gradients$": "a gradient: graphs at inference hold none; some are in tests/operators/test_functions.py",
    r"sparse|^coalesce|^smm$|^to_dense|^sspaddmm": "sparse tensors are refused at capture",
    r"quantize|^dequantize|qparams|^int_repr|fbgemm|int8pack|wrapped|_int_mm|saturate": "tests/models/test_quantized_*",
    r"^is_|^_is_|^can_cast|^promote_types|^result_type|^get_device|^retains_grad|^output_nr|^_version|^data$"
    r"|^_has_|^_debug|available$|^_use_|^cudnn_is|^_cufft"
    r"|^_local_scalar": "a question about a tensor: answered at export",
    r"^sym_|^size$|^stride$|^dim$|^numel$|^storage_offset|^_shape_as|_assert|validate": "shapes and assertions on them",
    r"cudnn|miopen|mkldnn|xla|vulkan|nnpack|^_propagate": "other devices",
    r"^(new_)?empty": "whatever the memory held",
    r"^rand|^random|^normal_functional|rrelu|dropout|^_sobol": "random",
    r"^(un)?flatten_dense|^_unpack_dual|batch_dim$|^_test_|^lift|^detach|^alias|^pin_memory|^_to_cpu|^zero$|^copy$"
    r"|^_autocast": "gives its argument, or is for PyTorch's own tests",
    r"batch_norm|_norm_|^_fused_rms|^_weight_norm|^norm_except|native_channel": "row kernels",
    r"conv|upsample|grid_|affine_grid|im2col|col2im|max_pool|_avg_pool|reflection_pad|replication_pad|^_pad_"
    r"|^pad_sequence|^_trilinear": "tests/support/torch_layer_cases.py",
    r"lstm|gru|rnn": "recurrent layers: tests/models/test_models.py and test_functions.py",
    r"nll_loss|cross_entropy|multilabel": "losses: tests/support/torch_layer_cases.py",
    r"^_linalg|^_lu_|^chain_matmul|^matrix_H|nuclear_norm|frobenius|^_euclidean|^_pdist|^_cdist|_addmm": "see linalg",
    r"^_cast_|^_to_copy|^type_as": "conversions: in every row whose operands are of two types",
    r"^_?softmax|^_log_softmax|^_safe_softmax|scaled_dot_product"
    r"|^_embedding_bag": "tests/kernels/cpu/test_*_kernels.py",
    r"copy$|^_reshape|^_unsafe|^_dim_arange|^resize|^numpy_T|nonzero_numpy|^unique_dim|^unsafe_split|^nested|^index$"
    r"|^_index_put|^_rowwise": "moves and look-ups: tests/support/torch_index_cases.py",
    r"^hann_window|^_prelu_kernel|^log_sigmoid_forward|^special_gammainc": "a row's other name, or a table",
}


@cache
def reason_elsewhere(name: str) -> str | None:
    """Returns why an overload is no row; None for a row, and for one that nothing accounts for."""
    packet = name.partition(".")[0]
    if name in rows():
        return None
    if name in WHOLE:
        return WHOLE[name]
    if name in RANDOM:
        return "random"
    if packet in operator_aliases():
        return "lowerkit conformance torch"
    return next((reason for pattern, reason in _KINDS.items() if pattern and re.search(pattern, packet)), None)


def unaccounted() -> list[str]:
    """Returns the overloads that capture accepts and that neither the table nor a reason covers."""
    return [name for name in accepted_overloads() if name not in rows() and reason_elsewhere(name) is None]
