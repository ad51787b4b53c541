r"""ALBERT: BERT whose layers share their parameters, with embeddings narrower than the model.

$$x_t = W N(E[\mathrm{id}_t] + P_t + S_{\mathrm{segment}}) \qquad x \leftarrow \mathrm{block}_{g(n)}(x) \text{ for } n = 1 \dots \text{depth}$$
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..errors import BadConfig
from .bert import Bert, BertConfig
from .model import ModelFacts, Size, Sizes


@dataclass(frozen=True, kw_only=True)
class AlbertConfig(BertConfig):
    groups: Size = 1  # blocks with parameters of their own; the layers of a group share one
    embedding_width: Size | None = 128  # size of the embeddings, which a linear layer follows; None: that of the model
    activation: str = "gelu_tanh"  # activation of the feed-forward layers: relu, gelu, gelu_tanh, silu, …
    dropout: float = 0.0
    attention: str = "softmax"  # mechanism of all layers, with settings or a pattern if needed: softmax under window(64)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > self.depth:
            raise BadConfig(f"AlbertConfig: groups={self.groups} of depth={self.depth} layers; expected at most that many")

    def group(self, layer: int) -> int:
        """The group that a layer belongs to."""
        return int(layer / (self.depth / self.groups))


BASE = AlbertConfig(vocab_size=30_000, max_length=512, width=768, heads=12, depth=12, hidden=3072)


class Albert(Bert):
    """BERT's encoder with shared layers and projected embeddings; the NSP head says whether two texts are in order. Any mechanism.

    Cost:    time as `Bert`; parameters as one of its layers.
    Use it:  to load the published checkpoints, which are small to download.
    Avoid it: for speed: it computes as much as a BERT of its width and depth.
    Limits:  as `Bert`. A mechanism of its own for some of the layers that share one is not possible.
    Paper:   Lan et al. 2019, "ALBERT: a lite BERT for self-supervised learning of language representations", arXiv:1909.11942.
    """

    facts = ModelFacts(
        name="albert",
        year=2019,
        title="ALBERT: a lite BERT for self-supervised learning of language representations",
        paper="arXiv:1909.11942",
    )
    Config = AlbertConfig
    config: AlbertConfig
    sizes: ClassVar[Sizes] = {"albert-base": BASE}  # 11,813,810 parameters
    projected = True

    def _build(self) -> None:
        super()._build()
        c, first = self.config, dict[int, nn.Module]()
        self.blocks = nn.ModuleList(first.setdefault(c.group(layer), block) for layer, block in enumerate(self.blocks))
