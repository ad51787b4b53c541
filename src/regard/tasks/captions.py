r"""Captions of images: pictures with sentences in, a model that describes pictures out.

Soft attention: the cross-entropy of every word, and the doubly stochastic penalty, which asks that all cells get equal attention in the end:

$$-\log p(y \mid x) + λ \sum_i \Big(1 - \sum_t α_{ti}\Big)^2$$

Every row of α sums to one, so Σ_i Σ_t α_ti is the number of words, and only Σ_i (Σ_t α_ti)² has a gradient: any other target would do.

Hard attention: the words learn from cross-entropy, the scores by REINFORCE. The reward of a cell is the log-probability of the words from there
on, $R_t = \sum_{t' \ge t} \log p(y_{t'})$; its baseline is a moving average by position, $b_t \leftarrow 0.9\,b_t + 0.1\,R_t$:

$$-\log p(y \mid s, x) - λ_r \sum_t (R_t - b_t) \log p(s_t) - λ_e \sum_t H[s_t]$$

As in the paper, a share of the images reads the average of all cells instead of a sample; here all do in the first epochs. From the start, samples
are background, and the decoder learns to ignore what it reads.

Quality is BLEU by sacrebleu against all captions of an image, exact match with one of them, and for generated scenes the grounding score: in the model's
own captions, how often the attention of a colour's or a shape's name peaks inside that object, beside how often a random cell would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.captions import Captioned
from ..data.hf_tokenizer import SpecialTokens
from ..data.images import Pixels
from ..data.scenes import COLOURS, SHAPES, Thing
from ..decode import Beam, DecoderTokens, Hypothesis
from ..decode.beam import search
from ..look import Grid, Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..models import Model, ShowAttendTell, eval_mode
from ..runs import Run
from ..train import Loss, Metric, TrainOptions
from ._base import Dataset, Example, Prediction, Report, check_range
from ._image_text import CaptionBatches, ImageTextOptions, ImageTextProcessor, ImageTextTask, example_images
from ._options import Files
from .translation import BeamOptions, GreedyOptions

DECAY = 0.9  # of the baseline


@dataclass(frozen=True, kw_only=True)
class CaptionsOptions(ImageTextOptions):
    """Which images and captions, which tokens, and the terms of the loss."""

    coverage: float = 0.0
    """Weight λ of the doubly stochastic penalty, for soft attention."""
    reinforce: float = 0.1
    """Weight λ_r of REINFORCE, for hard attention."""
    entropy: float = 0.01
    """Weight λ_e of the entropy of the attention weights, for hard attention."""
    soft_share: float = 0.5
    """Share of the images that read the average of all cells, for hard attention."""
    soft_epochs: int = 2
    """Epochs in which all images read the average, before cells are sampled, for hard attention."""
    valid_images: int = 200
    """Validation images that are described at each evaluation."""

    def __post_init__(self) -> None:
        check_range(
            self,
            coverage=(self.coverage >= 0, "0 or more"),
            entropy=(self.entropy >= 0, "0 or more"),
            soft_share=(0 <= self.soft_share <= 1, "0 to 1"),
            soft_epochs=(self.soft_epochs >= 0, "0 or more"),
            max_length=(self.max_length >= 3, "at least 3: a begin, a word and an end"),
            batch_size=(self.batch_size >= 1, "at least 1"),
        )


class Captioning(ImageTextTask[CaptionsOptions]):
    """Train a model to describe images, and see where it looks for each word.

    As in:  regard train captions --out runs/scenes --minutes 3
            regard train captions --data captions.csv --images photos --image-size 64 --out runs/mine --minutes 30
            regard look runs/mine photo.jpg --png words.png
    """

    name = "captions"
    Options = CaptionsOptions
    EvaluateOptions = BeamOptions
    PredictOptions = BeamOptions
    LookOptions = GreedyOptions
    model_kind = ShowAttendTell
    default_model = "show_attend_tell"
    inputs = "file"
    default_train = TrainOptions(lr=2e-3, warmup_steps=50, epochs=15)
    next_commands = "regard evaluate {out}        regard predict {out} image.png        regard look {out} image.png --png words.png"

    # -- training ------------------------------------------------------------------------------------------------------

    def model_settings(self, model: str, processor: ImageTextProcessor) -> dict[str, Any]:
        height, channels = processor.image.size[0], processor.image.channels
        return {**super().model_settings(model, processor), "image_size": height, "channels": channels}

    def objective(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, model: Model, seed: int) -> CaptionsObjective:
        return CaptionsObjective(dataset, processor, self.options_for(model), seed)

    # -- use -----------------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run[ShowAttendTell], data: Files | None, options: BeamOptions) -> Report:
        images, o = self.test_data(run, data), self.options
        batches = CaptionBatches(images, run.processor, self.options_for(run.model).max_length, o.batch_size)
        found = score(run.model, batches, len(batches.pairs), len(images), options.search())
        by = f"beam {options.beam}" if options.beam > 1 else "greedy"
        return Report(
            metrics=found.metrics,
            notes=(f"{self.test_name(data)}: {len(images):,} images, {by}; signature: {found.signature}",),
            details={"data": self.test_name(data), "images": len(images), "beam": options.beam, "signature": found.signature},
            outputs=found.captions,
        )

    def predict(self, run: Run[ShowAttendTell], inputs: Sequence[str], options: BeamOptions) -> list[Prediction]:
        found = describe(run.model, run.processor, [run.processor.read(name) for name in inputs], options.search())
        texts = [run.processor.tokenizer.decode(one.ids) for one in found]
        return [Prediction(text, {"caption": text, "score": one.score}) for text, one in zip(texts, found, strict=True)]

    @torch.no_grad()
    def attention_maps(self, run: Run[ShowAttendTell], text: str, layers: Layers, heads: Indices, options: BeamOptions) -> tuple[str, Maps]:
        """The caption of an image, and a map per word over its cells."""
        processor, model = run.processor, run.model
        pixels = processor.read(text)
        (best,) = describe(model, processor, [pixels], options.search())
        special = SpecialTokens.of(processor.tokenizer)
        image_1CHW, target_1L = processor.encode_images([pixels]), torch.tensor([[special.begin, *best.ids]])

        def features(model: ShowAttendTell) -> Tensor:
            return model.features(image_1CHW, target_1L)[0]

        with eval_mode(model), capture(model, layers, heads) as maps:
            features(model)
        wanted = [*best.ids, special.end]
        words, cells = processor.tokenizer.strings(wanted), [f"{row},{column}" for row in range(model.grid) for column in range(model.grid)]
        grid = Grid(model.grid, model.grid)
        drawn = [_over_steps(maps[layer]).label(words, cells, layout=grid) for layer in maps.layers]
        gradients = InputGradients(model, (image_1CHW,), features, torch.tensor(wanted), words, dict.fromkeys(maps.layers, 0))
        return processor.tokenizer.decode(best.ids), Maps(drawn, maps.idle, image=pixels, gradients=gradients)

    @classmethod
    def example(cls, folder: Path) -> Example:
        path = example_images(folder)
        options = CaptionsOptions(data=str(path), image_size=16, batch_size=8, valid_images=2, shares=(0.1, 0.1))
        settings = {"features": 8, "embedding": 8, "width": 8, "alignment": 8}
        return Example(options=options, settings=settings, input=str(folder / "0.png"), broken="nowhere.png,a red circle\n")


def _over_steps(calls: Sequence[Map]) -> Map:
    """The calls of one layer, a query each, as one map with a row per step."""
    weights_BHLM = torch.cat([m.weights_BHLM for m in calls], 2)
    steps = tuple(range(weights_BHLM.shape[2]))
    return replace(calls[0], rows=steps, queries=len(steps), weights_BHLM=weights_BHLM, inputs=None)


class CaptionsObjective:
    """What the training loop asks."""

    metric = Metric("loss", higher=False)

    def __init__(self, dataset: Dataset[list[Captioned]], processor: ImageTextProcessor, options: CaptionsOptions, seed: int = 0):
        self.options, self.processor, self.soft_share = options, processor, options.soft_share
        self.train = CaptionBatches(dataset.train, processor, options.max_length, options.batch_size, seed)
        self.valid = CaptionBatches(dataset.valid, processor, options.max_length, options.batch_size)

    def batches(self, epoch: int) -> Sequence[list[int]]:
        self.soft_share = 1.0 if epoch < self.options.soft_epochs else self.options.soft_share
        return self.train.shuffled(epoch)

    def batch(self, item: list[int]) -> Any:
        return self.train.collate(item)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        assert isinstance(model, ShowAttendTell)
        o, ids_BL = self.options, batch.ids_BL
        reading = model.read(batch.image_BCHW, ids_BL[:, :-1], self.soft_share)
        real_BL = torch.arange(ids_BL.shape[1] - 1, device=ids_BL.device) < batch.n_B[:, None] - 1
        log_p_BL = -_cross_entropy(model, reading.x_BLD, ids_BL[:, 1:]) * real_BL
        total, extra = -log_p_BL.sum(), {}
        if reading.log_prob_BL is not None and reading.entropy_BL is not None:
            baseline_L = model.baselines()[: log_p_BL.shape[1]]
            reward_BL = rewards(log_p_BL.detach(), real_BL)
            total = total - o.reinforce * ((reward_BL - baseline_L) * real_BL * reading.log_prob_BL).sum()
            total = total - o.entropy * (reading.entropy_BL * real_BL).sum()
            if model.training:
                count_L = real_BL.sum(0)
                mean_L = reward_BL.sum(0) / count_L.clamp(min=1)
                baseline_L.copy_(torch.where(count_L > 0, DECAY * baseline_L + (1 - DECAY) * mean_L, baseline_L))
        elif o.coverage:
            penalty_B = doubly_stochastic(reading.weights_BLM, real_BL)
            total = total + o.coverage * penalty_B.sum()
            extra = {"coverage": float(penalty_B.detach().sum())}
        return Loss(total, int(real_BL.sum()), extra)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, ShowAttendTell)
        return score(model, self.valid, 1000, self.options.valid_images, Beam(size=1)).metrics


def rewards(log_p_BL: Tensor, real_BL: Tensor) -> Tensor:
    """R_t: the log-probability of the words from step t on; a cell has no influence on those before."""
    return (log_p_BL * real_BL).flip(1).cumsum(1).flip(1) * real_BL


def doubly_stochastic(weights_BLM: Tensor, real_BL: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² of each caption; padded steps do not count."""
    return (1 - (weights_BLM * real_BL.unsqueeze(-1)).sum(1)).square().sum(-1)


