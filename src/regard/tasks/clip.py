"""Images and texts in one space: pictures with sentences in, a model that searches and classifies by words out.

The loss is symmetric: of all captions of a batch the right one for each image, and of all images the right one for each caption. Pairs of a batch are
each other's wrong answers, so no caption occurs twice in a batch. The temperature is learned, and the factor e^τ kept at 100 or less.

Zero-shot classification needs no examples: each class becomes a sentence ("a {}"), or several whose vectors are averaged, and an image belongs to
the nearest. Retrieval: how often a right caption is among the k nearest to an image, and a right image among the k nearest to a caption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Tokenizers
from ..data.captions import Captioned, Captions
from ..data.hf_tokenizer import HFTokenizer, SpecialTokens
from ..data.images import Pixels
from ..data.scenes import class_names
from ..data.tokens import PAD
from ..errors import BadConfig
from ..look import Grid, Indices, Layers, Maps, capture
from ..look.gradients import InputGradients
from ..models import CLIP, Model, eval_mode
from ..models.clip import MAX_SCALE, contrastive_loss
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, NoOptions, Prediction, Report, check_range
from ._image_text import CaptionBatches, ImageTextOptions, ImageTextProcessor, ImageTextTask, example_images
from ._options import Files
from ._processor import TextProcessor

KEPT = 500  # captions that are saved with a run, to choose from where no classes are named


@dataclass(frozen=True, kw_only=True)
class ClipOptions(ImageTextOptions):
    """Which images and captions, which tokens."""

    batch_size: int = 128
    """Pairs per batch: each is compared with all others."""

    def __post_init__(self) -> None:
        check_range(
            self,
            max_length=(self.max_length >= 3, "at least 3: a begin, a word and an end"),
            batch_size=(self.batch_size >= 2, "at least 2: pairs are compared with each other"),
        )


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions:
    """Which classes, and how they become sentences."""

    classes: tuple[str, ...] = ()
    """Names of the classes; if none are given, captions of the training data, or of generated scenes their colours and shapes."""
    templates: tuple[str, ...] = ("a {}",)
    """Sentences with {} for the class; the vectors of several are averaged: "a photo of a {}" "a drawing of a {}"."""

    def __post_init__(self) -> None:
        if not self.templates or not all("{}" in one for one in self.templates):
            raise BadConfig(f"templates {self.templates}: expected sentences with {{}} for the name of the class")

    def prompts(self, name: str) -> list[str]:
        return [template.replace("{}", name) for template in self.templates]


PLAIN = ZeroShotOptions(templates=("{}",))  # captions as they are


class Clip(ImageTextTask[ClipOptions]):
    """Train images and texts into one space: search by words, classify without examples.

    As in:  regard train clip --out runs/clip --minutes 5
            regard train clip --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 60
            regard predict runs/mine photo.jpg --classes dog cat house --templates "a photo of a {}"
    """

    name = "clip"
    Options = ClipOptions
    EvaluateOptions = ZeroShotOptions
    PredictOptions = ZeroShotOptions
    LookOptions = NoOptions
    model_kind = CLIP
    default_model = "clip"
    inputs = "file"
    default_train = TrainOptions(lr=1e-3, epochs=20, schedule="cosine", weight_decay=0.1)
    next_commands = 'regard evaluate {out}        regard predict {out} image.png --classes "red circle" "blue square"'

    # -- training ------------------------------------------------------------------------------------------------------

    def make_processor(self, raw: Captions, base: ImageTextProcessor | None) -> ImageTextProcessor:
        made = super().make_processor(raw, base)
        if base is not None:
            return made
        counts = Counter(caption for one in raw.train for caption in one.captions)
        # as published, the token that ends a text has the largest id: transformers reads texts elsewhere if it is 2, as our EOS
        tokenizer = HFTokenizer.from_tokenizer(made.tokenizer, "both", end_last=True)
        return ImageTextProcessor(
            made.image, TextProcessor(Tokenizers(tokenizer), tuple(caption for caption, _ in counts.most_common(KEPT)))
        )

    def model_settings(self, model: str, processor: ImageTextProcessor) -> dict[str, Any]:
        sizes = {"image_size": processor.image.size[0], "channels": processor.image.channels}
        return {**super().model_settings(model, processor), **sizes, "end": SpecialTokens.of(processor.tokenizer).end}

    def objective(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, model: Model, seed: int) -> ClipObjective:
        return ClipObjective(dataset, processor, self.options_for(model), seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[CLIP], data: Files | None, options: ZeroShotOptions) -> Report:
        images, o = self.test_data(run, data), self.options
        batches = CaptionBatches(images, run.processor, self.options_for(run.model).max_length, o.batch_size)
        metrics = {**retrieval(run.model, batches), **zero_shot(run.model, run.processor, images, options)}
        notes = f"{self.test_name(data)}: {len(images):,} images, {len(batches.pairs):,} captions"
        return Report(metrics=metrics, notes=(notes,), details={"data": self.test_name(data), "images": len(images)})

    def predict(self, run: Run[CLIP], inputs: Sequence[str], options: ZeroShotOptions) -> list[Prediction]:
        names, templates = (options.classes, options) if options.classes else (run.processor.text.labels, PLAIN)
        if not names:
            raise BadConfig(f"{run.folder} has no captions to choose from; name classes with --classes")
        t_NE = class_vectors(run.model, run.processor, names, templates)
        answers = []
        for name in inputs:
            i_1E = image_vectors(run.model, run.processor, [run.processor.read(name)])
            p_N = (run.model.scale.detach() * i_1E @ t_NE.T)[0].softmax(-1)
            best = p_N.argsort(descending=True, stable=True)[:5].tolist()
            found = [{"class": names[n], "probability": float(p_N[n])} for n in best]
            answers.append(Prediction(names[best[0]], {"classes": found}))
        return answers

    @torch.no_grad()
    def attention_maps(self, run: Run[CLIP], text: str, layers: Layers, heads: Indices, options: NoOptions) -> tuple[str, Maps]:
        """The nearest of the captions that the run has kept, and the maps of the image tower, from its class token and its patches."""
        pixels, model, captions = run.processor.read(text), run.model, run.processor.text.labels
        rows, columns = model.image.config.grid
        x_1CHW = run.processor.encode_images([pixels])
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
        found.gradients = InputGradients(
            model,
            (x_1CHW,),
            lambda model: model.scale * model.encode_images(x_1CHW) @ t_NE.T,
            best.indices[:1],
            [captions[int(best.indices[0])]],
            dict.fromkeys(found.layers, 0),
            logits=lambda _, x_N: x_N,
        )
        return "\n".join(f"{captions[n]}\t{p:.4f}" for p, n in zip(best.values.tolist(), best.indices.tolist(), strict=True)), found

    @classmethod
    def example(cls, folder: Path) -> Example:
        options = ClipOptions(data=str(example_images(folder)), image_size=16, batch_size=8, shares=(0.3, 0.1))
        text = {"width": 8, "heads": 2, "depth": 1, "hidden": 8, "embedding": 8}
        image = {"patch_size": 8, "image_width": 8, "image_heads": 2, "image_depth": 1, "image_hidden": 8}
        return Example(options=options, settings=text | image, input=str(folder / "0.png"), broken="nowhere.png,a red circle\n")


class ClipObjective:
    """What the training loop asks."""

    unit = "images"
    metric = Metric("loss", higher=False)

    def __init__(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, options: ClipOptions, seed: int = 0):
        self.train = CaptionBatches(dataset.train, processor, options.max_length, options.batch_size, seed)
        self.valid = CaptionBatches(dataset.valid, processor, options.max_length, options.batch_size)

    def batches(self, epoch: int) -> Sequence[list[int]]:
        return self.train.distinct(epoch)

    def batch(self, item: list[int]) -> Any:
        return self.train.collate(item)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        assert isinstance(model, CLIP)
        logits_BB = model(batch.image_BCHW, batch.ids_BL)
        right_B = torch.arange(len(logits_BB), device=logits_BB.device)
        return Loss(
            contrastive_loss(logits_BB) * len(logits_BB), len(logits_BB), {"accuracy": float((logits_BB.argmax(-1) == right_B).sum())}
        )

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        assert isinstance(model, CLIP)
        model.log_scale.clamp_(max=log(MAX_SCALE))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, CLIP)
        return retrieval(model, self.valid)


# -- vectors and what they are good for ----------------------------------------------------------------------------------


@torch.no_grad()
def image_vectors(model: CLIP, processor: ImageTextProcessor, images: Sequence[Pixels], batch_size: int = 64) -> Tensor:
    """i_BE of images of any sizes."""
    with eval_mode(model):
        some = [images[at : at + batch_size] for at in range(0, len(images), batch_size)]
        return torch.cat([model.encode_images(processor.encode_images(each)) for each in some])


@torch.no_grad()
def text_vectors(model: CLIP, processor: ImageTextProcessor, texts: Sequence[str], batch_size: int = 256) -> Tensor:
    """t_BE of texts; long ones are cut."""
    found = []
    with eval_mode(model):
        for at in range(0, len(texts), batch_size):
            ids = [processor.ids(text, model.config.max_length) for text in texts[at : at + batch_size]]
            longest = max(map(len, ids))
            found.append(model.encode_texts(torch.tensor([one + [PAD] * (longest - len(one)) for one in ids])))
    return torch.cat(found)


def class_vectors(model: CLIP, processor: ImageTextProcessor, names: Sequence[str], options: ZeroShotOptions) -> Tensor:
    """One vector of length one per class: the mean over the templates."""
    prompts = [prompt for name in names for prompt in options.prompts(name)]
    t_NTE = text_vectors(model, processor, prompts).unflatten(0, (len(names), -1))
    return F.normalize(t_NTE.mean(1), dim=-1)


def zero_shot(model: CLIP, processor: ImageTextProcessor, images: Sequence[Captioned], options: ZeroShotOptions) -> dict[str, float]:
    """Accuracy over the images whose captions all name the same class, and only that one; nothing if there are none."""
    names = options.classes or (tuple(class_names()) if any(one.things for one in images) else ())
    labels = [_only_class(one.captions, names) for one in images]
    some = [(one.pixels, label) for one, label in zip(images, labels, strict=True) if label is not None]
    if not some:
        return {}
    t_NE = class_vectors(model, processor, names, options)
    found_B = (image_vectors(model, processor, [pixels for pixels, _ in some]) @ t_NE.T).argmax(-1)
    return {"zero_shot_accuracy": float((found_B == torch.tensor([label for _, label in some])).float().mean())}


def _only_class(captions: Sequence[str], names: Sequence[str]) -> int | None:
    """The number of the only class that all captions name."""
    named = [{n for n, name in enumerate(names) if f" {name} " in f" {caption} "} for caption in captions]
    return next(iter(named[0])) if named and len(named[0]) == 1 and all(one == named[0] for one in named) else None


@torch.no_grad()
def retrieval(model: CLIP, batches: CaptionBatches, most: int = 1000) -> dict[str, float]:
    """The loss over batches of captions that differ, and recall at 1 and 5 in both directions over at most this many images."""
    total, count = 0.0, 0
    with eval_mode(model):
        for rows in batches.distinct(0)[: max(1, most // batches.size)]:
            batch = batches.collate(rows)
            total += float(contrastive_loss(model(batch.image_BCHW, batch.ids_BL))) * len(rows)
            count += len(rows)
    images = batches.images[:most]
    texts = list(dict.fromkeys(caption for one in images for caption in one.captions))
    number = {text: n for n, text in enumerate(texts)}
    right_IT = torch.zeros(len(images), len(texts), dtype=torch.bool)
    for n, one in enumerate(images):
        right_IT[n, [number[caption] for caption in one.captions]] = True
    processor = batches.processor
    scores_IT = image_vectors(model, processor, [one.pixels for one in images]) @ text_vectors(model, processor, texts).T
    found = {"loss": total / max(count, 1)}
    for k in (1, 5):
        found[f"image_to_text_recall_at_{k}"] = _recall(scores_IT, right_IT, k)
        found[f"text_to_image_recall_at_{k}"] = _recall(scores_IT.T, right_IT.T, k)
    return found


def _recall(scores: Tensor, right: Tensor, k: int) -> float:
    """How often one of the k best columns is right."""
    best = scores.topk(min(k, scores.shape[1]), -1).indices
    return float(right.gather(1, best).any(-1).float().mean())
