r"""Reformer: very long texts in little memory, by looking only where hashes agree and by layers that can be run backwards.

$$y_1 = x_1 + \mathrm{look}(N(x_2)) \qquad y_2 = x_2 + \mathrm{FFN}(N(y_1)) \qquad x_1 = x_2 = E[\mathrm{id}_t] + P_t \text{ at the beginning}$$
$$\mathrm{features} = N([y_1; y_2])$$
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import LSHAttention, SoftmaxAttention, State
from ..attention._base import unmixed
from ..attention._places import real
from ..errors import BadConfig, NotSupported, ShapeError
from ..kernels import Bias
from ..layers import ACTIVATIONS, Dropout, FeedForward, LayerNorm, MultiHead, Packing, Reversible, ReversibleBlock, truncated
from ..patterns import Pattern, block_memory, causal, full, lengths
from ._language import LanguageModelConfig, TextEncoder
from ._model import ModelFacts


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(LanguageModelConfig):
    length: int = 4096
    width: int = 256
    heads: int = 4
    head_width: int = 64
    hidden: int = 512
    layers: tuple[str, ...] = ("local", "lsh", "local", "lsh")
    axial: tuple[int, ...] = ()  # rows, columns, features of a row, features of a column; without, a table of `length` places
    chunk: tuple[int, int] = (64, 64)  # of local and of lsh layers
    before: tuple[int, ...] = (1, 1)  # chunks looked at before one's own, likewise
    after: tuple[int, ...] = (0, 0)  # and after it
    rounds: int = 1
    buckets: tuple[int, ...] = ()  # of the hash, several for a product; without, about two a chunk of the text
    seed: tuple[int, ...] = (0,)  # of the hash functions; none: drawn anew at each call
    dropout: float = 0.05
    attention_dropout: float = 0.05  # of local layers
    activation: str = "relu"
    eps: float = 1e-12
    causal: bool = False  # read from the left, as a language model
    words: bool = True  # a head that says words

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("activation", ACTIVATIONS)
        if not self.layers or set(self.layers) - {"local", "lsh"}:
            raise BadConfig(f"ReformerConfig: layers={self.layers!r}; expected local and lsh, one a layer")
        if self.axial and (len(self.axial) != 4 or self.axial[0] * self.axial[1] < self.length or sum(self.axial[2:]) != self.width):
            raise BadConfig(
                f"ReformerConfig: axial={self.axial!r}; expected rows and columns for {self.length} places, and features that add up to {self.width}"
            )


class Reformer(TextEncoder):
    """Hashed and local attention by turns, in reversible blocks.

    Cost:    time O(R·L·(c·K + log L)·H + L·D·F) a layer for R rounds and chunks of c; activations of one layer, whatever the depth.
    Use it:  for texts of tens of thousands of tokens where memory is what is short.
    Avoid it: below some thousand tokens; where runs must not differ by the draw of a hash.
    Limits:  at most `length` tokens; no heads but that for words, no pooler: `pooled` is the first token. With `causal` it cannot go step by step.
    Paper:   Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451.
    We differ: attention is that of the published code, quirks included, so that published weights give published numbers: the first chunk
             looks back at the last, of the round before if there are several; pairs met in several rounds count several times.
             `LSHAttention` by itself has neither. But in float32 transformers rounds the sum of several rounds for tokens that see only
             themselves (the first of a causal text), and gives them 0.998 of what it should; here it is 1.
    """

    facts = ModelFacts(name="reformer", year=2020, title="Reformer: the efficient transformer", paper="arXiv:2001.04451")
    Config = ReformerConfig
    config: ReformerConfig

    def __init__(self, config: ReformerConfig):
        super().__init__()
        c = self.config = config
        norm = partial(LayerNorm, eps=c.eps)

        def block(kind: str) -> ReversibleBlock:
            thinking = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation], dropout=c.dropout)
            return ReversibleBlock(c.width, self._mixer(kind), thinking, norm=norm, dropout=c.dropout)

        self.token = nn.Embedding(c.vocab, c.width)
        shapes = [(c.axial[0], c.axial[2]), (c.axial[1], c.axial[3])] if c.axial else [(c.length, c.width)]
        self.places = nn.ModuleList(nn.Embedding(*shape) for shape in shapes)
        self.dropout = Dropout(c.dropout)
        self.stack = Reversible(block(kind) for kind in c.layers)
        self.norm = norm(2 * c.width)
        self.output = nn.Linear(2 * c.width, c.vocab, bias=False) if c.words else None
        truncated(self)

    def _mixer(self, kind: str) -> MultiHead:
        c = self.config
        used = tuple(chunk for chunk, name in zip(c.chunk, ("local", "lsh"), strict=True) if name in c.layers)
        if kind == "local":
            around = ring(c.chunk[0], c.before[0], c.after[0], used)
            return MultiHead(
                c.width, c.heads, SoftmaxAttention(dropout=c.attention_dropout), head_width=c.head_width, bias=False, own=around
            )
        look = PublishedLSH(c.rounds, c.chunk[1], c.buckets, (c.before[1], c.after[1]), c.seed[0] if c.seed else None, c.length, used)
        return MultiHead(c.width, c.heads, look, head_width=c.head_width, bias=False, shared_qk=True)

    def features(self, ids_BL: Tensor, n_B: Tensor | None = None, kind_BL: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """x_BLD, of twice the width. There are no kinds of text to tell apart."""
        self.check(ids_BL, n_B, kind_BL)
        if kind_BL is not None and bool((kind_BL != 0).any()):
            raise NotSupported("Reformer does not tell two texts apart; put a separating token between them, and leave out kind_BL")
        x_BLD = self.dropout(self.token(ids_BL)) + self.dropout(self._place(ids_BL.shape[1]))
        pattern: Pattern = causal if self.config.causal else full
        if n_B is not None:
            pattern = pattern & lengths(n_B)
        x_BLD = self.dropout(self.norm(torch.cat(self.stack(x_BLD, x_BLD, pattern), -1)))
        return x_BLD if packing is None else packing.pack(x_BLD)

    def _place(self, length: int) -> Tensor:
        """What is added for each place, x_LD."""
        c, device = self.config, self.token.weight.device
        if length > c.length:
            raise ShapeError(f"a text of {length} tokens, and places for {c.length}; cut it, or build the model with a larger length")
        at_L = torch.arange(length, device=device)
        if not c.axial:
            return self.places[0](at_L)  # type: ignore[no-any-return]
        row, column = self.places
        return torch.cat([row(at_L.div(c.axial[1], rounding_mode="floor")), column(at_L % c.axial[1])], -1)

    def head(self) -> tuple[Tensor, Tensor | None]:
        if self.output is None:
            raise NotSupported("this Reformer has no head for words; build it with words=True, and train that head")
        return self.output.weight, None

    def pooled(self, x_BLD: Tensor) -> Tensor:
        return x_BLD[:, 0]


def filled(length: int, used: tuple[int, ...]) -> int:
    """The length of a text that is filled up with padding, until chunks of every size used fit; one chunk needs none."""
    return length if length <= min(used) else math.ceil(length / math.lcm(*used)) * math.lcm(*used)


@dataclass(frozen=True, repr=False)
class ring(Pattern):
    """Chunks of `size` see themselves and the chunks before and after, the first one being the next of the last; one chunk sees itself."""

    size: int
    before: int
    after: int
    used: tuple[int, ...]  # sizes of chunks in the model

    def fit(self, queries: int, keys: int) -> Pattern:
        count = math.ceil(filled(keys, self.used) / self.size)
        if count <= 1 + self.before + self.after:
            return full
        near: Pattern = block_memory(self.size, self.before * self.size, self.after * self.size)
        return near | _Round(self.size, self.before, self.after, count)


@dataclass(frozen=True, repr=False)
class _Round(Pattern):
    """Round the end: what `before` and `after` reach beyond the first and the last of `count` chunks."""

    size: int
    before: int
    after: int
    count: int

    def allows(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        of_i, of_j = (x.div(self.size, rounding_mode="floor") for x in (i, j))
        return (of_j - of_i >= self.count - self.before) | (of_i - of_j >= self.count - self.after)


class PublishedLSH(LSHAttention):
    """Hashed attention as transformers computes it: rounds in one row, chunks in a ring, pairs counted in each round they meet in.

    Padding is sorted behind the rest, and chunks are filled up with it. `weights` are what it really gives each value.
    """

    def __init__(
        self,
        rounds: int,
        chunk: int,
        buckets: tuple[int, ...],
        beside: tuple[int, int],
        seed: int | None,
        length: int,
        used: tuple[int, ...],
    ):
        super().__init__(rounds=rounds, chunk=chunk, buckets=buckets or 2, seed=seed)
        self.fixed, self.beside, self.length, self.used = buckets, beside, length, used

    def sizes(self, length: int) -> tuple[int, ...]:
        """The buckets of each hash: two a chunk, rounded down to a power of two, and two hashes where that is many."""
        if self.fixed:
            return self.fixed
        power = (2 * (length // self.chunk)).bit_length() - 1
        limit = 2 * max(int((self.length // self.chunk) ** 0.5), self.chunk)
        return (2**power,) if 2**power <= limit else (2 ** (power // 2), 2 ** (power - power // 2))

    @unmixed
    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        (L, H, K), sizes = q_BLHK.shape[1:], self.sizes(filled(q_BLHK.shape[1], self.used))
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())) if self.seed is None else self.seed)
        precise = torch.promote_types(q_BLHK.dtype, torch.float32)
        turn_HKRN = torch.randn(H, K, self.rounds, sum(sizes) // 2, generator=generator, dtype=precise).to(q_BLHK)
        turned_BHRLN = torch.einsum("blhk,hkrn->bhrln", q_BLHK.detach(), turn_HKRN)
        bucket_BHRL, factor = torch.zeros((), dtype=torch.long, device=q_BLHK.device), 1
        for size, part in zip(sizes, turned_BHRLN.split([size // 2 for size in sizes], -1), strict=True):
            bucket_BHRL = bucket_BHRL + factor * torch.cat([part, -part], -1).argmax(-1)
            factor *= size
        padding_BL = torch.arange(L, device=q_BLHK.device) >= real(pattern, L, q_BLHK.device)[:, None]
        return bucket_BHRL.masked_fill(padding_BL[:, None, None], factor)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        B, M, H, _ = k_BMHK.shape
        identity_BMHM = torch.eye(M, dtype=k_BMHK.dtype, device=k_BMHK.device)[:, None].expand(B, M, H, M)
        return self.forward(q_BLHK, k_BMHK, identity_BMHM, pattern, bias).transpose(1, 2)

    def forward(
        self,
        q_BLHK: Tensor,
        k_BMHK: Tensor,
        v_BMHV: Tensor,
        pattern: Pattern = full,
        bias: Tensor | Bias | None = None,
        state: State | None = None,
    ) -> Tensor:
        self.check(q_BLHK, k_BMHK, v_BMHV, pattern, bias, state)
        L, R, C, (before, after) = q_BLHK.shape[1], self.rounds, self.chunk, self.beside
        k_BMHK = k_BMHK / (k_BMHK.square().sum(-1, keepdim=True) + 1e-6 * k_BMHK.shape[-1]).sqrt()
        pad = filled(L, self.used) - L
        if L + pad <= C:
            i_L = torch.arange(L, device=q_BLHK.device)
            return _look(q_BLHK.transpose(1, 2), k_BMHK.transpose(1, 2), v_BMHV.transpose(1, 2), i_L, i_L, pattern, L)[0].transpose(1, 2)
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)).transpose(1, 2) for x in (q_BLHK, k_BMHK, v_BMHV))
        bucket_BHRL = F.pad(self.hash(q_BLHK, pattern), (0, pad), value=math.prod(self.sizes(L + pad)))
        at_BHRL = bucket_BHRL.sort(dim=-1, stable=True).indices
        place_BHRL = torch.empty_like(at_BHRL).scatter_(-1, at_BHRL, torch.arange(L + pad, device=q.device).expand_as(at_BHRL))

        def chunks(x_BHLK: Tensor) -> Tensor:
            """In the order of the hash, all rounds one behind the other, cut: x_BHTCK."""
            index = at_BHRL.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x_BHLK.shape[-1])
            return x_BHLK.gather(2, index).unflatten(2, (-1, C))  # type: ignore[no-any-return]

        def beside(x_BHTC: Tensor) -> Tensor:
            return torch.cat([x_BHTC.roll(n, 2) for n in range(before, -after - 1, -1)], 3)

        i_BHTC = at_BHRL.flatten(2).unflatten(2, (-1, C))
        out_BHTCV, lse_BHTC = _look(chunks(q), beside(chunks(k)), beside(chunks(v)), i_BHTC, beside(i_BHTC), pattern, L)
        out_BHRLV, lse_BHRL = out_BHTCV.flatten(2, 3).unflatten(2, (R, -1)), lse_BHTC.flatten(2, 3).unflatten(2, (R, -1))
        out_BHRLV = out_BHRLV.gather(3, place_BHRL.unsqueeze(-1).expand(*place_BHRL.shape, v.shape[-1]))
        share_BHRL = lse_BHRL.gather(3, place_BHRL).softmax(2)
        return (share_BHRL.unsqueeze(-1) * out_BHRLV).sum(2)[:, :, :L].transpose(1, 2)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"rounds={self.rounds}, chunk={self.chunk}, buckets={self.fixed or 'two a chunk'}, seed={self.seed}"


def _look(q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor, pattern: Pattern, length: int) -> tuple[Tensor, Tensor]:
    """Averages and log-sum-exps. What may not be seen is as good as infinitely far, oneself far enough to be seen only if there is nothing else."""
    i, j = i.unsqueeze(-1), j.unsqueeze(-2)
    while i.dim() < q.dim():
        i, j = i.unsqueeze(0), j.unsqueeze(0)
    ahead = (1,) * (i.dim() - 2)  # i and j begin with the axes of batch rows and heads
    b, h = torch.arange(pattern.batch, device=i.device).view(-1, 1, *ahead), torch.arange(pattern.heads, device=i.device).view(-1, *ahead)
    seen = (j < length) & pattern.fit(length, length).allows(b, h, i.clamp(max=length - 1), j.clamp(max=length - 1))
    scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, -1e9).masked_fill(i == j, -1e5)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse
