"""Exact attention under patterns against PyTorch's SDPA and FlexAttention and transformers' sparse layers.

Run:  make bench      (python -m benchmarks.exact [--quick]); writes the section `exact` of RESULTS.md.
Every figure is forward + backward of float32 tensors unless it says forward; times are ratios of one interleaved run.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import SoftmaxAttention
from regard.kernels import attend
from regard.patterns import Pattern, block_window, causal, full, random_blocks, tokens, window

from ._measure import machine, peak_memory, side_by_side, write

H, K = 8, 64
BAND = causal & window(128)


def qkv(length: int, batch: int = 1, grad: bool = True) -> list[Tensor]:
    return [torch.randn(batch, length, H, K, requires_grad=grad) for _ in range(3)]


def trained(call: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        out = call()
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    return step


def sdpa(inputs: list[Tensor], **options: object) -> Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), **options).transpose(1, 2)


def windows(lengths: tuple[int, ...]) -> list[str]:
    rows = []
    for length in lengths:
        x = qkv(length)
        mask = BAND.mask(length, length)
        candidates = {
            "regard": trained(lambda x=x: attend(*x, BAND), x),
            "SDPA, same mask": trained(lambda x=x, mask=mask: sdpa(x, attn_mask=mask), x),
            "SDPA, is_causal": trained(lambda x=x: sdpa(x, is_causal=True), x),
        }
        t = side_by_side(candidates, repeats=7 if length < 8192 else 3)
        ours = t["regard"]
        bars = {4096: (5, 4), 16384: (15, 15)}.get(length)
        for name, bar in zip(("SDPA, same mask", "SDPA, is_causal"), bars or (None, None), strict=True):
            rows.append(
                f"| `{BAND}`, {length:,} tokens | {name} | {t[name]} | {ours} | **{t[name].median / ours.median:.1f}×** | {f'≥ {bar}×' if bar else ''} |"
            )
    return rows


def flex(length: int = 8192) -> list[str]:
    # the first call is timed: nothing may be left from an earlier run, neither graphs nor compiled headers
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    x = qkv(length, grad=False)
    q, k, v = (y.transpose(1, 2).contiguous() for y in x)
    start = time.perf_counter()
    blocks = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j <= 128), None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    compiled(q, k, v, block_mask=blocks)
    their_start = time.perf_counter() - start
    start = time.perf_counter()
    attend(*x, causal & window(127))  # a pattern not seen before: plan and first run
    our_start = time.perf_counter() - start
    t = side_by_side({"regard": lambda: attend(*x, BAND), "flex": lambda: compiled(q, k, v, block_mask=blocks)}, repeats=31)
    ratio = t["flex"].median / t["regard"].median
    return [
        f"| `{BAND}`, {length:,} tokens, forward | FlexAttention, compiled | {t['flex']} | {t['regard']} | **{ratio:.2f}×** | ≥ 2× |",
        f"| the first call of it (compilation; plan) | FlexAttention, compiled | {their_start:.1f} s | {our_start:.2f} s | {their_start / our_start:.0f}× | |",
    ]


def dense(shapes: tuple[tuple[int, int], ...]) -> list[str]:
    rows, attention = [], SoftmaxAttention()
    for batch, length in shapes:
        x = qkv(length, batch)
        for pattern in (full, causal):
            candidates = {
                "regard": trained(lambda x=x, p=pattern: attention(*x, p), x),
                "SDPA": trained(lambda x=x, p=pattern: sdpa(x, is_causal=p is causal), x),
            }
            t = side_by_side(candidates, repeats=31, at_least=0.03)
            ratio = t["regard"].median / t["SDPA"].median
            rows.append(
                f"| `{pattern}`, batch {batch}, {length:,} tokens | SDPA | {t['SDPA']} | {t['regard']} | {1 / ratio:.2f}× | ≥ 0.97× |"
            )
    return rows


class Projected(nn.Module):
    """The same projections as the layers we compare with, around our attention."""

    def __init__(self, pattern: Pattern):
        super().__init__()
        self.q, self.k, self.v, self.pattern = nn.Linear(H * K, H * K), nn.Linear(H * K, H * K), nn.Linear(H * K, H * K), pattern

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, K)) for f in (self.q, self.k, self.v))
        return attend(q, k, v, self.pattern).flatten(2)


def longformer(length: int) -> Callable[[Tensor], Tensor]:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=H * K, num_attention_heads=H, attention_window=[512], num_hidden_layers=1, attention_probs_dropout_prob=0.0
    )
    layer, none = LongformerSelfAttention(config, 0), torch.zeros(1, length, dtype=torch.bool)
    return lambda x: layer(x, attention_mask=none.float(), is_index_masked=none, is_index_global_attn=none, is_global_attn=False)[0]


def bigbird(length: int) -> Callable[[Tensor], Tensor]:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=H * K,
        num_attention_heads=H,
        block_size=64,
        num_random_blocks=3,
        max_position_embeddings=length,
        attention_probs_dropout_prob=0.0,
    )
    layer = BigBirdBlockSparseAttention(config, 0)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
    return lambda x: layer(x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked, to_blocked_mask=blocked)[0]


def sparse(length: int = 4096, where: str = "") -> list[str]:
    rows = []
    big = block_window(64, 1) | tokens(*range(64), *range(-64, 0)) | random_blocks(3, 64, per_head=H)
    for name, theirs, pattern in (("Longformer", longformer(length), window(256)), ("BigBird", bigbird(length), big)):
        x, ours = torch.randn(1, length, H * K, requires_grad=True), Projected(pattern)
        t = side_by_side({"theirs": trained(lambda x=x, f=theirs: f(x), [x]), "regard": trained(lambda x=x, f=ours: f(x), [x])}, repeats=5)
        ratio = t["theirs"].median / t["regard"].median
        rows.append(
            f"| {name}'s pattern, {length:,} tokens, with projections{where} | transformers | {t['theirs']} | {t['regard']} | **{ratio:.1f}×** | ≥ 1.5× |"
        )
    return rows


def sparse_alone(where: str = "", **environment: str) -> list[str]:
    """The same in a process of its own: what was freed before decides how much of malloc's memory is kept, and so the page faults."""
    code = f"from benchmarks.exact import sparse; print(*sparse(where={where!r}), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("|")]


