"""The matrix products of a layer, by the fastest kernel that the device has.

    linear        y = x W^T                 also the gradient of x, with W^T as a view
    add_product   gradient of W += dy^T x

On a CPU that is oneDNN's, also where torch would call its BLAS: by how much faster depends on the CPU, on some twice as fast
(`benchmarks/matmul.py`). The weights are taken as they lie; nothing is packed or kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
ONEDNN = torch.backends.mkldnn.is_available()


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + bias: [N, in], [out, in], [out] -> [N, out]. W may be a transposed view. Records no gradients."""
    with torch.no_grad():
        if _by_onednn(x) and x.numel() and w.numel():
            return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")
        return F.linear(x, w, bias)


def add_product(buffer: Tensor, a: Tensor, b: Tensor) -> None:
    """buffer += a b, in fp32: [M, N], [M, K], [K, N]."""
    if a.dtype == buffer.dtype and not _by_onednn(a):
        buffer.addmm_(a, b)
    else:
        # A temporary of the weight's size; oneDNN's own product with a sum does not write in place.
        buffer.add_(linear(a, b.t()))


def _by_onednn(x: Tensor) -> bool:
    return ONEDNN and x.device.type == "cpu"
