r"""A linear classifier over tokens and pairs of neighbouring tokens, beside a model that reads the whole text.

$$z = z_\text{model} + s\, (W^\top x + b) \qquad x_t = \frac{n_t\, \mathrm{idf}_t}{\lVert \cdot \rVert}$$

A few thousand labelled texts suffice for W, and not for a model that is trained from scratch: with little data the linear classifier is often the better
of the two, and their sum better than either. W, b and the inverse document frequencies are fitted before the training (`baselines.linear_text`), the
model is trained as if it were alone, and the share s is tuned on validation data: 0 where the model needs no help.

Pairs are known by a hash, so that the classifier has a fixed size: those that meet in a bucket share its parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..baselines.linear_text import Bags, fit_bags

SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)
_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # of token, token before it, and segment


class NGramHead(nn.Module):
    """Linear classifier over hashed tokens and pairs of tokens.

    Args:
        buckets: number of hash buckets F.
        labels: number of classes N.

    Shape: ids_BL, n_B, segment_BL → logits_BN, not yet times the share.
    """

    def __init__(self, buckets: int, labels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(buckets, labels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(labels), requires_grad=False)
        self.idf = nn.Parameter(torch.zeros(buckets), requires_grad=False)
        self.share = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> Tensor:
        term_BI, here_BI = self.terms(ids_BL, n_B, segment_BL)
        x_BI = self.idf[term_BI] * here_BI
        x_BI = x_BI / x_BI.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return torch.einsum("bi,bin->bn", x_BI, self.weight[term_BI]) + self.bias

    def terms(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Buckets of the tokens and of the pairs of a row, and True where they are real ones.

        Args:
            ids_BL: token ids.
            n_B: number of real tokens of each row.
            segment_BL: segment of each token; None: all 0.
        """
        token, before, segment = _PRIMES
        one_BL = ids_BL * token + (0 if segment_BL is None else segment_BL * segment)
        pair_BL = one_BL[:, 1:] + (ids_BL[:, :-1] + 1) * before
        real_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device) < n_B[:, None]
        key_BI = torch.cat([one_BL, pair_BL], 1)
        return (key_BI ^ (key_BI >> 15)) % len(self.idf), torch.cat([real_BL, real_BL[:, 1:]], 1)

    @torch.no_grad()
    def fit(self, rows: list[tuple[Tensor, Tensor, Tensor | None]], label_E: Tensor) -> None:
        """Fit to training texts, whose labels follow one another.

        Args:
            rows: batches of ids_BL, n_B and segment_BL.
            label_E: number of the class of each text.
        """
        found = [self.terms(*row) for row in rows]
        some = [term_I[here_I] for term_BI, here_BI in found for term_I, here_I in zip(term_BI, here_BI, strict=True)]
        df_F = torch.bincount(torch.cat([one.unique() for one in some]), minlength=len(self.idf))
        self.idf.copy_(torch.where(df_F >= 2, 1 + torch.log((1 + len(some)) / (1 + df_F)), 0.0))  # terms of a single text say nothing
        x = [self.idf[one] for one in some]
        x = [one / one.norm().clamp_min(1e-12) for one in x]
        start_E = torch.tensor([0, *(len(one) for one in some)]).cumsum(0)[:-1]
        weight, bias = fit_bags(Bags(torch.cat(some), torch.cat(x), start_E), label_E, len(self.idf), len(self.bias))
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    @torch.no_grad()
    def tune(self, model_EN: Tensor, mine_EN: Tensor, label_E: Tensor) -> None:
        """Choose the share with the smallest cross-entropy on validation texts, at the temperature that suits it.

        Args:
            model_EN: logits of the model alone.
            mine_EN: logits of this classifier.
            label_E: number of the class of each text.
        """

        def loss(share: float) -> float:
            z_EN = model_EN + share * mine_EN
            return min(float(nn.functional.cross_entropy(z_EN / temperature, label_E)) for temperature in TEMPERATURES)

        self.share.fill_(min(SHARES, key=loss))
