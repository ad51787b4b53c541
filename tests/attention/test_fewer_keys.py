"""What the mechanisms with fewer keys promise together: nothing as large as all pairs, forward and backward."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention import LinformerAttention, MemoryCompressedAttention, NystromAttention, SoftmaxAttention
from regard.patterns import causal, full, lengths

L, H, K = 2048, 2, 8


class Largest(TorchDispatchMode):
    """The most numbers that any operation gave back."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and not any(s == 0 for s in x.stride() if x.numel()):  # views that repeat take no room
                self.numbers = max(self.numbers, x.numel())
        return out


def largest(run) -> int:
    with Largest() as seen:
        run()
    return seen.numbers


@pytest.mark.parametrize(
    ("attention", "pattern"),
    [
        (LinformerAttention(max_length=L, rank=32), full),
        (LinformerAttention(max_length=L, rank=32, sharing="none", heads=H), lengths([L - 3])),
        (NystromAttention(heads=H, landmarks=32), full),
        (NystromAttention(heads=H, landmarks=32), lengths([L - 3])),
        (MemoryCompressedAttention(heads=H, head_dim=K), full),
        (MemoryCompressedAttention(heads=H, head_dim=K), causal & lengths([L - 3])),
    ],
    ids=lambda x: f"{x.facts.name}" if hasattr(x, "facts") else str(x),
)
def test_no_matrix_of_all_pairs(attention, pattern):
    q, k, v = (torch.randn(1, L, H, K, requires_grad=True) for _ in range(3))
    assert largest(lambda: attention(q, k, v, pattern).sum().backward()) <= 2 * L * H * 32
    assert largest(lambda: SoftmaxAttention().weights(q, k)) >= L * L * H  # the measure measures
