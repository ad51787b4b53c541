"""Reformer's attention: look only at positions whose vectors fall into the same buckets of random hash functions."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..errors import BadConfig
from ..kernels import Bias
from ..patterns import Pattern, full
from ._base import Attention, Facts, softmax_where, unmixed
from ._places import allowed, real, rows, take
from ._scored import BUDGET
from ._state import State


class LSHAttention(Attention):
    r"""Positions are sorted by a hash of their vector and cut into chunks; each looks at its own chunk and the one before.

    $$o_i = \sum_{j \in P_i} \mathrm{softmax}_j\big(q_i^\top k_j / \|k_j\|\big)\, v_j, \qquad
      P_i = \bigcup_r \Big\{ j \ne i : \lceil s^r_i / c \rceil - 1 \le \lceil s^r_j / c \rceil \le \lceil s^r_i / c \rceil \Big\}$$

    $s^r_i$ is the place of i when positions are sorted by (bucket, position) in round r; the bucket is
    $\arg\max[q_i R_r; -q_i R_r]$ with a random matrix $R_r$. A position looks at itself only if it may look at nothing else.

    Cost:    time O(R·L·(c·K + log L)) for R rounds and chunks of c; memory O(R·L·K) and some chunks' scores, in training too:
             they are computed again on the way back.
    Use it:  for sequences of many thousand tokens in which a few distant ones matter and are alike; trained with it, more
             rounds may be used afterwards (`attention.rounds = 8`).
    Avoid it: below some thousand tokens, where exact attention is faster; where queries and keys must differ.
    Limits:  q and k should be one vector, as `MultiHead(shared_qk=True)` makes them. Given others, it is still what the
             formula says: places are those of the queries, directions those of the keys. Pairs are masked by the pattern,
             but a token of the future may move the borders of chunks: causal as a mask only. Padding is sorted behind the
             rest, so it changes nothing. No bias, no steps. `seed=None` draws hash functions anew at each call, from
             PyTorch's generator; any other seed gives the same ones always.
    Paper:   Kitaev, Kaiser & Levskaya 2020, "Reformer: the efficient transformer", arXiv:2001.04451, eq. 2–6.
    We differ: as the authors' code, scores are not divided by √K, and pairs of a chunk count whether or not their buckets
             agree. Unlike that code, the first chunk has none before it (there, the last one of another round), pairs
             met in several rounds count once by belonging to the first, and looking at oneself is ruled out, not made
             unlikely. `buckets=(32, 64)` stands for 2,048 buckets by two hashes of 32 and 64.
    """

    facts = Facts(
        name="lsh",
        year=2020,
        title="Reformer: the efficient transformer",
        paper="arXiv:2001.04451",
        formula="softmax(q·k / ‖k‖) v,  within chunks of like hash",
        time="R·L·(c·K + log L)",
        memory="R·L·K",
        causal="mask-only",
        cross=False,
        streaming=False,
        normalised=False,
        positional=True,
        bias=False,
        grouped=False,
    )

    def __init__(self, *, rounds: int = 4, chunk: int = 64, buckets: int | tuple[int, ...] = 64, seed: int | None = 0):
        super().__init__()
        self.buckets = (buckets,) if isinstance(buckets, int) else buckets
        if rounds < 1 or chunk < 1 or not self.buckets or any(size < 2 or size % 2 for size in self.buckets):
            raise BadConfig(
                f"LSHAttention takes at least one round and one position a chunk, and even numbers of buckets; "
                f"got rounds={rounds}, chunk={chunk}, buckets={buckets}"
            )
        self.rounds, self.chunk, self.seed = rounds, chunk, seed

    @classmethod
    def sized(cls, *, heads: int, width: int, length: int) -> Self:
        chunk = min(64, max(4, length // 16))
        return cls(chunk=chunk, buckets=2 * max(1, -(-length // chunk)))  # half a chunk a bucket on average, as in the paper

    @unmixed
    def hash(self, q_BLHK: Tensor, pattern: Pattern = full) -> Tensor:
        """The bucket of each position in each round, bucket_BHRL; padding has one of its own, the last."""
        L, H, K = q_BLHK.shape[1:]
        x_BLHK = q_BLHK.detach().to(torch.promote_types(q_BLHK.dtype, torch.float32))
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())) if self.seed is None else self.seed)
        rounds = []
        for _ in range(self.rounds):
            bucket_BHL, factor = torch.zeros((), dtype=torch.long, device=x_BLHK.device), 1
            for size in self.buckets:
                turn_HKN = torch.randn(H, K, size // 2, generator=generator).to(x_BLHK)
                turned_BHLN = torch.einsum("blhk,hkn->bhln", x_BLHK, turn_HKN)
                nearest_BHL1 = turned_BHLN.abs().argmax(-1, keepdim=True)
                behind_BHL1 = turned_BHLN.gather(-1, nearest_BHL1) < 0
                bucket_BHL = bucket_BHL + factor * (nearest_BHL1 + size // 2 * behind_BHL1).squeeze(-1)
                factor *= size
            rounds.append(bucket_BHL)
        padding_BL = torch.arange(L, device=x_BLHK.device) >= real(pattern, L, x_BLHK.device)[:, None]
        return torch.stack(rounds, 2).masked_fill(padding_BL[:, None, None], factor)

    def weights(self, q_BLHK: Tensor, k_BMHK: Tensor, pattern: Pattern = full, bias: Tensor | Bias | None = None) -> Tensor:
        self.check(q_BLHK, k_BMHK, None, pattern, bias)
        L, device = q_BLHK.shape[1], q_BLHK.device
        bucket_BHRL, at_L = self.hash(q_BLHK, pattern), torch.arange(L, device=device)
        mine, other = bucket_BHRL.unsqueeze(-1), bucket_BHRL.unsqueeze(-2)
        place_BHRL = ((other < mine) | (other == mine) & (at_L < at_L[:, None])).sum(-1)  # how many are sorted before it
        chunk_BHRL = place_BHRL // self.chunk
        back_BHRLM = chunk_BHRL.unsqueeze(-1) - chunk_BHRL.unsqueeze(-2)
        seen_BHLM = ((back_BHRLM == 0) | (back_BHRLM == 1)).any(2) & pattern.mask(L, L, device)
        others_BHLM = seen_BHLM & (at_L != at_L[:, None])
        seen_BHLM = torch.where(others_BHLM.any(-1, keepdim=True), others_BHLM, seen_BHLM)
        return softmax_where(torch.einsum("blhk,bmhk->bhlm", q_BLHK, F.normalize(k_BMHK, dim=-1)), seen_BHLM)

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
        (B, L, H, _), V, R, C = q_BLHK.shape, v_BMHV.shape[-1], self.rounds, min(self.chunk, max(q_BLHK.shape[1], 1))
        at_BHRL = self.hash(q_BLHK, pattern).sort(dim=-1, stable=True).indices  # which position stands at each place
        place_BHRL = torch.empty_like(at_BHRL).scatter_(-1, at_BHRL, torch.arange(L, device=at_BHRL.device).expand_as(at_BHRL))

        # T chunks of C places; what fills up the last, and stands before the first, is position L, which is nobody
        i_BHRTC = F.pad(at_BHRL, (0, -L % C), value=L).unflatten(-1, (-(-L // C), C))
        j_BHRTS = torch.cat([F.pad(i_BHRTC, (0, 0, 1, 0), value=L)[..., :-1, :], i_BHRTC], -1)
        q_BHRTCK, k_BHRTCK, v_BHRTCV = (take(x, i_BHRTC.clamp(max=L - 1)) for x in (q_BLHK, F.normalize(k_BMHK, dim=-1), v_BMHV))
        before_K, before_V = (F.pad(x, (0, 0, 0, 0, 1, 0))[..., :-1, :, :] for x in (k_BHRTCK, v_BHRTCV))
        chunk_BHRL = (place_BHRL // C).int()

        def look(i: Tensor, j: Tensor, q: Tensor, before_K: Tensor, k: Tensor, before_V: Tensor, v: Tensor) -> Tensor:
            """Some chunks of every round: what their positions see there, and the log-sum-exp of the scores behind it."""
            scores_BHRTCS = (q @ torch.cat([before_K, k], -2).transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32))
            scores_BHRTCS = scores_BHRTCS.masked_fill(~self._seen(i, j, chunk_BHRL, pattern), -torch.inf)
            top = scores_BHRTCS.detach().amax(-1, keepdim=True)
            e_BHRTCS = (scores_BHRTCS - top.masked_fill(top == -torch.inf, 0)).exp()
            total = e_BHRTCS.sum(-1, keepdim=True).masked_fill(top == -torch.inf, 1)
            out_BHRTCV = (e_BHRTCS.to(v.dtype) @ torch.cat([before_V, v], -2)).to(total.dtype) / total
            return torch.cat([out_BHRTCV, top + total.log()], -1)

        step = max(1, BUDGET // max(1, B * H * R * C * 2 * C))
        all_parts = (i_BHRTC, j_BHRTS, q_BHRTCK, before_K, k_BHRTCK, before_V, v_BHRTCV)
        parts = list(zip(*(x.split(step, 3) for x in all_parts), strict=True))  # split once: slices would each have a gradient of full size
        if torch.is_grad_enabled() and len(parts) > 1:
            seen = [checkpoint(look, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        else:
            seen = [look(*part) for part in parts]
        x_BHRPX = torch.cat(seen, 3).flatten(3, 4)
        first_BHR1 = torch.arange(B * H * R, device=q_BLHK.device).view(B, H, R, 1) * x_BHRPX.shape[3]
        out_BHRLV, lse_BHRL1 = rows(x_BHRPX.reshape(-1, V + 1), first_BHR1 + place_BHRL).split((V, 1), -1)
        lse_BHLR = lse_BHRL1.squeeze(-1).transpose(-1, -2)
        some_BHLR = lse_BHLR > -torch.inf
        share_BHLR = softmax_where(lse_BHLR, some_BHLR)
        out_BHLV = torch.einsum("bhlr,bhrlv->bhlv", share_BHLR, out_BHRLV).to(v_BMHV.dtype)

        own = torch.arange(L, device=q_BLHK.device).view(1, 1, L)
        alone_BHL = allowed(pattern, own, own, L) & ~some_BHLR.any(-1)
        return torch.where(alone_BHL.unsqueeze(-1), v_BMHV.transpose(1, 2), out_BHLV).transpose(1, 2)

    def _seen(self, i_BHRTC: Tensor, j_BHRTS: Tensor, chunk_BHRL: Tensor, pattern: Pattern) -> Tensor:
        """Which pairs of each chunk count: seen_BHRTCS."""
        L = chunk_BHRL.shape[-1]
        i, j = i_BHRTC.clamp(max=L - 1), j_BHRTS.clamp(max=L - 1)
        somebody = (i_BHRTC < L).unsqueeze(-1) & (j_BHRTS < L).unsqueeze(-2)
        seen = somebody & allowed(pattern, i.unsqueeze(-1), j.unsqueeze(-2), L) & (i.unsqueeze(-1) != j.unsqueeze(-2))
        for r in range(self.rounds - 1):  # pairs met in round r are not met again in those after it
            of_i, of_j = (chunk_BHRL[:, :, r].gather(-1, x[:, :, r + 1 :].flatten(2)).view_as(x[:, :, r + 1 :]) for x in (i, j))
            back = of_i.unsqueeze(-1) - of_j.unsqueeze(-2)
            seen[:, :, r + 1 :] &= (back != 0) & (back != 1)
        return seen

    def extra_repr(self) -> str:
        return f"rounds={self.rounds}, chunk={self.chunk}, buckets={self.buckets}, seed={self.seed}"
