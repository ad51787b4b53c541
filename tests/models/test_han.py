"""The Hierarchical Attention Network: against the paper's formula one sentence at a time, against PyTorch's GRU and LSTM, and its weights."""

import pytest
import torch
from torch import nn

from regard.errors import BadConfig, ShapeError, UnknownName
from regard.look import capture
from regard.models import Classifier, build, config_of
from regard.models.text import Sentences

SETTINGS = {"vocab_size": 30, "embedding": 6, "width": 5, "hidden": 7, "dropout": 0.0}
DOCUMENTS = [[3, 1, 4], [7], [2, 2, 9, 1, 1, 5], [], [1]]  # tokens of each sentence


def model(**settings):
    torch.manual_seed(0)
    return build("han", {**SETTINGS, **settings}).double().eval()


def batch(documents, seed=0):
    """ids_BL with random padding, n_B and segment_BL."""
    generator = torch.Generator().manual_seed(seed)
    n_B = torch.tensor([sum(one) for one in documents])
    ids_BL = torch.randint(4, 30, (len(documents), max(int(n_B.max()), 1)), generator=generator)
    segment_BL = torch.randint(0, 3, ids_BL.shape, generator=generator)
    for row, one in enumerate(documents):
        segment_BL[row, : int(n_B[row])] = torch.arange(len(one)).repeat_interleave(torch.tensor(one, dtype=torch.long))
    return ids_BL, n_B, segment_BL


def torch_layer(ours):
    """PyTorch's layer with the same parameters: its gates are (r, z, n) and (i, f, g, o), ours (r, z, n) and (i, f, o, g)."""
    D, W = ours.weight_2DG.shape[1], ours.recurrent_2WG.shape[1]
    layer = {"gru": nn.GRU, "lstm": nn.LSTM}[ours.cell](D, W, batch_first=True, bidirectional=True).double()

    def ordered(x_G):
        return x_G if ours.cell == "gru" else torch.cat([*x_G.chunk(4)[:2], x_G.chunk(4)[3], x_G.chunk(4)[2]])

    with torch.no_grad():
        for direction, end in enumerate(("", "_reverse")):
            getattr(layer, f"weight_ih_l0{end}").copy_(ordered(ours.weight_2DG[direction].T))
            getattr(layer, f"weight_hh_l0{end}").copy_(ordered(ours.recurrent_2WG[direction].T))
            getattr(layer, f"bias_ih_l0{end}").copy_(ordered(ours.bias_2G[direction]))
            other = torch.zeros_like(ours.bias_2G[0]) if ours.recurrent_bias_2G is None else ours.recurrent_bias_2G[direction]
            getattr(layer, f"bias_hh_l0{end}").copy_(ordered(other))
    return layer


def by_the_formula(han, ids_L, lengths):
    """Equations 1 to 10, one sentence at a time, without padding."""

    def level(part, x_TD):
        h_TD = torch_layer(part.read)(x_TD[None])[0][0]
        if part.attention is None:
            return h_TD.mean(0) if han.config.pooling == "mean" else h_TD.amax(0)
        u_TK = torch.tanh(part.attention.key(h_TD))
        return torch.softmax(u_TK @ part.attention.query_RK[0], 0) @ h_TD

    words = han.token(ids_L).split(lengths)
    return level(han.sentences, torch.stack([level(han.words, x_TD) for x_TD in words]))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("pooling", ["attention", "mean", "max"])
def test_the_formula_of_the_paper(cell, pooling):
    han = model(cell=cell, pooling=pooling)
    ids_BL, n_B, segment_BL = batch(DOCUMENTS)
    found_BP = han.pool(ids_BL, n_B, segment_BL).vector_BP
    for row, lengths in enumerate(DOCUMENTS):
        if not lengths:
            assert not found_BP[row].any()  # a document without a word
            continue
        torch.testing.assert_close(found_BP[row], by_the_formula(han, ids_BL[row, : int(n_B[row])], lengths), atol=1e-12, rtol=1e-12)


