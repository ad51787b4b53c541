"""Exact attention under patterns against PyTorch's SDPA and FlexAttention and transformers' sparse layers.

Run:  python -m benchmarks.exact [--quick]      writes the section `exact` of RESULTS.md;  --quick: short and few, only printed
Every figure is forward + backward in float32 unless it says forward; ratios are of one interleaved run.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import SoftmaxAttention
from regard.compare.measure import peak_memory, time_side_by_side
from regard.kernels import attend
from regard.patterns import Pattern, block_window, causal, full, random_blocks, tokens, window

from ._common import NOT_INSTALLED, TIMEOUT, child, installed, machine, progress, write

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
        t = time_side_by_side(candidates, repeats=7 if length < 8192 else 3)
        ours = t["regard"]
        for name in ("SDPA, same mask", "SDPA, is_causal"):
            rows.append(f"| `{BAND}`, {length:,} tokens | {name} | {t[name]} | {ours} | **{t[name].median / ours.median:.1f}×** |")
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
    t = time_side_by_side({"regard": lambda: attend(*x, BAND), "flex": lambda: compiled(q, k, v, block_mask=blocks)}, repeats=31)
    ratio = t["flex"].median / t["regard"].median
    return [
        f"| `{BAND}`, {length:,} tokens, forward | FlexAttention, compiled | {t['flex']} | {t['regard']} | **{ratio:.1f}×** |",
        f"| the first call of it (compilation; plan) | FlexAttention, compiled | {their_start:.1f} s | {our_start:.2f} s | {their_start / our_start:.0f}× |",
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
            t = time_side_by_side(candidates, repeats=31, min_seconds=0.03)
            ratio = t["regard"].median / t["SDPA"].median
            rows.append(f"| `{pattern}`, batch {batch}, {length:,} tokens | SDPA | {t['SDPA']} | {t['regard']} | {1 / ratio:.2f}× |")
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
        t = time_side_by_side(
            {"theirs": trained(lambda x=x, f=theirs: f(x), [x]), "regard": trained(lambda x=x, f=ours: f(x), [x])}, repeats=5
        )
        ratio = t["theirs"].median / t["regard"].median
        what = f"{name}'s pattern, {length:,} tokens, with projections{where}"
        rows.append(f"| {what} | transformers | {t['theirs']} | {t['regard']} | **{ratio:.1f}×** |")
    return rows


def sparse_in_children(length: int) -> list[str]:
    """In processes of their own: what was freed before decides how much memory malloc keeps, and so the number of page faults.

    Once more with a malloc that keeps freed memory: the peers gain most from the absence of page faults.
    """
    if not installed("transformers"):
        return [f"| sparse patterns | transformers | {NOT_INSTALLED} | | |"]
    keep = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
    rows: list[str] = []
    for where, env in (("", {}), (", malloc keeps memory", keep)):
        with child(**env) as process:
            rows += process.call("benchmarks.exact:sparse", TIMEOUT, length=length, where=where)
    return rows


def window_memory(length: int) -> float | None:
    """Called in a child process: peak MiB beyond q, k and v."""
    attend(*qkv(512), BAND).sum().backward()
    x = qkv(length)
    return peak_memory(lambda: attend(*x, BAND).sum().backward())


def memory(lengths: tuple[int, ...]) -> list[str]:
    peaks = {}
    for length in lengths:
        with child() as process:
            peaks[length] = process.call("benchmarks.exact:window_memory", TIMEOUT, length=length)
    first, last = min(lengths), max(lengths)
    slope = math.log(peaks[last] / peaks[first]) / math.log(last / first)
    shown = ", ".join(f"{length:,}: {peak:.0f} MiB" for length, peak in peaks.items())
    return [f"Peak memory of `{BAND}`, forward + backward, beyond q, k and v: {shown}. Exponent in the length: **{slope:.2f}**."]


def main() -> None:
    quick = "--quick" in sys.argv
    torch.manual_seed(0)
    lines = ["## Exact attention", "", f"8 heads of 64, float32, forward + backward. {machine()}.", ""]
    lines += ["| what | against | theirs | regard | faster |", "|---|---|---|---|---|"]
    progress("windows")
    lines += windows((1024,) if quick else (1024, 4096, 16384))
    progress("sparse patterns of transformers")
    lines += sparse_in_children(1024 if quick else 4096)
    progress("dense attention")
    lines += dense(((8, 64),) if quick else ((32, 32), (8, 64), (4, 256), (2, 1024), (1, 4096)))
    progress("FlexAttention")
    lines += [] if quick else flex()
    progress("memory")
    lines += ["", *memory((1024, 4096) if quick else (4096, 16384, 65536))]
    write("exact", lines, quick)


if __name__ == "__main__":
    main()
