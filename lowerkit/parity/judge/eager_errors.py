"""Cells that are known to differ, each class with its reason: the table counts them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CLASSES: Mapping[str, str] = {
    r"^(add|sub)\.Tensor\(alpha=": "eager multiplies and adds in one rounding; our product may overflow",
    r"^addcmul\.": "eager multiplies and adds in one rounding; our product may overflow",
    r"^logit_backward.*right0$": "eager's vectors and the scalars behind them differ",
    r"^softshrink\..*-0\.0$": "eager's vectors and the scalars behind them differ in the sign of a zero",
    r"^lerp\.": "eager multiplies and adds in one rounding",
    r"^kl_div\.": "two terms cancel: a unit of the logarithm is several of the loss",
    r"^logaddexp2\.": "two terms cancel: a unit of the logarithm is several of the sum",
    r"^gelu_backward.*tanh.*f64": "two terms cancel: eager is 36 units off, ours 98",
    r"^(mv)?lgamma.*f64": "between the poles two terms cancel: 2e-15 off",
    r"^((var|std)_mean|native_(layer|group)_norm).*(inf|mixed)$": (
        "eager's mean beside a variance is NaN where the mean is infinite"
    ),
    r"^(linalg\.(cholesky|det|slogdet|lu|solve|inv)|cholesky|logdet|lu_).*(nan|inf)$": (
        "in which order LAPACK multiplies decides how far a NaN or an infinity spreads"
    ),
    r"^((linalg\.)?(qr|householder_product)|geqrf|cholesky_inverse)#.*(nan|inf)$": (
        "in which order LAPACK multiplies decides how far a NaN or an infinity spreads"
    ),
    r"^((linalg_)?(cholesky|cholesky_ex|cholesky_inverse|cholesky_solve|det|slogdet|inv|inv_ex|lu|lu_factor|lu_factor_ex"
    r"|lu_solve|pinv|qr|solve|solve_ex|householder_product)|_lu_with_info|geqrf|inverse|logdet|orgqr|ormqr|pinverse)\."
    r".*(nan|inf|mixed|largest|smallest|denormals?|smallest normal)$": (
        "in which order LAPACK multiplies decides how far a NaN or an infinity spreads, and what is left of nothing"
    ),
    r"^(_segment_reduce.*empty:10|nn\.functional\.embedding_bag#0.*empty:2|linalg\.eigvals.*nan)$": (
        "PyTorch itself brings the process down, in this type or in float64"
    ),
    r"^unique_consecutive.*empty": "of no elements PyTorch's tracing has another shape than its kernel",
    r"^ormqr.*inf$": "in which order LAPACK multiplies decides how far an infinity spreads",
    r"scaled_dot_product_attention.*(nan|inf|mixed)$": "eager's kernel takes a row of NaN for one without keys",
    r"^_unsafe_masked_index.*limits$": "indices beyond the tensor",
    r"(group|batch)_norm.*inf$": "eager subtracts the mean times the weight: NaN where the weight is infinite",
    r"^linalg\.cholesky_ex.*(zeros|large)$": "eager leaves what it had in a factor that does not exist; ours is NaN",
    r"^special_laguerre_polynomial_l\.": "eager multiplies and subtracts in one rounding; our product may overflow",
    r"^special_.*polynomial.*nan$": "eager returns a variable that it has not set where the argument is NaN",
    r"^mode\..*(nan|mixed)$": "eager sorts without heed of NaN, which has no order",
    r"^onnx::MaxPool.*(nan|mixed)": "ONNX Runtime's kernel passes over NaN, or takes it, by its place in the window",
    r"^onnx::GridSample.*(nan|inf|mixed)": "ONNX Runtime takes a place that is NaN, or infinite, for one at the border",
    r"^onnx::(DFT|STFT).*(nan|inf|mixed)": "in which order products are added decides how far an infinity spreads",
    r"^onnx::(Dynamic)?QuantizeLinear.*(nan|mixed)": "no byte is NaN's: processors give different ones",
    r"^(special_)?polygamma.*n=1\)": "eager's own series: 1e-9 off in f64, and finite at the poles -1, -2, ...",
}


def known_reason(name: str) -> str | None:
    """Returns why the cell of a name may differ; None for all others."""
    return next((reason for pattern, reason in _CLASSES.items() if re.search(pattern, name)), None)
