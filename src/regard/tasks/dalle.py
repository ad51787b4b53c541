r"""Images from texts: pictures with sentences in, a model that draws out.

Two stages in one training. During the first --vae-share of it the discrete VAE learns its codes: reconstruction plus β KL to the uniform distribution; over
the first half the temperature of the Gumbel-softmax falls from 1 to 1/16, and β rises from 0 to --kl. Then its parameters stay as they are, and
the transformer learns text and codes: (text + 7 · image) / 8, cross-entropies per token. Each stage has a learning rate of its own, a factor of the
schedule's: of the VAE it falls along half a cosine to zero, of the transformer it rises from zero in its first twentieth.

The deciding metric is the joint bound of both stages, −log p(text, image) ≤ −log p(image | codes) − log p(text, codes), in nats per number in the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from ..data import Splits
from ..data.captions import Captioned
from ..errors import NotSupported
from ..look import Grid, Indices, Layers, Maps, capture
from ..look.images import png_of, sheet
from ..models import CLIP, DALLE, Model, device_of, eval_mode
from ..models.dalle import PADDING
from ..processes import world_size
from ..runs import Run
from ..train import Loss
from .image_drawing import draw, ranks, text_ids
from .image_processor import ImageProcessor
from .image_text import CaptionBatch, ImageTextProcessor, ImageTextTask
from .options.dalle import DalleDeclaration, DalleOptions, GenerateOptions
from .runs import load_run
from .task import Prediction

WARMUP = 0.05  # share of the second stage
COLDEST = 1 / 16  # temperature at the end of the first stage


class Dalle(DalleDeclaration, ImageTextTask[DalleOptions]):
    model_kind = DALLE
    next_commands = 'regard evaluate {out}        regard predict {out} "a red circle left of a blue square"'

    # -- data ----------------------------------------------------------------------------------------------------------

    def fit_processor(self, train: list[Captioned]) -> ImageTextProcessor:
        made = super().fit_processor(train)
        size, channels = made.image.size, made.image.channels  # pixels from 0 to 1
        return ImageTextProcessor(ImageProcessor(size=size, channels=channels, mean=(0.0,) * channels, std=(1.0,) * channels), made.text)

    def check(self, data: Splits[Any], model: Model) -> None:
        super().check(data, model)
        if world_size() > 1:
            raise NotSupported("dalle trains on one process: each of its stages leaves half of the parameters without gradients")

    def validation(self, examples: Sequence[Captioned]) -> Sequence[Captioned]:
        return examples[:250]

    # -- loss ----------------------------------------------------------------------------------------------------------

    def vae_share(self) -> float:
        """Share of the first stage that is done; 1 or more in the second."""
        return self.progress.share / self.options.vae_share

    def lr_factor(self) -> float:
        """Half a cosine to zero for the VAE; a warm-up for the transformer."""
        done, vae = self.progress.share, self.options.vae_share
        return _fall(done / vae) if done < vae else min(1.0, (done - vae) / (WARMUP * (1 - vae)) + 1e-3)  # not 0 at its first step

    def loss(self, model: DALLE, batch: CaptionBatch) -> Loss:
        o, B, share, c = self.options, len(batch.image_BCHW), self.vae_share(), model.config
        if not model.training:
            return self._bound(model, batch)
        if share < 1:
            terms = model.vae.terms(batch.image_BCHW, temperature(share))
            total = (terms.reconstruction_B + o.kl * min(1.0, 2 * share) * terms.kl_B).sum() / batch.image_BCHW[0].numel()
            return Loss(total, B, {"kl": terms.kl_B.detach().sum()})
        found = model(_without_padding(batch), model.vae.encode(batch.image_BCHW))
        text_B, image_B = found.text_B / (c.max_length - 1), found.image_B / c.grid**2
        return Loss((text_B + o.image_weight * image_B).sum() / (1 + o.image_weight), B, {"image": image_B.detach().sum()})

    def _bound(self, model: DALLE, batch: CaptionBatch) -> Loss:
        """Joint bound per number in the image and its parts: reconstruction, and cross-entropies per token of text and image."""
        c, codes_BM = model.config, model.vae.encode(batch.image_BCHW)
        found, drawn, numbers = model(_without_padding(batch), codes_BM), model.vae.draw(codes_BM), c.channels * c.image_size**2
        reconstruction, text, image = model.vae.reconstruction(batch.image_BCHW).sum(), found.text_B.sum(), found.image_B.sum()
        extra = {
            "reconstruction": reconstruction / numbers,
            "absolute_error": (drawn - batch.image_BCHW).abs().flatten(1).mean(1).sum(),
            "text_loss": text / (c.max_length - 1),
            "image_loss": image / c.grid**2,
        }
        return Loss((reconstruction + text + image) / numbers, len(codes_BM), extra, codes_BM)

    def answers(self, outputs: Tensor, batch: CaptionBatch) -> list[Tensor]:
        """Codes of each image."""
        return list(outputs.cpu())

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Tensor], examples: Any) -> dict[str, float]:
        used_N = torch.bincount(torch.cat(list(answers)))
        perplexity = float(torch.special.entr(used_N / used_N.sum()).sum().exp())
        return {**super().metrics(sums, answers, examples), "code_perplexity": perplexity}

    # -- use -----------------------------------------------------------------------------------------------------------

    def predict(self, run: Run[DALLE], inputs: Sequence[str], options: GenerateOptions) -> list[Prediction]:
        judge = None if options.rank_by is None else load_run(options.rank_by, CLIP, device=str(device_of(run.model)))
        return [self._prediction(run, text, options, judge) for text in inputs]

    def _prediction(self, run: Run[DALLE], text: str, options: GenerateOptions, judge: Run[CLIP] | None) -> Prediction:
        images = draw(run.model, run.processor, [text] * options.n, options.temperature, options.seed)
        scores = [] if judge is None else ranks(judge, text, images)
        if scores:
            order = sorted(range(len(images)), key=lambda n: -scores[n])
            images, scores = [images[n] for n in order], [scores[n] for n in order]
        size = f"{images[0].shape[0]} × {images[0].shape[1]} pixels"
        said = f"an image of {size}" if len(images) == 1 else f"{len(images)} images of {size}"
        values = {"images": len(images), **({"scores": scores} if scores else {})}
        return Prediction(said + (f", best score {scores[0]:.3f}" if scores else ""), values, {".png": png_of(sheet(images))})

    @torch.no_grad()
    def attention_maps(self, run: Run[DALLE], text: str, layers: Layers, heads: Indices, options: GenerateOptions) -> tuple[str, Maps]:
        """Image drawn for the text, and what its last code attends to; with `layers` all rows of these layers."""
        model, processor = run.model, run.processor
        c, rows = model.config, -1 if layers is None else None
        text_1T = text_ids(processor, [text], c.max_length).to(device_of(model))
        with eval_mode(model):
            codes_1M = model.sample(text_1T, temperature=options.temperature, generator=torch.Generator().manual_seed(options.seed))
            ids_1L = model.sequence(text_1T, codes_1M)
            with capture(model, layers, heads, rows=rows) as maps:
                model.features(ids_1L)
        words = processor.tokenizer.strings(text_1T[0].tolist())  # one text: no padding
        names = [*words, *[""] * (c.max_length - len(words)), *(f"{r + 1},{k + 1}" for r in range(c.grid) for k in range(c.grid))]
        grid = Grid(c.grid, c.grid, prefix_tokens=c.max_length)
        pixels = processor.image.decode(model.vae.draw(codes_1M)[0].cpu())
        return "", Maps([m.label(names, names, layout=grid) for m in maps.all], maps.idle, image=pixels)


def temperature(progress: float) -> float:
    """Temperature of the Gumbel-softmax: half a cosine from 1 down to 1/16, which is reached after half of the stage."""
    return COLDEST + (1 - COLDEST) * _fall(2 * progress)


def _fall(progress: float) -> float:
    """Half a cosine from 1 down to 0."""
    return (1 + cos(pi * min(progress, 1.0))) / 2


def _without_padding(batch: CaptionBatch) -> Tensor:
    """The ids of a batch as the model takes them: each text position has a padding of its own."""
    beyond_BL = torch.arange(batch.ids_BL.shape[1], device=batch.ids_BL.device) >= batch.n_B[:, None]
    return batch.ids_BL.masked_fill(beyond_BL, PADDING)
