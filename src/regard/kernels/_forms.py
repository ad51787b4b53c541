"""Which form of each primitive runs on this machine."""

import torch

from . import _tile


def forms() -> dict[str, str]:
    """Primitive → the form that is live."""
    return {
        "tile": _tile.forms[0],  # tiles of a pattern; what the fused form cannot do goes to the plain one
        "dense": "PyTorch's scaled_dot_product_attention",
        "gpu": "PyTorch's FlexAttention" if torch.cuda.is_available() else "none here",
    }