def _cross_entropy(model: ShowAttendTell, x_BLD: Tensor, wanted_BL: Tensor) -> Tensor:
    return F.cross_entropy(model.logits(x_BLD).float().transpose(1, 2), wanted_BL, reduction="none")


# -- captions and how good they are --------------------------------------------------------------------------------------


@torch.no_grad()
def describe(
    model: ShowAttendTell,
    processor: ImageTextProcessor,
    images: Sequence[Pixels],
    options: Beam,
    *,
    want_weights: bool = False,
    batch_size: int = 64,
) -> list[Hypothesis]:
    """The best caption of each image."""
    found: list[Hypothesis] = []
    options, special = replace(options, max_tokens=model.config.max_length - 1), SpecialTokens.of(processor.tokenizer)
    tokens = DecoderTokens(first=special.begin, end=special.end, banned=tuple(sorted(special.special - {special.end})))
    with eval_mode(model):
        for at in range(0, len(images), batch_size):
            x_BCHW = processor.encode_images(images[at : at + batch_size])
            n_B = torch.full((len(x_BCHW),), model.grid**2)
            each = search(model, model.start(x_BCHW), options, source_n_B=n_B, tokens=tokens, want_weights=want_weights)
            found += [hypotheses[0] for hypotheses in each]
    return found