def sparse_with_kept_memory() -> list[str]:
    """With a malloc that keeps what is freed: without page faults the others gain most. No bar, but to be known."""
    rows = sparse_alone(", malloc keeps memory", MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str(1 << 32))
    return [row.replace("| ≥ 1.5× |", "| |") for row in rows]


MEMORY = """
import torch
from regard.kernels import attend
from regard.patterns import causal, window
def step(length):
    x = [torch.randn(1, length, 8, 64, requires_grad=True) for _ in range(3)]
    attend(*x, causal & window(128)).sum().backward()
step(512)
x = [torch.randn(1, length, 8, 64, requires_grad=True) for _ in range(3)]
# measure
attend(*x, causal & window(128)).sum().backward()
"""


def memory(lengths: tuple[int, ...]) -> list[str]:
    peaks = {length: peak_memory(MEMORY, length=length) for length in lengths}
    first, last = min(lengths), max(lengths)
    slope = math.log(peaks[last] / peaks[first]) / math.log(last / first)
    shown = ", ".join(f"{length:,}: {peak:.0f} MiB" for length, peak in peaks.items())
    return [f"Peak memory of `{BAND}`, forward + backward, beyond q, k and v: {shown}. Exponent in the length: **{slope:.2f}** (≤ 1.1)."]


def main() -> None:
    quick = "--quick" in sys.argv
    torch.manual_seed(0)
    lines = ["## Exact attention", "", f"8 heads of 64, float32, forward + backward. {machine()}.", ""]
    lines += ["| what | against | theirs | regard | faster | bar |", "|---|---|---|---|---|---|"]
    lines += windows((1024, 4096) if quick else (1024, 4096, 16384))
    lines += sparse_alone()
    lines += sparse_with_kept_memory()
    lines += dense(((8, 64), (4, 256)) if quick else ((32, 32), (8, 64), (4, 256), (2, 1024), (1, 4096)))
    lines += [] if quick else flex()
    lines += ["", *memory((4096, 16384) if quick else (4096, 16384, 65536))]
    if quick:
        print("\n".join(lines))
    else:
        write("exact", lines)


if __name__ == "__main__":
    main()