def test_a_batch_equals_its_documents_one_by_one():
    han = model().float()
    ids_BL, n_B, segment_BL = batch(DOCUMENTS)
    together_BP = han.pool(ids_BL, n_B, segment_BL).vector_BP
    for row, n in enumerate(n_B.tolist()):
        alone = han.pool(ids_BL[row : row + 1, : max(n, 1)], n_B[row : row + 1], segment_BL[row : row + 1, : max(n, 1)]).vector_BP
        torch.testing.assert_close(together_BP[row], alone[0], atol=1e-6, rtol=0)
    changed = ids_BL.masked_fill(torch.arange(ids_BL.shape[1]) >= n_B[:, None], 0)  # what is in the padding has no effect
    assert torch.equal(together_BP, han.pool(changed, n_B, segment_BL).vector_BP)


def test_gradients_reach_real_tokens_only():
    han = model()
    ids_BL, n_B, segment_BL = batch([[2, 1], [1, 1]])
    real_BL = torch.arange(ids_BL.shape[1]) < n_B[:, None]
    ids_BL = torch.where(real_BL, ids_BL.clamp(max=28), 29)
    real = set(ids_BL[real_BL].tolist())
    han.pool(ids_BL, n_B, segment_BL).vector_BP.sum().backward()
    assert set(han.token.weight.grad.abs().sum(1).nonzero()[:, 0].tolist()) == real


def test_weights_sum_to_one_per_sentence_and_per_document():
    han, (ids_BL, n_B, segment_BL) = model(), batch(DOCUMENTS)
    with capture(han, dtype=torch.float64) as maps:
        han.pool(ids_BL, n_B, segment_BL)
    words, sentences = maps.all
    lengths = torch.tensor([n for one in DOCUMENTS for n in one])
    assert words.weights_BHLM.shape == (len(lengths), 1, 1, int(lengths.max()))
    torch.testing.assert_close(words.weights_BHLM.sum(-1), torch.ones(len(lengths), 1, 1, dtype=torch.float64))
    assert not words.weights_BHLM[:, 0, 0][torch.arange(words.keys) >= lengths[:, None]].any()  # none on padding
    counts = torch.tensor([len(one) for one in DOCUMENTS])
    torch.testing.assert_close(sentences.weights_BHLM.sum(-1)[:, 0, 0], (counts > 0).double())  # of a document without sentences, zeros
    assert not sentences.weights_BHLM[:, 0, 0][torch.arange(sentences.keys) >= counts[:, None]].any()


def test_sentences_of_a_batch_against_a_loop():
    ids_BL, n_B, segment_BL = batch(DOCUMENTS, seed=1)
    ids_T, n_R, count_B = Sentences.of(ids_BL, n_B, segment_BL)
    assert ids_T.tolist() == [token for row, n in zip(ids_BL.tolist(), n_B.tolist(), strict=True) for token in row[:n]]
    assert n_R.tolist() == [n for one in DOCUMENTS for n in one] and count_B.tolist() == [len(one) for one in DOCUMENTS]
    assert Sentences.of(ids_BL, n_B, None).n_R.tolist() == [n for n in n_B.tolist() if n]  # one sentence each


def test_a_long_document():
    """4,000 tokens in 100 sentences; and all of them in one."""
    han, ids_BL = model().float(), torch.randint(4, 30, (1, 4000))
    segment_BL = torch.arange(4000)[None] // 40
    with torch.no_grad():
        for segments in (segment_BL, torch.zeros_like(segment_BL), None):
            assert han.pool(ids_BL, None, segments).vector_BP.isfinite().all()


def test_settings_and_shapes():
    for wrong in ({"cell": "rnn"}, {"pooling": "last"}):
        with pytest.raises(UnknownName):
            model(**wrong)
    with pytest.raises(BadConfig, match="sentence_length=0"):
        model(sentence_length=0)
    han = model()
    with pytest.raises(ShapeError):
        han.pool(torch.zeros(2, 3, dtype=torch.long), torch.tensor([3]))
    assert config_of(build(*config_of(han)))[1] == config_of(han)[1]
    assert Classifier(han, 3).double()(*batch([[2], [1, 1]])).shape == (2, 3)
