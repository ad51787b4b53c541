"""Mechanisms against every public implementation of them that installs here: time and memory of forward + backward.

Run:  python -m benchmarks.mechanisms [--only NAME ...] [--lengths N ...] [--quick] [--cells FILE]
A complete run writes the section `mechanisms` of RESULTS.md; a part is only printed. With `--cells` every measurement is appended to
FILE, and a later run does not repeat those it finds there: delete the file when the code has changed.

Each pair is timed in turn in a fresh process per length, together with dense attention by PyTorch's SDPA; peak memory is measured in
one more process per side. All layers have width 512, 8 heads, batch 1, float32, their projections, and gradients of x and of all
parameters. Both sides have the same configuration; where that takes an option of the peer, `PAIRS` says so.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import attention as ours
from regard.attention import MECHANISMS, Attention, RecurrentState
from regard.compare import Child
from regard.compare.measure import Timing, free_memory, peak_memory, seconds_of, time_side_by_side
from regard.compare.process import out_of_memory
from regard.errors import ChildFailed
from regard.layers import FourierMixer, MultiHead
from regard.patterns import Pattern, causal, full

from ._common import NOT_INSTALLED, machine, progress, write

D, H, K = 512, 8, 64
LENGTHS = (1024, 4096, 16384)
LONGEST = 65536  # length up to which regard's growth is measured
CONTEXTS = (1024, 8192, 65536)  # tokens before a decoding step
WARM_UP = 1024  # tokens of the step before memory is measured: libraries, threads and their buffers are not the layer's
GIB, GIB_LONGEST = 14, 8  # more memory than this is a failure
TURN = 0.3  # seconds per side and turn, if a call takes less
LONG = 12.0  # seconds of CPU time: a call that takes more is measured once
SLOW = 20.0  # seconds: a peer this slow at one length is not run at the next
TIMEOUT = 600.0  # seconds for one process


# -- layers ------------------------------------------------------------------------------------------------------------


class Called(nn.Module):
    """A peer's layer with its call arguments, and an output projection where it leaves that to another module."""

    def __init__(self, layer: nn.Module, out: bool = False, **given: Any):
        super().__init__()
        self.layer, self.given = layer, given
        self.out = nn.Linear(D, D) if out else nn.Identity()

    def forward(self, x_BLD: Tensor) -> Tensor:
        y = self.layer(x_BLD, **self.given)
        return self.out(y if isinstance(y, Tensor) else y[0])


class Under(nn.Module):
    """A layer of ours under a pattern."""

    def __init__(self, layer: nn.Module, pattern: Pattern = full):
        super().__init__()
        self.layer, self.pattern = layer, pattern

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.layer(x_BLD, pattern=self.pattern)


class Dense(nn.Module):
    """The baseline: PyTorch's attention between two projections."""

    def __init__(self, is_causal: bool):
        super().__init__()
        self.qkv, self.out, self.is_causal = nn.Linear(D, 3 * D), nn.Linear(D, D), is_causal

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, H, K)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).transpose(1, 2).flatten(2))


def heads(attention: Attention, pattern: Pattern = full, **options: Any) -> nn.Module:
    return Under(MultiHead(D, H, attention, **options), pattern)


def longformer(length: int) -> nn.Module:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=D, num_attention_heads=H, attention_window=[512], num_hidden_layers=1, attention_probs_dropout_prob=0.0
    )
    none = torch.zeros(1, length, dtype=torch.bool)
    masks = {"attention_mask": none.float(), "is_index_masked": none, "is_index_global_attn": none, "is_global_attn": False}
    return Called(LongformerSelfAttention(config, 0), out=True, **masks)


def bigbird(length: int) -> nn.Module:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=D, num_attention_heads=H, block_size=64, num_random_blocks=3, max_position_embeddings=length,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), 64)
    masks = {"band_mask": band, "from_mask": rows, "to_mask": columns, "from_blocked_mask": blocked, "to_blocked_mask": blocked}
    return Called(BigBirdBlockSparseAttention(config, 0), out=True, **masks)


