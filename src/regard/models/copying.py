r"""Models that generate words and copy words of their source: what they share is the mixture of the two.

$$P(w) = p_{gen}\, P_{vocab}(w) + (1 - p_{gen}) \sum_{i:\, x_i = w} a_i$$

over the extended vocabulary: the N tokens of the model, and the words of the source that it lacks. Those have ids from N on, numbered per
row by their first occurrence in the source (`Tokenizer.encode_open`), so the ids of a source say all there is to know. An embedding reads
them as the unknown token. Everything is computed in log space, so nothing is lost where p_gen or an attention weight is nearly 0:

$$\log P(w) = \mathrm{logaddexp}\Big(\log p_{gen} + \log P_{vocab}(w),\; \log(1 - p_{gen}) + \mathrm{logsumexp}_{i:\, x_i = w} \log a_i\Big)$$

A loss needs P of the reference only, which takes no table over the extended vocabulary: `target_log_probs`. Decoding needs all: `log_probs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import State
from ..attention.helpers import float32_or_wider
from .model import Count, Model, ModelConfig, Size, Step
from .translator import Decoding, check_pairs


@dataclass(frozen=True, kw_only=True)
class CopyConfig(ModelConfig):
    vocab_size: Size  # number of tokens, of source and target
    unknown_id: Count = 3  # the unknown token: what a word outside the vocabulary is embedded as
    max_length: Size = 512  # longest sequence, for mechanisms that need it; models read on
    pointer: bool = True  # False: p_gen = 1, so that nothing is copied


class CopyOutputs(NamedTuple):
    """Outputs of a model at each position of the target."""

    x_BLD: Tensor  # features, from which the output projection makes P_vocab
    gate_BL: Tensor  # p_gen before the sigmoid
    log_weights_BLM: Tensor  # attention to the source: the distribution that is copied from


class CopyModel(Model):
    """Reads a source and writes a target, partly in the source's own words. A model implements `outputs`, `start`, `step_outputs`, `source_part`
    and `head`; its state has a part that holds the ids of the source, made by `source_state`.

    Shape: source_BM, source_n_B, target_BL → log_prob_BLN over the extended vocabulary.
    """

    config: CopyConfig

    def outputs(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> CopyOutputs:
        """Compute the outputs under teacher forcing. `target_BL` starts with BOS; position t predicts target token t + 1.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets, which start with BOS.
        """
        raise NotImplementedError

    def start(self, source_BM: Tensor, source_n_B: Tensor) -> State:
        """Encode the source, and return a decoding state that has read no target token yet."""
        raise NotImplementedError

    def step_outputs(self, token_B: Tensor, state: State) -> CopyOutputs:
        """Compute `outputs` after one token per row, of length 1; the state advances."""
        raise NotImplementedError

    def source_part(self, state: State) -> Decoding:
        """The part of a state that holds what `source_state` gave."""
        raise NotImplementedError

    def forward(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor) -> Tensor:
        """log_prob_BLN over the extended vocabulary, under teacher forcing.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets, which start with BOS.
        """
        return self.log_probs(self.outputs(source_BM, source_n_B, target_BL), source_BM, self.extended_size(source_BM))

    def step(self, token_B: Tensor, state: State, want_weights: bool = False) -> Step:
        """One token per row: the log-probabilities of the next over the extended vocabulary; the state advances.

        Args:
            token_B: last token of each row.
            state: decoding state, which advances.
            want_weights: return attention weights over the source, too.
        """
        found, source = self.step_outputs(token_B, state), self.source_part(state).fixed
        log_prob_BN = self.log_probs(found, source["ids"], self.config.vocab_size + source["more"].shape[1])[:, 0]
        return Step(log_prob_BN, found.log_weights_BLM[:, 0].exp() if want_weights else None)

    # -- the extended vocabulary -----------------------------------------------------------------------------------------

    def extended_size(self, source_BM: Tensor) -> int:
        """The number of tokens that the rows of a batch can generate or copy."""
        return max(self.config.vocab_size, int(source_BM.max()) + 1) if self.config.pointer else self.config.vocab_size

    def source_state(self, source_BM: Tensor) -> dict[str, Tensor]:
        """Collect what decoding needs of the ids of the source: `more` has a column per word outside the vocabulary, so that joined batches agree."""
        return {"ids": source_BM, "more": source_BM.new_zeros(len(source_BM), self.extended_size(source_BM) - self.config.vocab_size)}

    def embeddable(self, ids: Tensor) -> Tensor:
        """Replace by the unknown token all ids of words outside the vocabulary."""
        return ids.masked_fill(ids >= self.config.vocab_size, self.config.unknown_id)

    def target_log_probs(self, found: CopyOutputs, source_BM: Tensor, wanted_BL: Tensor) -> Tensor:
        """log P of the wanted tokens, log_prob_BL. One outside the vocabulary that is not in the source has no probability.

        Args:
            found: outputs of the model.
            source_BM: token ids of the sources.
            wanted_BL: ids over the extended vocabulary.
        """
        logits_BLN = float32_or_wider(self.logits(found.x_BLD))
        known_BL = self.embeddable(wanted_BL)
        generate_BL = logits_BLN.gather(-1, known_BL[..., None])[..., 0] - logits_BLN.logsumexp(-1)
        if not self.config.pointer:
            return generate_BL
        gate_BL, log_weights_BLM = float32_or_wider(found.gate_BL), found.log_weights_BLM
        generate_BL = generate_BL.masked_fill(wanted_BL != known_BL, never(generate_BL))
        same_BLM = source_BM[:, None, :] == wanted_BL[:, :, None]
        copy_BL = log_weights_BLM.masked_fill(~same_BLM, never(log_weights_BLM)).logsumexp(-1)
        return torch.logaddexp(F.logsigmoid(gate_BL) + generate_BL, F.logsigmoid(-gate_BL) + copy_BL)

    def log_probs(self, found: CopyOutputs, source_BM: Tensor, size: int) -> Tensor:
        """log P of all `size` tokens of the extended vocabulary, log_prob_BLN.

        Args:
            found: outputs of the model.
            source_BM: token ids of the sources.
            size: size of the extended vocabulary.
        """
        generate_BLN = float32_or_wider(self.logits(found.x_BLD)).log_softmax(-1)
        if not self.config.pointer:
            return generate_BLN
        gate_BL1, log_weights_BLM = float32_or_wider(found.gate_BL).unsqueeze(-1), found.log_weights_BLM
        more = size - generate_BLN.shape[-1]
        generate_BLN = F.pad(F.logsigmoid(gate_BL1) + generate_BLN, (0, more), value=never(generate_BLN))
        top_BL1 = log_weights_BLM.detach().amax(-1, keepdim=True)
        ids_BLM = source_BM[:, None].expand(log_weights_BLM.shape)
        mass_BLN = torch.zeros_like(generate_BLN).scatter_add(-1, ids_BLM, (log_weights_BLM - top_BL1).exp())  # occurrences add up
        copied_BLN = mass_BLN.clamp(min=torch.finfo(mass_BLN.dtype).tiny).log() + top_BL1 + F.logsigmoid(-gate_BL1)
        return torch.logaddexp(generate_BLN, copied_BLN.masked_fill(mass_BLN == 0, never(mass_BLN)))

    def check(self, source_BM: Tensor, source_n_B: Tensor, target_BL: Tensor | None = None) -> None:
        """Raise an error for inputs whose shapes or types do not fit together.

        Args:
            source_BM: token ids of the sources.
            source_n_B: number of real tokens of each source.
            target_BL: token ids of the targets; None: not checked.
        """
        check_pairs(type(self).__name__, source_BM, source_n_B, target_BL)


def never(x: Tensor) -> float:
    """The logarithm of no probability at all: so low that adding to it changes nothing, and finite, so that gradients are zeros and not NaN."""
    return torch.finfo(x.dtype).min / 4


def coverage_before(weights_BLM: Tensor) -> Tensor:
    """cov_t: the attention that each source token got before step t.

    Args:
        weights_BLM: attention weights of each step t over the source.

    Shape: weights_BLM → coverage_BLM.
    """
    return F.pad(weights_BLM.cumsum(1)[:, :-1], (0, 0, 1, 0))


def coverage_loss(weights_BLM: Tensor, real_BL: Tensor) -> Tensor:
    """Σ_t Σ_i min(a_ti, cov_ti): attention to what has been attended to before; steps that are not real do not count.

    Args:
        weights_BLM: attention weights of each step t over the source.
        real_BL: steps that count.

    Shape: weights_BLM, real_BL → a scalar.
    """
    return torch.minimum(weights_BLM, coverage_before(weights_BLM)).sum(-1).masked_fill(~real_BL, 0.0).sum()
