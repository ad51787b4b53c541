"""The same hypotheses as transformers, from the same model: a small random MarianMT behind `start` and `step`."""

import pytest
import torch

from regard.decode import Beam, DecoderTokens, Power, Sampling, translate

transformers = pytest.importorskip("transformers", reason="MarianMT of transformers is the reference")

N, PAD, END = 23, 22, 0
TOKENS = DecoderTokens(first=PAD, end=END, banned=(PAD,))


class MarianState:
    def __init__(self, hidden_BMD, mask_BM):
        self.hidden_BMD, self.mask_BM, self.cache = hidden_BMD, mask_BM, None

    def reorder(self, rows):
        self.hidden_BMD, self.mask_BM = self.hidden_BMD[rows], self.mask_BM[rows]
        self.cache.reorder_cache(rows)
        return self


class Marian(torch.nn.Module):
    """MarianMTModel with the interface that decoding needs."""

    def __init__(self, hf):
        super().__init__()
        self.hf = hf

    def start(self, source_BM, source_n_B):
        mask_BM = (torch.arange(source_BM.shape[1]) < source_n_B[:, None]).long()
        return MarianState(self.hf.model.encoder(source_BM, attention_mask=mask_BM).last_hidden_state, mask_BM)

    def step(self, token_B, state, want_weights=False):
        out = self.hf.model.decoder(
            input_ids=token_B[:, None],
            encoder_hidden_states=state.hidden_BMD,
            encoder_attention_mask=state.mask_BM,
            past_key_values=state.cache,
            use_cache=True,
            output_attentions=want_weights,
        )
        state.cache = out.past_key_values
        logits_BN = self.hf.lm_head(out.last_hidden_state[:, -1]) + self.hf.final_logits_bias[0]
        weights_BM = out.cross_attentions[-1].mean(1)[:, -1] if want_weights else None
        return Step(logits_BN, weights_BM)


class Step:
    def __init__(self, logits_BN, weights_BM):
        self.logits_BN, self.weights_BM = logits_BN, weights_BM


class EndAtItsPrice(transformers.LogitsProcessor):
    """At the limit only the end is left, with its own log-probability: what regard's search does."""

    def __init__(self, most):
        self.most = most

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < self.most:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor([END]), scores[:, [END]])


@pytest.fixture(scope="module")
def hf():
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        vocab_size=N, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
        decoder_start_token_id=PAD, forced_eos_token_id=None, init_std=0.05, dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    model.generation_config.forced_eos_token_id = None
    # A few steps of copying: a model at random repeats itself up to the limit, one that half knows its task has answers of all lengths.
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        inside_BM = torch.arange(10) < torch.randint(1, 10, (32, 1))
        source_BM = torch.randint(1, PAD, (32, 10)).where(inside_BM, PAD)
        source_BM.scatter_(1, inside_BM.sum(1, keepdim=True), END)
        labels = source_BM.masked_fill(source_BM == PAD, -100)
        loss = model(source_BM, attention_mask=(source_BM != PAD).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def sources():
    make = torch.Generator().manual_seed(0)
    return [[*torch.randint(1, PAD, (n,), generator=make).tolist(), END] for n in (3, 7, 1, 5, 4, 9, 2, 6, 6, 3, 8)]


def generate(hf, sources, most, **more):
    longest = max(map(len, sources))
    ids = torch.tensor([s + [PAD] * (longest - len(s)) for s in sources])
    mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sources])
    closing = transformers.LogitsProcessorList([EndAtItsPrice(most)])
    return hf.generate(
        ids, attention_mask=mask, max_new_tokens=most, bad_words_ids=[[PAD]], logits_processor=closing,
        return_dict_in_generate=True, output_scores=True, **more,
    )  # fmt: skip


def plain(row):
    """Without the first token, the end and what follows it."""
    row = row.tolist()[1:]
    return row[: row.index(END)]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 1.3, -0.5])
def test_beam_search_is_that_of_transformers(hf, sources, alpha):
    most, width, nbest = 13, 5, 3
    theirs = generate(hf, sources, most, num_beams=width, length_penalty=alpha, early_stopping="never", num_return_sequences=nbest)
    ours = translate(
        Marian(hf), sources, Beam(size=width, length_penalty=Power(alpha), max_tokens=most, nbest=nbest), tokens=TOKENS, batch_tokens=40
    )
    assert [answer.ids for answers in ours for answer in answers] == [plain(row) for row in theirs.sequences]
    torch.testing.assert_close(
        torch.tensor([answer.score for answers in ours for answer in answers]), theirs.sequences_scores, atol=1e-5, rtol=1e-5
    )
    assert len({len(answer.ids) for answers in ours for answer in answers}) > 3  # the comparison saw long and short answers


def test_greedy_is_that_of_transformers(hf, sources):
    theirs = generate(hf, sources, 13, num_beams=1, do_sample=False)
    ours = translate(Marian(hf), sources, Beam(size=1, max_tokens=13), tokens=TOKENS)
    assert [answers[0].ids for answers in ours] == [plain(row) for row in theirs.sequences]


def test_batches_change_nothing(hf, sources):
    one_by_one = translate(Marian(hf), sources, Beam(size=3, max_tokens=13), tokens=TOKENS, batch_tokens=1, want_weights=True)
    together = translate(Marian(hf), sources, Beam(size=3, max_tokens=13), tokens=TOKENS, batch_tokens=10_000, want_weights=True)
    for (alone,), (among,), source in zip(one_by_one, together, sources, strict=True):
        assert alone.ids == among.ids
        assert alone.weights_LM.shape == (len(alone.ids) + 1, len(source))
        torch.testing.assert_close(alone.weights_LM, among.weights_LM, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.weights_LM.sum(-1), torch.ones(len(alone.ids) + 1))


def test_drawn_answers_do_not_depend_on_neighbours(hf, sources):
    options = Sampling(temperature=0.9, top_k=9, top_p=0.95, min_p=0.01, seed=3, max_tokens=12)
    alone = translate(Marian(hf), sources, options, tokens=TOKENS, batch_tokens=1)
    together = translate(Marian(hf), sources, options, tokens=TOKENS, batch_tokens=10_000)
    assert [answers[0].ids for answers in alone] == [answers[0].ids for answers in together]
    assert len({tuple(answers[0].ids) for answers in alone}) > 8
