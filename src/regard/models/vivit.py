r"""The video vision transformer: a clip is a sequence of tubelets, read by a transformer whose attention is factorised in one of four ways.

| `factorisation` | attention | pairs for n_t × n_s tokens |
|---|---|---|
| joint | among all tokens (model 1) | (n_t·n_s)² |
| encoder | a ViT of each frame, then a temporal encoder over one vector per frame (model 2) | n_t·n_s² + n_t² |
| self_attention | in each layer first in space, then in time (model 3) | n_t·n_s·(n_s + n_t) |
| dot_product | half of the heads in space, half in time (model 4) | n_t·n_s·(n_s + n_t) / 2 |

A "frame" above is one layer of tubelets: `tubelet` frames of the clip.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from ..bounds import DepthOrNone
from ..errors import BadConfig, NotSupported, ShapeError
from ..layers import ACTIVATIONS, Block, Dropout, FeedForward, LayerNorm, MultiHead, init_truncated
from ..layers.space_time import SpaceTimeBlock, SpaceTimeHeads
from ..layers.tubelets import Inflation, TubeletEmbedding
from .image import PatchEncoder
from .model import ModelFacts, Size, Sizes, build_heads
from .vit import ViT, ViTConfig

Factorisation = Literal["joint", "encoder", "self_attention", "dot_product"]


@dataclass(frozen=True, kw_only=True)
class ViViTConfig(ViTConfig):
    frames: Size = 32  # frames per clip
    tubelet: Size = 2  # frames per tubelet; its height and width are the patch's
    factorisation: Factorisation = "joint"  # factorisation of attention: joint, encoder, self_attention, dot_product
    temporal_depth: DepthOrNone = 4  # layers of the temporal encoder of the factorised encoder; 0: the mean over frames
    pool: Literal["class", "mean"] = "mean"  # vector that is classified: a class token (joint and encoder), or the mean of the tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.frames % self.tubelet:
            raise BadConfig(f"{name}: frames={self.frames}; expected a multiple of tubelet={self.tubelet}")
        if self.pool == "class" and self.factorisation in ("self_attention", "dot_product"):
            raise BadConfig(f"{name}: pool='class' with factorisation={self.factorisation!r}, which has no class token; choose pool='mean'")
        if self.factorisation == "dot_product" and self.heads % 2:
            raise BadConfig(f"{name}: heads={self.heads}; expected an even number: half of them attend in space, half in time")
        if self.embedding_norm:
            raise BadConfig(f"{name}: embedding_norm=True; ViViT has no norm before its first layer")
        if self.stem:
            raise BadConfig(f"{name}: stem={self.stem}; ViViT cuts tubelets out of the clip itself: choose stem=()")

    @property
    def steps(self) -> int:
        """Tubelets along time, n_t."""
        return self.frames // self.tubelet

    @property
    def places(self) -> int:
        """Tubelets per step, n_s."""
        return self.grid[0] * self.grid[1]


BASE = ViViTConfig(
    image_size=(224, 224), patch_size=(16, 16), frames=32, tubelet=2, classes=400, width=768, heads=12, depth=12, hidden=3072, pool="class"
)


class ViViTEmbedding(nn.Module):
    """Tubelets projected to the width of the model, after a class token if there is one, plus learned positions.

    For the factorised encoder x is x_(B·n_t)LD: the tokens of one step per row, with the same positions in all of them.
    """

    def __init__(self, config: ViViTConfig):
        super().__init__()
        c = config
        self.per_step = c.factorisation == "encoder"
        self.places = c.places
        self.tubelet = TubeletEmbedding(c.channels, (c.tubelet, *c.patch_size), c.width, bias=c.patch_bias)
        self.class_token_D = nn.Parameter(torch.zeros(c.width)) if c.pool == "class" else None
        tokens = c.places * (1 if self.per_step else c.steps) + (c.pool == "class")
        self.position = nn.Embedding(tokens, c.width) if c.positions else None
        self.dropout = Dropout(c.dropout)

    def forward(self, x_BTCHW: Tensor) -> Tensor:
        x_BLD = self.tubelet(x_BTCHW)
        if self.per_step:
            x_BLD = x_BLD.reshape(-1, self.places, x_BLD.shape[-1])
        return self.dropout(_positioned(x_BLD, self.class_token_D, self.position))


def _positioned(x_BLD: Tensor, class_token_D: Tensor | None, position: nn.Embedding | None) -> Tensor:
    if class_token_D is not None:
        x_BLD = torch.cat([class_token_D.to(x_BLD.dtype).expand(len(x_BLD), 1, -1), x_BLD], 1)
    return x_BLD if position is None else x_BLD + position.weight


class TemporalEncoder(nn.Module):
    """The second half of the factorised encoder: a transformer over one vector per step."""

    def __init__(self, config: ViViTConfig, blocks: list[Block]):
        super().__init__()
        c = config
        self.class_token_D = nn.Parameter(torch.zeros(c.width)) if c.pool == "class" else None
        self.position = nn.Embedding(c.steps + (c.pool == "class"), c.width) if c.positions else None
        self.blocks, self.norm = nn.ModuleList(blocks), LayerNorm(c.width, eps=c.eps)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = _positioned(x_BTD, self.class_token_D, self.position)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.norm(x_BTD)


class ViViT(PatchEncoder):
    """A transformer over the tubelets of a clip; four factorisations of attention over space and time; any mechanism.

    Cost:    see the table above: joint attention is quadratic in the tokens of the whole clip, the others are not.
    Use it:  to classify clips by what happens in them. Begin with a ViT (`from_vit`) where clips are few.
    Avoid it: where a single frame gives the class away: a ViT is cheaper.
    Limits:  clips of one size and one number of frames. self_attention and dot_product have no class token.
    Paper:   Arnab et al. 2021, "ViViT: a video vision transformer", arXiv:2103.15691, section 3.
    We differ: without a class token by default. `from_vit` sets the output projection of attention in time to zero, and no other matrix of
             it: with all of them zero, as the paper says, no gradient would ever reach it.
    """

    facts = ModelFacts(name="vivit", year=2021, title="ViViT: a video vision transformer", paper="arXiv:2103.15691")
    Config = ViViTConfig
    config: ViViTConfig
    embedding: ViViTEmbedding
    length_setting: ClassVar[str] = "frames"
    sizes: ClassVar[Sizes] = {
        "vivit-base-16x2": BASE,  # 88,954,000 parameters, head included
        "vivit-base-16x2-encoder": replace(BASE, factorisation="encoder"),
        "vivit-large-16x2": replace(BASE, width=1024, heads=16, depth=24, hidden=4096),
    }

    def _build(self) -> None:
        c = self.config
        super()._build()
        self.pooler = nn.Linear(c.width, c.width) if c.pooler else None
        self.temporal = None
        if c.factorisation == "encoder":
            self.temporal = TemporalEncoder(c, [self._plain_block(layer, c.steps) for layer in range(c.temporal_depth)])
        for part in (self.pooler, self.temporal):
            if part is not None:
                init_truncated(part)

    def _embedding(self) -> ViViTEmbedding:
        return ViViTEmbedding(self.config)

    def _heads(self, layer: int, length: int, share: int = 1, bias: bool = True) -> MultiHead:
        """The attention of a layer, with a share of its heads."""
        c = self.config
        spec, size = c.attention[layer % len(c.attention)], c.width // c.heads
        return build_heads(spec, c.width, c.heads // share, length + self.class_tokens, head_dim=size, qkv_bias=c.qkv_bias, bias=bias)

    def _around(self, layer: int, mixer: nn.Module, feedforward: bool = True) -> Block:
        c = self.config
        hidden = FeedForward(c.width, c.hidden, ACTIVATIONS[c.activation], dropout=c.dropout) if feedforward else None
        return Block(c.width, mixer, hidden, norm=self._norm, dropout=c.dropout, drop_path=self._drop_path(layer))

    def _plain_block(self, layer: int, length: int) -> Block:
        return self._around(layer, self._heads(layer, length))

    def _block(self, layer: int) -> Any:
        c = self.config
        if c.factorisation == "self_attention":
            space = self._around(layer, self._heads(layer, c.places), feedforward=False)
            return SpaceTimeBlock(space, self._plain_block(layer, c.steps), c.steps)
        if c.factorisation == "dot_product":
            space_heads, time_heads = self._heads(layer, c.places, 2), self._heads(layer, c.steps, 2, bias=False)
            return self._around(layer, SpaceTimeHeads(space_heads, time_heads, c.steps))
        return self._plain_block(layer, c.places if c.factorisation == "encoder" else c.places * c.steps)

    @property
    def class_tokens(self) -> int:
        return int(self.config.pool == "class")

    @property
    def max_length(self) -> int:
        """Tokens per clip."""
        return self.config.places * self.config.steps + self.class_tokens

    def features(self, x_BTCHW: Tensor) -> Tensor:
        """x_BLD of every token of the clip; of the factorised encoder, x_BTD of every step. `class_tokens` others come first."""
        x_BLD = super().features(x_BTCHW)
        if self.temporal is None:
            return x_BLD
        frame_BTD = self._pool(x_BLD).view(len(x_BTCHW), self.config.steps, -1)
        return self.temporal(frame_BTD)

    def pooled(self, x_BLD: Tensor) -> Tensor:
        y_BD = self._pool(x_BLD)
        return y_BD if self.pooler is None else torch.tanh(self.pooler(y_BD))

    def _pool(self, x_BLD: Tensor) -> Tensor:
        return x_BLD[:, 0] if self.config.pool == "class" else x_BLD.mean(1)

    def check(self, x_BTCHW: Tensor) -> None:
        """Raise an error for clips of another size than the model's."""
        c = self.config
        wanted = (c.frames, c.channels, *c.image_size)
        if x_BTCHW.dim() != 5 or tuple(x_BTCHW.shape[1:]) != wanted:
            raise ShapeError(
                f"ViViT takes clips (batch, frames, channels, height, width) of (…, {', '.join(map(str, wanted))}), got {tuple(x_BTCHW.shape)}"
            )

    # -- from a model of images ------------------------------------------------------------------------------------------

    @classmethod
    def from_vit(
        cls,
        vit: ViT,
        *,
        frames: int,
        tubelet: int = 2,
        factorisation: Factorisation = "encoder",
        temporal_depth: int = 2,
        inflation: Inflation = "central",
    ) -> Self:
        """A model of clips that begins as a model of images: it has no classification head, and what is new is drawn at random.

        Positions are repeated along time. The filters of tubelets are those of patches at the frame in the middle, or at all frames
        ("average"). Attention in time begins as nothing (self_attention), or takes half of the heads (dot_product).

        Args:
            vit: model of images.
            frames: frames per clip.
            tubelet: frames per tubelet.
            factorisation: factorisation of attention.
            temporal_depth: layers of the temporal encoder.
            inflation: initial tubelet filters: the image filter in the "central" frame, or its "average" over all.
        """
        pool = vit.config.pool if factorisation in ("joint", "encoder") else "mean"
        if vit.config.attention_overrides and factorisation not in ("joint", "encoder"):
            raise NotSupported(f"the attention of this ViT was replaced, and {factorisation} has other layers; replace it afterwards")
        given = {"frames": frames, "tubelet": tubelet, "factorisation": factorisation, "temporal_depth": temporal_depth}
        model = cls(ViViTConfig(**{**asdict(vit.config), **given, "pool": pool, "classes": 0}))
        model.embedding.tubelet.inflate(vit.embedding.patch, inflation)
        with torch.no_grad():
            _copy_positions(model, vit)
            for block, of_image in zip(model.blocks, vit.blocks, strict=True):
                _copy_block(block, of_image)
            model.norm.load_state_dict(vit.norm.state_dict())
            if model.pooler is not None and vit.pooler is not None:
                model.pooler.load_state_dict(vit.pooler.state_dict())
        return model