class CaptionScore(NamedTuple):
    metrics: dict[str, float]
    signature: str
    captions: list[str]


def score(model: ShowAttendTell, batches: CaptionBatches, captions: int, images: int, options: Beam) -> CaptionScore:
    """The loss over this many captions; BLEU, exact match and grounding of the captions that the model gives this many images."""
    import sacrebleu

    some, processor = batches.images[:images], batches.processor
    found = describe(model, processor, [one.pixels for one in some], options, want_weights=True)
    texts = [processor.tokenizer.decode(one.ids) for one in found]
    most = max(len(one.captions) for one in some)
    references = [[one.captions[n] if n < len(one.captions) else None for one in some] for n in range(most)]
    bleu = sacrebleu.BLEU(effective_order=False)
    whole = bleu.corpus_score(texts, references)  # type: ignore[arg-type]  # None: this image has fewer
    exact = sum(text in one.captions for text, one in zip(texts, some, strict=True)) / len(some)
    metrics = {"loss": loss_per_token(model, batches, captions), "bleu": whole.score, "exact_match": exact}
    hits = [
        hit
        for hypothesis, one in zip(found, some, strict=True)
        if one.things and hypothesis.weights_LM is not None
        for hit in grounding(hypothesis.weights_LM, hypothesis.ids, processor, one.things, model.grid)
    ]
    if hits:
        right, chance = (sum(each) / len(hits) for each in zip(*hits, strict=True))
        metrics |= {"grounding": right, "grounding_by_chance": chance}
    return CaptionScore(metrics, str(bleu.get_signature()), texts)


