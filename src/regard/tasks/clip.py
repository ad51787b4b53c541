"""Images and texts in one space: pictures with sentences in, a model that searches and classifies by words out.

The loss is symmetric: of all captions of a batch the right one for each image, and of all images the right one for each caption. Pairs of a batch are
each other's wrong answers, so no caption occurs twice in a batch. The temperature is learned, and the factor e^τ kept at 100 or less.

Zero-shot classification needs no examples: each class becomes a sentence ("a {}"), or several whose vectors are averaged, and an image belongs to
the nearest. Retrieval: how often a right caption is among the k nearest to an image, and a right image among the k nearest to a caption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Splits, Tokenizers
from ..data.captions import Captioned
from ..data.hf_tokenizer import HFTokenizer
from ..data.images import Pixels
from ..data.scenes import class_names
from ..data.tokens import PAD
from ..errors import BadConfig
from ..look import Grid, Indices, Layers, Maps, capture
from ..look.gradients import InputGradients
from ..metrics.retrieval import recall_at
from ..models import CLIP, device_of, eval_mode
from ..models.clip import MAX_SCALE, contrastive_loss
from ..runs import Run
from ..train import Loss
from .image_text import CaptionBatch, CaptionRows, ImageTextProcessor, ImageTextTask, distinct
from .options import NoOptions
from .options.clip import ClipDeclaration, ClipOptions, ZeroShotOptions
from .task import Plan, Prediction, Report
from .text_processor import TextProcessor

KEPT = 500  # captions that are saved with a run, to choose from where no classes are named
MOST = 1000  # images that retrieval is measured over


PLAIN = ZeroShotOptions(templates=("{}",))  # captions as they are


class Vectors(NamedTuple):
    """Vector of an image, and those of its captions; `zero_shot`, where its captions all name one class: whether that is the nearest."""

    image_E: Tensor
    texts_CE: Tensor
    zero_shot: float | None = None


class Clip(ClipDeclaration, ImageTextTask[ClipOptions]):
    inputs = "file"
    model_kind = CLIP
    next_commands = 'regard evaluate {out}        regard predict {out} image.png --classes "red circle" "blue square"'

    # -- data, model, loss ---------------------------------------------------------------------------------------------

    def fit_processor(self, train: list[Captioned]) -> ImageTextProcessor:
        made = super().fit_processor(train)
        counts = Counter(caption for one in train for caption in one.captions)
        # as published, the token that ends a text has the largest id: transformers reads texts elsewhere if it is 2, as our EOS
        tokenizer = HFTokenizer.from_tokenizer(made.tokenizer, "both", end_last=True)
        return ImageTextProcessor(
            made.image, TextProcessor(Tokenizers(tokenizer), tuple(caption for caption, _ in counts.most_common(KEPT)))
        )

    def settings(self, model: str, data: Splits[Any]) -> dict[str, Any]:
        return {**super().settings(model, data), "end": self.processor.tokenizer.end_id}

    def plan(self, rows: CaptionRows, epoch: int | None, seed: int = 0) -> Plan:
        """Batches in which no caption occurs twice."""
        return Plan(rows, distinct(rows, self.options.batch_size, seed, epoch or 0))

    def validation(self, examples: Sequence[Captioned]) -> Sequence[Captioned]:
        return examples[:MOST]

    def loss(self, model: CLIP, batch: CaptionBatch) -> Loss:
        logits_BB = model(batch.image_BCHW, batch.ids_BL)
        B, right_B = len(logits_BB), torch.arange(len(logits_BB), device=logits_BB.device)
        return Loss(contrastive_loss(logits_BB) * B, B, {"accuracy": (logits_BB.argmax(-1) == right_B).sum()})

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        assert isinstance(model, CLIP)
        model.log_scale.clamp_(max=log(MAX_SCALE))

    # -- answers -------------------------------------------------------------------------------------------------------

    def generate(self, model: CLIP, examples: Sequence[Captioned], options: ZeroShotOptions) -> list[Vectors]:
        """Vectors of images and captions; `classes` are told by their names, where there are some."""
        images, captions = image_vectors(model, self.processor, [one.pixels for one in examples]), [one.captions for one in examples]
        texts = list(dict.fromkeys(caption for some in captions for caption in some))
        vectors = dict(zip(texts, text_vectors(model, self.processor, texts), strict=True))
        right = zero_shot(model, self.processor, examples, images, options)
        texts_of = [torch.stack([vectors[caption] for caption in some]).cpu() for some in captions]
        return list(map(Vectors, images.cpu(), texts_of, right))

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Vectors], examples: Sequence[Captioned]) -> dict[str, float]:
        """Loss over batches of captions that differ; recall at 1 and 5 in both directions; accuracy of zero-shot classification."""
        return {"loss": sums["loss"] / max(sums["count"], 1), **retrieval(answers[:MOST], examples[:MOST])}

    def report(
        self, sums: Mapping[str, float], answers: Sequence[Vectors], examples: Sequence[Captioned], options: ZeroShotOptions
    ) -> Report:
        right = [one.zero_shot for one in answers if one.zero_shot is not None]
        accuracy = {"zero_shot_accuracy": sum(right) / len(right)} if right else {}
        captions = sum(len(one.captions) for one in examples)
        return Report(metrics={**self.metrics(sums, answers, examples), **accuracy}, notes=(f"{captions:,} captions",))

    def predict(self, run: Run[CLIP], inputs: Sequence[str], options: ZeroShotOptions) -> list[Prediction]:
        """The nearest of the classes, or of the captions that the run has kept."""
        names, templates = (options.classes, options) if options.classes else (run.processor.text.labels, PLAIN)
        if not names:
            raise BadConfig(f"{run.folder} has no captions to choose from; name classes with --classes")
        t_NE, answers = class_vectors(run.model, run.processor, names, templates), []
        for name in inputs:
            i_1E = image_vectors(run.model, run.processor, [run.processor.read(name)])
            p_N = (run.model.scale.detach() * i_1E @ t_NE.T)[0].softmax(-1).cpu()
            best = p_N.argsort(descending=True, stable=True)[:5].tolist()
            answers.append(Prediction(names[best[0]], {"classes": [{"class": names[n], "probability": float(p_N[n])} for n in best]}))
        return answers

    @torch.no_grad()
    def attention_maps(self, run: Run[CLIP], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """The nearest of the captions that the run has kept, and the maps of the image tower, from its class token and its patches."""
        pixels, model, captions = run.processor.read(text), run.model, run.processor.text.labels
        rows, columns = model.image.config.grid
        x_1CHW = run.processor.encode_images([pixels]).to(device_of(model))
        with eval_mode(model), capture(model, "image.*" if layers is None else layers, heads) as maps:
            i_1E = model.encode_images(x_1CHW)
        names = ["class", *(f"{row},{column}" for row in range(rows) for column in range(columns))]
        grid = Grid(rows, columns, prefix_tokens=1)
        found = Maps([m.label(names, names, layout=grid) for m in maps.all], maps.idle, image=pixels)
        if not captions:
            found.no_gradients = "This run has no captions to choose from, so there is no output whose gradient could be taken."
            return "", found
        t_NE = class_vectors(model, run.processor, captions, PLAIN)
        p_N = (model.scale * i_1E @ t_NE.T)[0].softmax(-1)
        best = p_N.topk(min(3, len(captions)))
        found.gradients = InputGradients.of_logits(
            model,
            x_1CHW,
            lambda model: model.scale * model.encode_images(x_1CHW) @ t_NE.T,
            best.indices[:1],
            [captions[int(best.indices[0])]],
            found.layers,
        )
        return "\n".join(f"{captions[n]}\t{p:.4f}" for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)), found


# -- vectors and what they are good for ----------------------------------------------------------------------------------


@torch.no_grad()
def image_vectors(model: CLIP, processor: ImageTextProcessor, images: Sequence[Pixels], batch_size: int = 64) -> Tensor:
    """i_BE of images of any sizes."""
    with eval_mode(model):
        some = [images[at : at + batch_size] for at in range(0, len(images), batch_size)]
        return torch.cat([model.encode_images(processor.encode_images(each).to(device_of(model))) for each in some])


@torch.no_grad()
def text_vectors(model: CLIP, processor: ImageTextProcessor, texts: Sequence[str], batch_size: int = 256) -> Tensor:
    """t_BE of texts; long ones are cut."""
    found = []
    with eval_mode(model):
        for at in range(0, len(texts), batch_size):
            ids = [processor.ids(text, model.config.max_length) for text in texts[at : at + batch_size]]
            longest = max(map(len, ids))
            found.append(model.encode_texts(torch.tensor([one + [PAD] * (longest - len(one)) for one in ids], device=device_of(model))))
    return torch.cat(found)


def class_vectors(model: CLIP, processor: ImageTextProcessor, names: Sequence[str], options: ZeroShotOptions) -> Tensor:
    """One vector of length one per class: the mean over the templates."""
    prompts = [prompt for name in names for prompt in options.prompts(name)]
    t_NTE = text_vectors(model, processor, prompts).unflatten(0, (len(names), -1))
    return F.normalize(t_NTE.mean(1), dim=-1)


def zero_shot(
    model: CLIP, processor: ImageTextProcessor, examples: Sequence[Captioned], images_BE: Tensor, options: ZeroShotOptions
) -> list[float | None]:
    """1 or 0 for each image whose captions all name the same class, and only that one: whether it is the nearest; None for the others."""
    names = options.classes or (tuple(class_names()) if any(one.things for one in examples) else ())
    labels = [_only_class(one.captions, names) for one in examples]
    if all(label is None for label in labels):
        return [None] * len(labels)
    nearest = (images_BE @ class_vectors(model, processor, names, options).T).argmax(-1).tolist()
    return [None if label is None else float(found == label) for found, label in zip(nearest, labels, strict=True)]


def _only_class(captions: Sequence[str], names: Sequence[str]) -> int | None:
    """The number of the only class that all captions name."""
    named = [{n for n, name in enumerate(names) if f" {name} " in f" {caption} "} for caption in captions]
    return next(iter(named[0])) if named and len(named[0]) == 1 and all(one == named[0] for one in named) else None


def retrieval(answers: Sequence[Vectors], examples: Sequence[Captioned]) -> dict[str, float]:
    """Recall at 1 and 5 in both directions."""
    texts = {
        caption: t_E
        for one, found in zip(examples, answers, strict=True)
        for caption, t_E in zip(one.captions, found.texts_CE, strict=True)
    }
    number = {text: n for n, text in enumerate(texts)}
    right_IT = torch.zeros(len(examples), len(texts), dtype=torch.bool)
    for n, one in enumerate(examples):
        right_IT[n, [number[caption] for caption in one.captions]] = True
    scores_IT = torch.stack([one.image_E for one in answers]) @ torch.stack(list(texts.values())).T
    found = {}
    for k in (1, 5):
        found[f"image_to_text_recall_at_{k}"] = recall_at(k, scores_IT, right_IT)
        found[f"text_to_image_recall_at_{k}"] = recall_at(k, scores_IT.T, right_IT.T)
    return found