def _copy_positions(model: ViViT, vit: ViT) -> None:
    c = model.config
    if model.embedding.class_token_D is not None and vit.embedding.class_token_D is not None:
        model.embedding.class_token_D.copy_(vit.embedding.class_token_D)
    if model.embedding.position is not None and vit.embedding.position is not None:
        first, grid = vit.embedding.position.weight.split([vit.class_tokens, c.places])
        kept = first[: model.class_tokens]
        model.embedding.position.weight.copy_(torch.cat([kept, grid if model.embedding.per_step else grid.repeat(c.steps, 1)]))


def _copy_block(block: Any, of_image: Any) -> None:
    """The parameters of a layer over images, for a layer over clips."""
    if isinstance(block, SpaceTimeBlock):
        block.space.mixer.load_state_dict(of_image.mixer.state_dict())
        block.space.around_mixer.load_state_dict(of_image.around_mixer.state_dict())
        block.time.feedforward.load_state_dict(of_image.feedforward.state_dict())  # type: ignore[union-attr]
        block.time.around_feedforward.load_state_dict(of_image.around_feedforward.state_dict())  # type: ignore[union-attr]
        for parameter in block.time.mixer.out.parameters():  # type: ignore[union-attr]
            parameter.zero_()
    elif isinstance(block.mixer, SpaceTimeHeads):
        _split_heads(of_image.mixer, block.mixer.space, block.mixer.time)
        for name in ("around_mixer", "feedforward", "around_feedforward"):
            getattr(block, name).load_state_dict(getattr(of_image, name).state_dict())
    else:
        block.load_state_dict(of_image.state_dict())


def _split_heads(heads: MultiHead, space: MultiHead, time: MultiHead) -> None:
    """The first half of the heads to one module, the second to the other."""
    assert heads.qkv is not None and space.qkv is not None and time.qkv is not None
    for half, part in enumerate((space, time)):
        assert part.qkv is not None
        for name, whole in heads.qkv.named_parameters():
            by_head = whole.unflatten(0, (3, 2, -1))  # q, k, v; the two halves of their heads
            dict(part.qkv.named_parameters())[name].copy_(by_head[:, half].flatten(0, 1))
        part.out.weight.copy_(heads.out.weight.chunk(2, 1)[half])
    if heads.out.bias is not None:
        space.out.bias.copy_(heads.out.bias)
