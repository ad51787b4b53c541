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
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.captions import Captioned
from ..data.scenes import COLOURS, SHAPES, Thing
from ..decode import DecoderTokens, Hypothesis
from ..decode.beam import search
from ..look import Grid, Indices, Layers, Map, Maps, capture
from ..look.gradients import InputGradients
from ..metrics.bleu import corpus_bleu
from ..models import ShowAttendTell, device_of, eval_mode
from ..runs import Run
from ..train import Loss
from .image_text import CaptionBatch, ImageTextProcessor, ImageTextTask
from .measuring import answer
from .options import BeamOptions
from .options.captions import CaptioningDeclaration, CaptionsOptions
from .seq2seq import beam_of
from .task import Prediction, Report, cut

DECAY = 0.9  # of the baseline


class Captioning(CaptioningDeclaration, ImageTextTask[CaptionsOptions]):
    loss_unit = "tokens"
    inputs = "file"
    valid_options = BeamOptions(beam=1)
    model_kind = ShowAttendTell
    next_commands = "regard evaluate {out}        regard predict {out} image.png        regard look {out} image.png --png words.png"

    def loss(self, model: ShowAttendTell, batch: CaptionBatch) -> Loss:
        """Cross-entropy of every word, and in training what the kind of attention adds."""
        o, ids_BL = self.options, batch.ids_BL
        real_BL = torch.arange(ids_BL.shape[1] - 1, device=ids_BL.device) < batch.n_B[:, None] - 1
        count = int(real_BL.sum())
        if not model.training:
            x_BLD = model.features(batch.image_BCHW, ids_BL[:, :-1])
            return Loss((_cross_entropy(model, x_BLD, ids_BL[:, 1:]) * real_BL).sum(), count)
        soft_share = 1.0 if self.progress.epoch < o.soft_epochs else o.soft_share
        reading = model.read(batch.image_BCHW, ids_BL[:, :-1], soft_share)
        log_p_BL = -_cross_entropy(model, reading.x_BLD, ids_BL[:, 1:]) * real_BL
        total = -log_p_BL.sum()
        if reading.log_prob_BL is not None and reading.entropy_BL is not None:
            baseline_L = model.baselines()[: log_p_BL.shape[1]]
            reward_BL = rewards(log_p_BL.detach(), real_BL)
            total = total - o.reinforce * ((reward_BL - baseline_L) * real_BL * reading.log_prob_BL).sum()
            total = total - o.entropy * (reading.entropy_BL * real_BL).sum()
            count_L = real_BL.sum(0)
            mean_L = reward_BL.sum(0) / count_L.clamp(min=1)
            baseline_L.copy_(torch.where(count_L > 0, DECAY * baseline_L + (1 - DECAY) * mean_L, baseline_L))
        elif o.coverage:
            penalty_B = doubly_stochastic(reading.weights_BLM, real_BL)
            return Loss(total + o.coverage * penalty_B.sum(), count, {"coverage": penalty_B.detach().sum()})
        return Loss(total, count)

    def validation(self, examples: Sequence[Captioned]) -> Sequence[Captioned]:
        return examples[: max(self.options.valid_images, 500)]

    @property
    def answered(self) -> int:
        return self.options.valid_images

    # -- answers -------------------------------------------------------------------------------------------------------

    def generate(self, model: ShowAttendTell, examples: Sequence[Captioned], options: BeamOptions) -> list[Hypothesis]:
        """The best caption of each image, with where it looked."""
        found, begin, end = list[Hypothesis](), self.processor.tokenizer.begin_id, self.processor.tokenizer.end_id
        tokens = DecoderTokens(first=begin, end=end, banned=tuple(sorted(self.processor.tokenizer.special_ids - {end})))
        beam = beam_of(options, max_tokens=model.config.max_length - 1)
        for some in cut(np.arange(len(examples)), 64):
            x_BCHW = self.processor.encode_images([examples[n].pixels for n in some]).to(device_of(model))
            n_B = torch.full((len(x_BCHW),), model.grid**2, device=x_BCHW.device)
            each = search(model, model.start(x_BCHW), beam, source_n_B=n_B, tokens=tokens, want_weights=True)
            found += [replace(best, weights_LM=None if best.weights_LM is None else best.weights_LM.cpu()) for best, *_ in each]
        return found

    def text(self, answer: Hypothesis) -> str:
        return self.processor.tokenizer.decode(answer.ids)

    def metrics(self, sums: Mapping[str, float], answers: Sequence[Hypothesis], examples: Sequence[Captioned]) -> dict[str, float]:
        return self._scored(sums, answers, examples)[0]

    def _scored(
        self, sums: Mapping[str, float], answers: Sequence[Hypothesis], examples: Sequence[Captioned]
    ) -> tuple[dict[str, float], str]:
        """Metrics, and the signature of BLEU."""
        texts, most = [self.text(one) for one in answers], max(len(one.captions) for one in examples)
        references = [[one.captions[n] if n < len(one.captions) else None for one in examples] for n in range(most)]
        bleu, signature = corpus_bleu(texts, references)
        exact = sum(text in one.captions for text, one in zip(texts, examples, strict=True)) / len(examples)
        hits = [
            hit
            for found, one in zip(answers, examples, strict=True)
            if one.things and found.weights_LM is not None
            for hit in grounding(found.weights_LM, found.ids, self.processor, one.things, round(found.weights_LM.shape[1] ** 0.5))
        ]
        right, chance = (sum(each) / len(hits) for each in zip(*hits, strict=True)) if hits else (0.0, 0.0)
        grounded = {"grounding": right, "grounding_by_chance": chance} if hits else {}
        return {"loss": sums["loss"] / max(sums["count"], 1), "bleu": bleu, "exact_match": exact, **grounded}, signature

    def report(
        self, sums: Mapping[str, float], answers: Sequence[Hypothesis], examples: Sequence[Captioned], options: BeamOptions
    ) -> Report:
        metrics, signature = self._scored(sums, answers, examples)
        return Report(
            metrics=metrics,
            notes=(f"{options.words}; signature: {signature}",),
            details={"beam": options.beam, "signature": signature},
            outputs=[self.text(one) for one in answers],
        )

    def prediction(self, example: Captioned, answer: Hypothesis, options: Any) -> Prediction:
        return Prediction(self.text(answer), {"caption": self.text(answer), "score": answer.score})

    @torch.no_grad()
    def attention_maps(self, run: Run[ShowAttendTell], text: str, layers: Layers, heads: Indices, options: BeamOptions) -> tuple[str, Maps]:
        """Caption of an image, and a map per word over its cells."""
        processor, model, example = self.processor, run.model, self.parse(text)
        (best,) = answer(self, model, [example], options)
        tokenizer, device = processor.tokenizer, device_of(model)
        image_1CHW = processor.encode_images([example.pixels]).to(device)
        target_1L = torch.tensor([[tokenizer.begin_id, *best.ids]], device=device)

        def features(model: ShowAttendTell) -> Tensor:
            return model.features(image_1CHW, target_1L)[0]

        with eval_mode(model), capture(model, layers, heads) as maps:
            features(model)
        wanted = [*best.ids, tokenizer.end_id]
        words, cells = tokenizer.strings(wanted), [f"{row},{column}" for row in range(model.grid) for column in range(model.grid)]
        grid = Grid(model.grid, model.grid)
        drawn = [_over_steps(maps[layer]).label(words, cells, layout=grid) for layer in maps.layers]
        targets = torch.tensor(wanted, device=device)
        gradients = InputGradients(model, (image_1CHW,), features, targets, words, dict.fromkeys(maps.layers, 0))
        return self.text(best), Maps(drawn, maps.idle, image=example.pixels, gradients=gradients)


def _over_steps(calls: Sequence[Map]) -> Map:
    """Calls of one layer, a query each, as one map with a row per step."""
    weights_BHLM = torch.cat([m.weights_BHLM for m in calls], 2)
    steps = tuple(range(weights_BHLM.shape[2]))
    return replace(calls[0], rows=steps, queries=len(steps), weights_BHLM=weights_BHLM, inputs=None)


def rewards(log_p_BL: Tensor, real_BL: Tensor) -> Tensor:
    """R_t: the log-probability of the words from step t on; a cell has no influence on those before."""
    return (log_p_BL * real_BL).flip(1).cumsum(1).flip(1) * real_BL


def doubly_stochastic(weights_BLM: Tensor, real_BL: Tensor) -> Tensor:
    """Σ_i (1 − Σ_t α_ti)² of each caption; padded steps do not count."""
    return (1 - (weights_BLM * real_BL.unsqueeze(-1)).sum(1)).square().sum(-1)


def _cross_entropy(model: ShowAttendTell, x_BLD: Tensor, wanted_BL: Tensor) -> Tensor:
    return F.cross_entropy(model.logits(x_BLD).float().transpose(1, 2), wanted_BL, reduction="none")


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
