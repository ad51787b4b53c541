r"""SAN, the stochastic answer network: a reader that answers in several steps and averages what they say.

$$\tilde p_i = \sum_j \mathrm{softmax}_j\big(\mathrm{relu}(W e^p_i)^\top \mathrm{relu}(W e^q_j)\big)\, e^q_j \qquad
  H^q = \mathrm{BiLSTM}_2(e^q), \quad H^p = \mathrm{BiLSTM}_2([e^p; \tilde p; 1_{p_i \in q}])$$
$$U = [H^p; \mathrm{att}(H^p, H^q)] \qquad M = \mathrm{BiLSTM}\big([U; \mathrm{att}_{i \ne j}(U, U)]\big)$$
$$s_0 = \sum_j \mathrm{softmax}_j(w^\top H^q_j)\, H^q_j \qquad x_t = \sum_j \mathrm{softmax}_j(s_{t-1}^\top W M_j)\, M_j \qquad s_t = \mathrm{GRU}(s_{t-1}, x_t)$$
$$P^s_t = \mathrm{softmax}(s_t^\top W_s M) \qquad P^e_t = \mathrm{softmax}\big([s_t; \textstyle\sum_j P^s_{t,j} M_j]^\top W_e M\big) \qquad
  P = \frac1T \sum_t P_t$$

In training whole steps are left out of the average at random, at least one is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention import DotAttention, SoftmaxAttention
from ..layers import Bidirectional, Dropout
from ..patterns import Pattern, full, lengths, window
from .model import ModelConfig, ModelFacts, Probability, Size
from .reader import Reader, Reading, answer_positions, log_mean
from .text import split_segments


@dataclass(frozen=True, kw_only=True)
class SANConfig(ModelConfig):
    vocab_size: Size  # number of tokens in the vocabulary
    max_length: Size = 512  # longest question and passage together
    embedding: Size = 128  # width of the token embeddings
    width: Size = 128  # units of each direction of the LSTMs
    steps: Size = 5  # T of the answer module
    aligned: bool = True  # the passage sees an average of the question's embeddings at each token
    exact_match: bool = True  # and whether the token occurs in the question
    dropout: Probability = 0.1  # dropout rate
    prediction_dropout: Probability = 0.4  # probability that a step is left out of the average, in training


class Texts(NamedTuple):
    """Question and passage of a batch, and where the tokens of the passage are in its rows."""

    question_BM: Tensor
    question_n_B: Tensor
    passage_BP: Tensor
    passage_n_B: Tensor
    at_BP: Tensor


class SAN(Reader):
    """Bidirectional LSTMs, attention from passage to question and within the passage, and an answer module of several steps.

    Cost:    time O(P·W² + P·M·W + P²·W) for a passage of P tokens and a question of M; the LSTMs are sequential over P.
    Use it:  to find answers in passages with little data and no pretrained encoder, and to see what each step would answer.
    Avoid it: where a pretrained encoder is at hand: a span head on BERT (`SpanReader`) is more accurate.
    Limits:  an answer is one span of the passage, or none.
    Shape:   ids_BL, n_B, segment_BL → start_BL, end_BL.
    Paper:   Liu et al. 2018, "Stochastic answer networks for machine reading comprehension", arXiv:1712.03556. Trained on several data
             sets: Xu et al. 2019, "Multi-task learning with sample re-weighting for machine reading comprehension", arXiv:1809.06963.
    We differ: tokens instead of words with GloVe, CoVe, part-of-speech and entity features; scores divided by √K; a token for
             "no answer" before the passage.
    """

    facts = ModelFacts(
        name="san", year=2018, title="Stochastic answer networks for machine reading comprehension", paper="arXiv:1712.03556"
    )
    Config = SANConfig
    config: SANConfig
    between = ("alignment", "to_question")

    def _build(self) -> None:
        c = self.config
        E, W, D = c.embedding, c.width, 2 * c.width
        inputs = E + E * c.aligned + c.exact_match
        self.token, self.dropout = nn.Embedding(c.vocab_size, E), Dropout(c.dropout)
        if c.aligned:
            self.align, self.alignment = nn.Linear(E, W, bias=False), SoftmaxAttention()
        self.passage_input, self.question_input = (
            nn.Sequential(nn.Linear(size, W), nn.ReLU(), nn.Linear(W, W)) for size in (inputs, E)
        )  # two position-wise layers, because the inputs of the two have different widths
        self.passage_layers, self.question_layers = (
            nn.ModuleList(Bidirectional("lstm", size, W) for size in (W, D)) for _ in ("passage", "question")
        )
        self.across, self.to_question = nn.Linear(D, D, bias=False), SoftmaxAttention()
        self.within, self.to_passage = nn.Linear(2 * D, D, bias=False), SoftmaxAttention()
        self.memory = Bidirectional("lstm", 4 * D, W)
        self.summary_D, self.summary = nn.Parameter(torch.empty(D).uniform_(-(D**-0.5), D**-0.5)), DotAttention()
        if c.steps > 1:
            self.query, self.read_memory, self.recur = nn.Linear(D, D, bias=False), SoftmaxAttention(), nn.GRUCell(D, D)
        self.start, self.end = nn.Linear(D, D, bias=False), nn.Linear(2 * D, D, bias=False)
        self._add_threshold()
        with torch.no_grad():
            for part in self.modules():
                if isinstance(part, Bidirectional):
                    part.bias_2G.zero_()  # forget gates half open: EM is 0.51 after 60 steps, and with open ones 0.13 after 100

    def forward(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Reading:
        start_TBL, end_TBL = self.steps(ids_BL, n_B, segment_BL)
        keep_TB = self._kept(start_TBL.shape[0], start_TBL.shape[1], start_TBL.device)
        return Reading(log_mean(start_TBL, keep_TB), log_mean(end_TBL, keep_TB))

    def _kept(self, T: int, B: int, device: torch.device) -> Tensor | None:
        """Draw the steps of each row that count in training: each with probability 1 − p, and always the one with the largest draw."""
        if not self.training or not self.config.prediction_dropout:
            return None
        drawn_TB = torch.rand(T, B, device=device)
        return (drawn_TB >= self.config.prediction_dropout) | (drawn_TB == drawn_TB.amax(0))

    def steps(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Reading:
        texts = self._split(ids_BL, n_B, segment_BL)
        question_BMD, passage_BPD = self._encode(texts)
        memory_BPD = self._memory(question_BMD, passage_BPD, texts)
        start_TBP, end_TBP = self._answer(question_BMD, memory_BPD, texts)
        possible_BL = answer_positions(n_B, segment_BL)

        def over_row(log_p_TBP: Tensor) -> Tensor:
            row_TBL = log_p_TBP.new_zeros(len(log_p_TBP), *ids_BL.shape).scatter(2, texts.at_BP.expand_as(log_p_TBP), log_p_TBP)
            return row_TBL.masked_fill(~possible_BL, -torch.inf)

        return Reading(over_row(start_TBP), over_row(end_TBP))

    def _split(self, ids_BL: Tensor, n_B: Tensor, segment_BL: Tensor) -> Texts:
        """The question without its BOS and EOS, and the passage with position 0 before it and without its EOS."""
        self.check(ids_BL, n_B, segment_BL)
        at_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device).expand_as(ids_BL)
        first_n_B1 = ((segment_BL == 0) & (at_BL < n_B[:, None])).sum(1, keepdim=True)
        part_BL = torch.where(at_BL < first_n_B1 - 1, 0, 2).masked_fill(answer_positions(n_B, segment_BL), 1)
        (question_at_BM, question_n_B), (at_BP, passage_n_B) = split_segments(at_BL, n_B, part_BL, 2)
        return Texts(ids_BL.gather(1, question_at_BM), question_n_B, ids_BL.gather(1, at_BP), passage_n_B, at_BP)

    def _encode(self, texts: Texts) -> tuple[Tensor, Tensor]:
        """H^q and H^p."""
        c, asked = self.config, lengths(texts.question_n_B)
        q_BME, p_BPE = (self.dropout(self.token(ids)) for ids in (texts.question_BM, texts.passage_BP))
        seen = [p_BPE]
        if c.aligned:
            seen.append(attend(self.alignment, self.align(p_BPE).relu(), self.align(q_BME).relu(), q_BME, asked))
        if c.exact_match:
            same_BPM = texts.passage_BP[..., None] == texts.question_BM[:, None]
            real_BM = torch.arange(same_BPM.shape[2], device=same_BPM.device) < texts.question_n_B[:, None]
            seen.append((same_BPM & real_BM[:, None]).any(-1, keepdim=True).to(p_BPE.dtype))
        h_BMW, h_BPW = self.question_input(q_BME), self.passage_input(torch.cat(seen, -1))
        for question_layer, passage_layer in zip(self.question_layers, self.passage_layers, strict=True):
            h_BMW = question_layer(self.dropout(h_BMW), texts.question_n_B)
            h_BPW = passage_layer(self.dropout(h_BPW), texts.passage_n_B)
        return h_BMW, h_BPW

    def _memory(self, question_BMD: Tensor, passage_BPD: Tensor, texts: Texts) -> Tensor:
        """M: the passage with what it found in the question, and with what each token found elsewhere in the passage."""
        q_BPD, k_BMD = (self.across(self.dropout(x)).relu() for x in (passage_BPD, question_BMD))
        found_BPD = attend(self.to_question, q_BPD, k_BMD, question_BMD, lengths(texts.question_n_B))
        u_BPU = torch.cat([passage_BPD, found_BPD], -1)
        key_BPD = self.within(self.dropout(u_BPU)).relu()
        others = ~window(0) & lengths(texts.passage_n_B)  # without its diagonal: a token is most like itself
        elsewhere_BPU = attend(self.to_passage, key_BPD, key_BPD, u_BPU, others)
        return self.memory(self.dropout(torch.cat([u_BPU, elsewhere_BPU], -1)), texts.passage_n_B)

    def _answer(self, question_BMD: Tensor, memory_BPD: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
        """log P of start and end at each step."""
        real_BP = torch.arange(memory_BPD.shape[1], device=memory_BPD.device) < texts.passage_n_B[:, None]
        asked, within = lengths(texts.question_n_B), lengths(texts.passage_n_B)
        memory_BPD = self.dropout(memory_BPD)
        s_BD = attend(self.summary, self.summary_D.expand(len(memory_BPD), 1, -1), question_BMD, question_BMD, asked)[:, 0]
        starts, ends = [], []
        for step in range(self.config.steps):
            if step:
                x_B1D = attend(self.read_memory, self.query(s_BD)[:, None], memory_BPD, memory_BPD, within)
                s_BD = self.recur(x_B1D[:, 0], s_BD)
            starts.append(pointer(self.start(s_BD), memory_BPD, real_BP))
            begin_BD = torch.einsum("bp,bpd->bd", starts[-1].exp().to(memory_BPD.dtype), memory_BPD)
            ends.append(pointer(self.end(torch.cat([s_BD, begin_BD], -1)), memory_BPD, real_BP))
        return torch.stack(starts), torch.stack(ends)


def attend(attention: nn.Module, q_BLK: Tensor, k_BMK: Tensor, v_BMV: Tensor, pattern: Pattern = full) -> Tensor:
    """The mechanism with one head."""
    return attention(q_BLK.unsqueeze(2), k_BMK.unsqueeze(2), v_BMV.unsqueeze(2), pattern).squeeze(2)


def pointer(query_BD: Tensor, memory_BPD: Tensor, real_BP: Tensor) -> Tensor:
    """log softmax of q · M over the real tokens."""
    scores_BP = torch.einsum("bd,bpd->bp", query_BD, memory_BPD).float()
    return scores_BP.masked_fill(~real_BP, -torch.inf).log_softmax(-1)