@torch.no_grad()
def loss_per_token(model: ShowAttendTell, batches: CaptionBatches, captions: int) -> float:
    """In nats, under teacher forcing."""
    total, count = 0.0, 0
    with eval_mode(model):
        for rows in batches.in_order()[: -(-captions // batches.size)]:
            batch = batches.collate(rows)
            x_BLD = model.features(batch.image_BCHW, batch.ids_BL[:, :-1])
            real_BL = torch.arange(batch.ids_BL.shape[1] - 1) < batch.n_B[:, None] - 1
            total += float((_cross_entropy(model, x_BLD, batch.ids_BL[:, 1:]) * real_BL).sum())
            count += int(real_BL.sum())
    return total / max(count, 1)


def grounding(
    weights_LM: Tensor, ids: Sequence[int], processor: ImageTextProcessor, things: Sequence[Thing], grid: int
) -> list[tuple[float, float]]:
    """For each name of a colour or a shape: whether its attention peaks inside that object, and the share of cells inside.

    `weights_LM` has a row per token. A name that fits no object is a miss.
    """
    size, words = processor.image.size[0], processor.tokenizer.words(ids)
    found, last = [], -1
    for row_M, number in zip(weights_LM, processor.tokenizer.word_numbers(ids), strict=False):
        if number in (-1, last) or words[number] not in (*COLOURS, *SHAPES):
            continue
        last = number
        named = [one for one in things if words[number] in (one.colour, one.shape)]
        inside_M = np.any([cells_inside(one, grid, size) for one in named or things], axis=0)
        peak_M = (row_M == row_M.max()).numpy()  # several cells of the same weight (a mean): each is the peak with the same probability
        found.append((float(inside_M[peak_M].mean()) if named else 0.0, float(inside_M.mean())))
    return found


def cells_inside(thing: Thing, grid: int, size: int) -> npt.NDArray[np.bool_]:
    """The cells whose centre is in the box of the object, (grid · grid)."""
    left, top, right, bottom = thing.box
    centre = (np.arange(grid) + 0.5) * size / grid
    across, down = (centre >= left) & (centre < right), (centre >= top) & (centre < bottom)
    return np.asarray((down[:, None] & across[None, :]).ravel())
