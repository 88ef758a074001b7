"""Which products to keep in floats, given what each costs: pure arithmetic, no model.

The noise of products adds up: errors of different roundings are close to independent, so their powers sum. That holds
while noise is small against the signal, which is where a gate's limits lie.

    noise[p, t]   power of the error at tensor t, relative to the power of t, with product p alone quantized
    limit[t]      what tensor t may have in all
    cost[p]       FLOPs that int8 would save
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def keep_in_floats(noise: Array, limit: Array, cost: Array) -> list[int]:
    """Returns a cheap set of products without which the noise of the others stays within every limit.

    Greedy, for the limits make this a knapsack with many constraints: take out, again and again, the product that
    relieves the exceeded limits most for its cost; at the end put back every one for which there is room, dear ones
    first. So no product in the result could be put back alone.

    Args:
        noise: float64 ``[products, tensors]``, not negative; infinite where a product alone destroys a tensor.
        limit: float64 ``[tensors]``, positive.
        cost: float64 ``[products]``, not negative.

    Returns:
        rows of ``noise``, ascending.
    """
    assert np.all(limit > 0)
    assert np.all(noise >= 0)
    # A single product beyond ten times a limit must go whatever the others do; more would only round the sums away.
    share = np.minimum(noise / limit, 10.0)
    price = np.maximum(cost, cost.max(initial=0.0) * 1e-6 + 1e-30)
    quantized = np.ones(len(share), bool)
    while True:
        total = share[quantized].sum(0)
        excess = np.maximum(total - 1.0, 0.0)
        if not excess.any():
            break
        relief = np.minimum(share, excess).sum(1) / price
        relief[~quantized] = -1.0
        quantized[int(relief.argmax())] = False
    for product in sorted(np.flatnonzero(~quantized), key=lambda row: (-cost[row], row)):
        quantized[product] = True
        if np.any(share[quantized].sum(0) > 1.0):
            quantized[product] = False
    return [int(row) for row in np.flatnonzero(~quantized)]