def half_chunks(length: int) -> int | tuple[int, int]:
    """Reformer's number of buckets, half a chunk of 64 in each; beyond 256 factorised into two hashes."""
    count = length // 32
    return count if count <= 256 else (32, count // 32)


def reformer_of_transformers(length: int) -> nn.Module:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    buckets = half_chunks(length)
    config = ReformerConfig(
        hidden_size=D, num_attention_heads=H, attention_head_size=K, lsh_attn_chunk_length=64, num_hashes=4, is_decoder=False,
        num_buckets=buckets if isinstance(buckets, int) else list(buckets), lsh_attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
    )  # fmt: skip
    return Called(LSHSelfAttention(config), out=True)


def nystrom(length: int) -> nn.Module:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    config = NystromformerConfig(
        hidden_size=D, num_attention_heads=H, num_landmarks=64, segment_means_seq_len=length, conv_kernel_size=33,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Called(NystromformerSelfAttention(config), out=True)


def fnet(length: int) -> nn.Module:
    from transformers import FNetConfig
    from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

    return Called(FNetBasicFourierTransform(FNetConfig(hidden_size=D, max_position_embeddings=length)))


def reformer_pytorch(length: int) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    return Called(LSHSelfAttention(D, heads=H, bucket_size=64, n_hashes=4, causal=False))


def routing(length: int) -> nn.Module:
    from routing_transformer.routing_transformer import SelfAttention

    layer = SelfAttention(D, 1, length, H, 0, 256, causal=False, rel_pos_emb=False).eval()  # in training it gathers new centroids too
    layer.global_attn.kmeans.initted.fill_(True)  # else its first call runs k-means
    return Called(layer)


def sinkhorn(length: int) -> nn.Module:
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornSelfAttention

    # by default it takes the best block and does no Sinkhorn balancing; noise is always on
    return Called(SinkhornSelfAttention(D, 64, length, heads=H, non_permutative=False, sinkhorn_iter=8, temperature=0.75))


def performer(length: int, is_causal: bool = False) -> nn.Module:
    from performer_pytorch import SelfAttention

    return Called(SelfAttention(D, heads=H, dim_head=K, causal=is_causal, nb_features=256))


def linear(length: int, is_causal: bool = False) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return Called(SelfAttention(D, H, causal=is_causal, blindspot_size=1))


def linformer(length: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    return Called(LinformerSelfAttention(D, length, k=256, heads=H))


def local(length: int, is_causal: bool = False) -> nn.Module:
    from local_attention.transformer import LocalMHA

    # both attend to exactly 512 keys per side; without its rotary embeddings
    return Called(LocalMHA(dim=D, window_size=512, heads=H, dim_head=K, causal=is_causal, exact_windowsize=True, use_rotary_pos_emb=False))


def memory_compressed(length: int, is_causal: bool = False) -> nn.Module:
    from memory_compressed_attention import MemoryCompressedAttention

    return Called(MemoryCompressedAttention(D, H, causal=is_causal, compression_factor=3))


def x_transformers(length: int) -> nn.Module:
    from x_transformers.x_transformers import Attention

    return Called(Attention(dim=D, heads=H, dim_head=K, flash=True, causal=False))


# -- what is compared --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A mechanism of regard and a public implementation of it."""

    name: str
    what: str
    peer: str
    ours: Callable[[int], nn.Module]
    theirs: Callable[[int], nn.Module]
    causal: bool = False
    linear: bool = False  # claims to be linear in the length


PAIRS = (
    Pair(
        "longformer", "window of 256 + 256, no global tokens", "transformers, Longformer",
        lambda n: heads(ours.LongformerAttention(256, at=())), longformer, linear=True,
    ),
    Pair(
        "bigbird", "blocks of 64, 3 random ones per head", "transformers, BigBird",
        lambda n: heads(ours.BigBirdAttention(heads=H, block=64, random=3)), bigbird, linear=True,
    ),
    Pair(
        "lsh", "chunks of 64, 4 rounds, L/32 buckets, q = k", "transformers, Reformer",
        lambda n: heads(ours.LSHAttention(chunk=64, rounds=4, buckets=half_chunks(n)), shared_qk=True), reformer_of_transformers, linear=True,
    ),
    Pair(
        "lsh-2", "chunks of 64, 4 rounds, L/64 buckets, q = k", "reformer-pytorch",
        lambda n: heads(ours.LSHAttention(chunk=64, rounds=4, buckets=n // 64), shared_qk=True), reformer_pytorch,
    ),
    Pair(
        "nystrom", "64 landmarks, convolution of 33", "transformers, Nyströmformer",
        lambda n: heads(ours.NystromAttention(heads=H, landmarks=64, kernel=33)), nystrom, linear=True,
    ),
    Pair("fourier", "no projections", "transformers, FNet", lambda n: Under(FourierMixer()), fnet),
    Pair(
        "routing", "L/256 clusters of 256, centroids at rest", "routing-transformer",
        lambda n: heads(ours.RoutingAttention(head_dim=K, heads=H, clusters=max(1, n // 256), size=256)), routing,
    ),
    Pair(
        "sinkhorn", "blocks of 64, 8 iterations, noise", "sinkhorn-transformer",
        lambda n: heads(ours.SinkhornAttention(block=64, iterations=8, temperature=0.75, noise=1.0)), sinkhorn,
    ),
    Pair(
        "performer", "256 features", "performer-pytorch", lambda n: heads(ours.Performer(head_dim=K, num_features=256)), performer, linear=True
    ),
    Pair(
        "performer-causal", "256 features, causal", "performer-pytorch",
        lambda n: heads(ours.Performer(head_dim=K, num_features=256), causal), partial(performer, is_causal=True),
        causal=True, linear=True,
    ),
    Pair("efficient", "two softmaxes", "linear-attention-transformer", lambda n: heads(ours.EfficientAttention()), linear, linear=True),
    # theirs has the features softmax(q) and exp(k), ours elu + 1: as many, and the same sums
    Pair(
        "linear-causal", "64 features, causal", "linear-attention-transformer", lambda n: heads(ours.LinearAttention(), causal),
        partial(linear, is_causal=True), causal=True, linear=True,
    ),
    Pair("linformer", "rank 256", "linformer", lambda n: heads(ours.LinformerAttention(max_length=n, rank=256)), linformer, linear=True),
    Pair("local", "window of 512 + 512", "local-attention", lambda n: heads(ours.LocalAttention(512)), local, linear=True),
    Pair(
        "local-causal", "window of 512, causal", "local-attention", lambda n: heads(ours.LocalAttention(512), causal),
        partial(local, is_causal=True), causal=True, linear=True,
    ),
    # theirs has one convolution for keys and values and a null key; ours one for keys, and one number per head and position for values
    Pair(
        "memory-compressed", "factor 3", "memory-compressed-attention",
        lambda n: heads(ours.MemoryCompressedAttention(head_dim=K, heads=H, stride=3)), memory_compressed,
    ),
    Pair(
        "memory-compressed-causal", "factor 3, causal", "memory-compressed-attention",
        lambda n: heads(ours.MemoryCompressedAttention(head_dim=K, heads=H, stride=3), causal), partial(memory_compressed, is_causal=True),
        causal=True,
    ),
    Pair("softmax", "dense", "x-transformers, flash", lambda n: heads(ours.SoftmaxAttention()), x_transformers),
)  # fmt: skip

DECODING = tuple(part.facts.name for part in MECHANISMS if part.facts.state is RecurrentState)


# -- in a child process -------------------------------------------------------------------------------------------


def build(name: str, side: str, length: int) -> nn.Module:
    pair = next(pair for pair in PAIRS if pair.name == name)
    torch.manual_seed(0)
    return Dense(pair.causal) if side == "dense" else (pair.theirs if side == "theirs" else pair.ours)(length)


def step(layer: nn.Module, x: Tensor) -> None:
    out = layer(x)
    # a peer may have parameters that this configuration does not use
    torch.autograd.grad(out, [x, *layer.parameters()], torch.ones_like(out), allow_unused=True)


def tokens(length: int) -> Tensor:
    return torch.randn(1, length, D, requires_grad=True)


def timed(name: str, length: int, sides: list[str], budget: float, gib: float) -> dict[str, Any]:
    """Each side's timing, or its error. Calls are repeated, all sides in turn, for `budget` seconds of CPU time."""
    x, found, layers, first, work = tokens(length), {}, {}, {}, {}
    for side in sides:
        try:
            layers[side] = build(name, side, length)
            start = time.process_time()  # unlike the wall clock, it stops while other processes run
            first[side] = _seconds(layers[side], x)
            work[side] = time.process_time() - start
        except Exception as error:
            found[side] = {"error": _failure(error, gib)}
            layers.pop(side, None)
    short = [side for side in first if work[side] <= LONG]
    seconds = {side: [] if side in short else [first[side]] for side in first}
    if "ours" in seconds.keys() - set(short):
        seconds["ours"] = [_seconds(layers["ours"], x)]  # the first call plans its pattern
    for _ in range(min(9, max(3, int(budget / max(sum(max(work[side], TURN) for side in short), 1e-3))))):
        for (
            side
        ) in short:  # short calls several times per turn: memory that one side frees would else be page-faulted in again by the other
            calls = max(1, int(TURN / first[side]))
            seconds[side].append(sum(_seconds(layers[side], x) for _ in range(calls)) / calls)
    for side, s in seconds.items():
        found[side] = asdict(Timing.of(s))
    return found


def _seconds(layer: nn.Module, x: Tensor) -> float:
    return seconds_of(lambda: step(layer, x))


def peak(name: str, side: str, length: int) -> float | None:
    """MiB of one step, after a short one that is not measured."""
    step(build(name, side, WARM_UP), tokens(WARM_UP))
    layer, x = build(name, side, length), tokens(length)
    return peak_memory(lambda: step(layer, x))


@torch.no_grad()
def decoded(name: str) -> dict[str, Any]:
    """Time per token and bytes of the state after each of CONTEXTS."""
    part = next(part for part in MECHANISMS if part.facts.name == name)
    layer = MultiHead(D, H, part.sized(heads=H, head_dim=K, length=max(CONTEXTS))).eval()
    states, token = {context: layer.start(1, causal) for context in CONTEXTS}, torch.randn(1, 1, D)
    for context, state in states.items():
        for piece in torch.randn(1, context, D).split(4096, 1):
            layer(piece, pattern=causal, state=state)
    steps = {str(n): partial(layer, token, pattern=causal, state=state) for n, state in states.items()}
    times = time_side_by_side(steps, repeats=9)
    return {
        str(n): asdict(times[str(n)]) | {"bytes": sum(x.nbytes for x in state.sums.values())}  # type: ignore[attr-defined]
        for n, state in states.items()
    }


# -- the run -----------------------------------------------------------------------------------------------------------


def in_child(function: str, gib: float, /, **arguments: Any) -> dict[str, Any]:
    """What a function of this module returns in a fresh process, or the error it ended with."""
    try:
        with Child(torch.get_num_threads(), gib * 1024) as child:
            return {"result": child.call(f"benchmarks.mechanisms:{function}", TIMEOUT, **arguments)}
    except ChildFailed as failure:
        reasons = {"memory": f"more than {gib:.3g} GiB", "time": f"more than {TIMEOUT:.0f} s"}
        return {"error": reasons.get(failure.kind, _cell(str(failure)))}


def _failure(error: Exception, gib: float) -> str:
    if isinstance(error, ModuleNotFoundError):
        return NOT_INSTALLED
    return f"more than {gib:.3g} GiB" if out_of_memory(error) else _cell(str(error) or type(error).__name__)


def _cell(message: str) -> str:
    return message.splitlines()[0].replace("|", "/")[:100]


class Cells:
    """Measurements by name; with a file, also those of earlier runs."""

    def __init__(self, path: Path | None, quick: bool):
        self.path, self.quick = path, quick
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.done: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                self.done.update([json.loads(line)])
            except ValueError:
                continue  # an empty line, or one cut short when a run was stopped

    def get(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        key = f"quick {name}" if self.quick else name
        if key not in self.done:
            found = measure()
            self.done[key] = found
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(f"\n{json.dumps([key, found])}")  # the line feed first: a line cut short stays a line of its own
            progress(f"{name}: {_brief(found)}")
        return self.done[key]

    def times(self, pair: Pair, length: int, sides: tuple[str, ...], gib: float = GIB) -> dict[str, Any]:
        budget = 6.0 if self.quick else 16.0

        def times_of(sides: Sequence[str]) -> dict[str, Any]:
            gib_now = free(gib)
            found = in_child("timed", gib_now, name=pair.name, length=length, sides=list(sides), budget=budget, gib=gib_now)
            return found.get("result") or dict.fromkeys(sides, found)

        def measure() -> dict[str, Any]:
            found = times_of(sides)
            if len(sides) > 1 and all("error" in one for one in found.values()):  # the process died, probably of the peer
                found |= times_of([side for side in sides if side != "theirs"])
            return found

        return self.get(f"{pair.name} {length} {'+'.join(sides)}", measure)

    def peak(self, pair: Pair, length: int, side: str, gib: float = GIB) -> dict[str, Any]:
        def measure() -> dict[str, Any]:
            found = in_child("peak", free(gib), name=pair.name, side=side, length=length)
            return found if "error" in found else {"mib": found["result"]}

        return self.get(f"{pair.name} {length} memory {side}", measure)


def free(gib: float) -> float:
    """`gib`, or 95 % of the free memory if that is less."""
    there = free_memory()
    return gib if there is None else round(min(gib, 0.95 * there / 1024), 1)


def _brief(found: dict[str, Any]) -> str:
    if "mib" in found or "error" in found:
        return _mib(found)
    return ", ".join(f"{side} {_time(one)}" for side, one in found.items())


def _time(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    return str(Timing(found["median"], found["spread"], found["repeats"]))


def _mib(found: dict[str, Any]) -> str:
    return found["error"] if "error" in found else f"{found['mib']:.0f}"


@dataclass(frozen=True)
class Row:
    """One pair at one length."""

    pair: Pair
    length: int
    times: dict[str, Any]
    mib: dict[str, dict[str, Any]]

    @property
    def ratio(self) -> float | None:
        """How many times as fast regard is."""
        return _quotient(self.times["theirs"], self.times["ours"], "median")

    def __str__(self) -> str:
        parts = [
            f"{self.length:,}", f"{self.pair.name}: {self.pair.what}", self.pair.peer, _time(self.times["theirs"]), _time(self.times["ours"]),
            "" if self.ratio is None else f"**{self.ratio:.1f}×**", _mib(self.mib["theirs"]), _mib(self.mib["ours"]),
            _time(self.times["dense"]),
        ]  # fmt: skip
        return f"| {' | '.join(parts)} |"


HEAD = "| length | mechanism | peer | theirs | regard | faster | their MiB | our MiB | SDPA |"


def _quotient(over: dict[str, Any], under: dict[str, Any], key: str) -> float | None:
    return over[key] / under[key] if key in over and key in under and under[key] else None


def rows_of(pair: Pair, lengths: tuple[int, ...], cells: Cells) -> list[Row]:
    rows: list[Row] = []
    for length in lengths:
        why = _not_again(rows[-1]) if rows else None
        sides = ("ours", "theirs", "dense") if why is None else ("ours", "dense")
        times = {"theirs": {"error": why}} | cells.times(pair, length, sides)
        memory = {"ours": cells.peak(pair, length, "ours")}
        theirs = times["theirs"]
        memory["theirs"] = {"error": "–"} if "error" in theirs else cells.peak(pair, length, "theirs")
        rows.append(Row(pair, length, times, memory))
    return rows


def _not_again(before: Row) -> str | None:
    """Why the peer is not run at the next length."""
    theirs = before.times["theirs"]
    if "error" in theirs:
        return theirs["error"] if theirs["error"].startswith("not run") else f"not run: {theirs['error']} at {before.length:,}"
    return f"not run: {theirs['median']:.0f} s at {before.length:,}" if theirs["median"] > SLOW else None


def growth(rows: list[Row], cells: Cells, longest: bool) -> list[str]:
    """Exponents of time and memory in the length, from 4,096 tokens on, of mechanisms that claim to be linear."""
    lines = []
    for pair in (pair for pair in PAIRS if pair.linear):
        mine = {row.length: row for row in rows if row.pair == pair and row.length >= 4096}
        times = {length: row.times["ours"] for length, row in mine.items()}
        peaks = {length: row.mib["ours"] for length, row in mine.items()}
        if longest and mine:
            times[LONGEST] = cells.times(pair, LONGEST, ("ours",), GIB_LONGEST)["ours"]
            peaks[LONGEST] = cells.peak(pair, LONGEST, "ours", GIB_LONGEST)
        if len(times) < 2:
            continue
        by_time, by_memory = _exponents(times, "median"), _exponents(peaks, "mib")
        fitted = _fitted(times, "median"), _fitted(peaks, "mib")
        theirs = [
            _exponents({length: found for length, row in mine.items() if key in (found := side(row))}, key)
            for side, key in ((lambda row: row.times["theirs"], "median"), (lambda row: row.mib["theirs"], "mib"))
        ]
        parts = [
            pair.name, f"**{fitted[0]:.2f}** ({_shown(by_time)})", f"**{fitted[1]:.2f}** ({_shown(by_memory)})", *map(_shown, theirs),
            _time(times[max(times)]), _mib(peaks[max(peaks)]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(parts)} |")
    top = [
        "| mechanism | time | memory | their time | their memory | ours at the longest | MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    return [*top, *lines] if lines else []


def _exponents(found: dict[int, dict[str, Any]], key: str) -> list[float | str]:
    """From each length to the next; an error where there is no figure."""
    lengths = sorted(found)
    return [
        math.log(found[n][key] / found[m][key]) / math.log(n / m)
        if key in found[m] and key in found[n]
        else str(found[n].get("error", "–"))
        for m, n in pairwise(lengths)
    ]


def _fitted(found: dict[int, dict[str, Any]], key: str) -> float:
    """The exponent over all lengths, by least squares of the logarithms; NaN where a figure is missing."""
    if any(key not in one for one in found.values()):
        return math.nan
    return statistics.linear_regression([math.log(n) for n in found], [math.log(one[key]) for one in found.values()]).slope


def _shown(exponents: list[float | str]) -> str:
    return ", ".join(e if isinstance(e, str) else f"{e:.2f}" for e in exponents) or "–"


def decoding(cells: Cells, names: list[str]) -> list[str]:
    """Mechanisms with a state of fixed size: the cost of a token does not depend on how many came before."""
    lines = []
    for name in names:
        found = cells.get(f"decode {name}", partial(_decoded_in_child, name))
        if "error" in found:
            lines.append(f"| {name} | {found['error']} |{' |' * len(CONTEXTS)}")
            continue
        by_context = [found[str(n)] for n in CONTEXTS]
        steps = (f"{one['median'] * 1e6:.0f} µs ±{one['spread'] * 50:.0f} %" for one in by_context)
        size = ", ".join(f"{size / 1024:.0f}" for size in sorted({one["bytes"] for one in by_context}))
        lines.append(f"| {name} | {' | '.join(steps)} | {size} |")
    top = [f"| decoding, one token after | {' | '.join(f'{n:,}' for n in CONTEXTS)} | KiB of state |", "|---" * (len(CONTEXTS) + 2) + "|"]
    return [*top, *lines] if lines else []


def _decoded_in_child(name: str) -> dict[str, Any]:
    found = in_child("decoded", free(GIB), name=name)
    return found.get("result", found)


def report(rows: list[Row], cells: Cells, names: list[str], longest: bool) -> list[str]:
    rows = sorted(rows, key=lambda row: row.length)
    ratios = [row.ratio for row in rows if row.ratio is not None]
    exponents, steps = growth(rows, cells, longest), decoding(cells, names)
    lines = [
        "## Mechanisms against public implementations",
        "",
        f"Width {D}, {H} heads, batch 1, float32, forward + backward, with projections. {machine()}.",
        "",
        f"Times of a row are measured in one process, in turn; ratios are theirs / ours. SDPA is dense attention, causal where the mechanism is. {GIB} GiB at most.",
        "",
    ]
    if rows:
        lines += [HEAD, "|---" * (HEAD.count("|") - 1) + "|", *map(str, rows), ""]
    if ratios:
        lines += [f"Median ratio: **{statistics.median(ratios):.1f}×**, smallest {min(ratios):.2f}×.", ""]
    if exponents:
        lines += [
            f"Exponents in the length from 4,096 on, fitted over all lengths (and from each to the next); ours to {LONGEST:,} tokens within {GIB_LONGEST} GiB.",
            "",
            *exponents,
            "",
        ]
    return lines + steps


def main() -> None:
    parser = argparse.ArgumentParser(description="Mechanisms against public implementations of them.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="pairs whose name contains one of these; `decode` for decoding")
    parser.add_argument("--lengths", nargs="+", type=int, metavar="N")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, up to 4,096 tokens, only printed")
    parser.add_argument("--cells", type=Path, metavar="FILE", help="file in which measurements are kept and looked up")
    args = parser.parse_args()

    def wanted(name: str) -> bool:
        return args.only is None or any(part in name for part in args.only)

    pairs, names = [pair for pair in PAIRS if wanted(pair.name)], [name for name in DECODING if wanted(f"decode {name}")]
    if not pairs and not names:
        parser.error(f"--only: none of {', '.join(pair.name for pair in PAIRS)}, decode {', decode '.join(DECODING)}")
    lengths = tuple(sorted(set(args.lengths))) if args.lengths else LENGTHS[:2] if args.quick else LENGTHS
    cells = Cells(args.cells, args.quick)
    rows = [row for pair in pairs for row in rows_of(pair, lengths, cells)]
    whole = not args.quick and args.only is None and lengths == LENGTHS
    lines = report(rows, cells, names, longest=16384 in lengths)
    write("mechanisms", lines, quick=not whole)


if __name__ == "__main__":
    main()
