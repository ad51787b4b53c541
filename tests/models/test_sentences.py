"""Sentence encoders and ESIM: padding, pairs, alignment by the plain formula, embeddings, settings, what they refuse."""

import pytest
import torch
import torch.nn.functional as F

from regard import capture
from regard.errors import BadConfig, NotSupported, ShapeError, UnknownName
from regard.layers import max_pool, mean_pool
from regard.models import MODELS, SIZES, Classifier, DocumentModel, TextEncoder, TextModel, build, config_of, of_size
from regard.models.sentence import join_rows, read_texts

N, E, W, H = 20, 5, 6, 7
SIZE = {"vocab_size": N, "max_length": 16, "embedding": E, "width": W, "hidden": H}
SMALL = {
    "max": ("infersent", {}),
    "mean": ("infersent", {"pooling": "mean"}),
    "last": ("infersent", {"pooling": "last"}),
    "inner": ("infersent", {"pooling": "inner", "views": 3}),
    "inner, a pair": ("infersent", {"pooling": "inner", "views": 3, "texts": 2}),
    "a pair without hidden units": ("infersent", {"texts": 2, "hidden": 0}),
    "self-attentive": ("self_attentive", {"queries": 3, "key_size": 4}),
    "self-attentive, a pair": ("self_attentive", {"queries": 3, "key_size": 4, "texts": 2}),
    "esim": ("esim", {}),
    "esim with the mean": ("esim", {"attention": "softmax(scale=0)"}),
}
every = pytest.mark.parametrize("name", SMALL)


def made(name):
    torch.manual_seed(0)
    kind, settings = SMALL[name]
    return build(kind, {**SIZE, **settings}).double().eval()


def batch():
    torch.manual_seed(1)
    n_B = torch.tensor([9, 6, 7])
    segment_BL = torch.tensor([[0] * 4 + [1] * 5, [0] * 4 + [1] * 5, [0] * 2 + [1] * 7])
    return torch.randint(3, N, (3, 9)), n_B, segment_BL


def test_every_model_of_sentences_is_tested_here():
    others = {model for model in MODELS if issubclass(model, TextModel) and not issubclass(model, TextEncoder | DocumentModel)}
    missing = {model.facts.name for model in others} - {kind for kind, _ in SMALL.values()}
    assert not missing, f"add a line to SMALL in tests/models/test_sentences.py for {', '.join(missing)}"


@every
def test_a_batch_is_what_its_rows_are(name):
    model, (ids_BL, n_B, segment_BL) = made(name), batch()
    whole = model.pool(ids_BL, n_B, segment_BL).vector_BP
    assert whole.shape == (3, model.pooled_width)
    for b, n in enumerate(n_B.tolist()):
        alone = model.pool(ids_BL[b : b + 1, :n], None, segment_BL[b : b + 1, :n]).vector_BP
        torch.testing.assert_close(whole[b], alone[0], atol=1e-12, rtol=0)
    single = build(*config_of(model)).eval()
    single.load_state_dict(model.state_dict())
    torch.testing.assert_close(single.pool(ids_BL, n_B, segment_BL).vector_BP.double(), whole, atol=1e-6, rtol=0)


@every
def test_every_parameter_learns(name):
    model, (ids_BL, n_B, segment_BL) = made(name).train(), batch()
    vector_BP, penalty_B = model.pool(ids_BL, n_B, segment_BL)
    (vector_BP.square().sum() + (0 if penalty_B is None else penalty_B.sum())).backward()
    assert [path for path, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ["inner, a pair", "self-attentive, a pair", "a pair without hidden units"])
def test_features_of_a_pair(name):
    model, (ids_BL, n_B, segment_BL) = made(name), batch()
    u, v = (model.encode(rows).vector_BP for rows in read_texts(model, ids_BL, n_B, segment_BL, 2))
    features = torch.cat([u, v, (u - v).abs(), u * v], -1)
    expected = features if model.hidden is None else model._activation(model.hidden(features))
    torch.testing.assert_close(model.pool(ids_BL, n_B, segment_BL).vector_BP, expected)


def test_the_same_text_twice_has_the_same_vector():
    model, text = made("inner, a pair"), torch.tensor([5, 6, 7, 2])
    ids_BL, segment_BL = torch.cat([torch.tensor([1]), text, text])[None], torch.tensor([[0] * 5 + [1] * 4])
    first, second = read_texts(model, ids_BL, None, segment_BL, 2)
    assert torch.equal(first.ids_RM, second.ids_RM)
    assert torch.equal(model.encode(first).vector_BP, model.encode(second).vector_BP)
    expected = F.normalize(model.encode(first).vector_BP, dim=-1)
    torch.testing.assert_close(model.sentence_embeddings(ids_BL[:, :5]), expected)  # of the text alone


def test_the_penalty_counts_in_training_only():
    model, (ids_BL, n_B, segment_BL) = made("self-attentive, a pair"), batch()
    assert model.pool(ids_BL, n_B, segment_BL).penalty_B is None
    texts = read_texts(model, ids_BL, n_B, segment_BL, 2)
    both = join_rows(texts)
    a_RQM = model.attention.weights(model.read(model.token(both.ids_RM), both.n_R), both.n_R)
    by_row = torch.stack([torch.linalg.matrix_norm(a @ a.T - torch.eye(3)) ** 2 for a in a_RQM])
    model.train()
    model.dropout.eval()
    penalty_B = model.pool(ids_BL, n_B, segment_BL).penalty_B
    torch.testing.assert_close(penalty_B, model.config.penalty * (by_row[:3] + by_row[3:]))


# -- ESIM --------------------------------------------------------------------------------------------------------------


def test_esim_is_the_plain_formula():
    model, (ids_BL, n_B, segment_BL) = made("esim"), batch()
    found = model.pool(ids_BL, n_B, segment_BL).vector_BP
    for b, n in enumerate(n_B.tolist()):
        first = int((segment_BL[b, :n] == 0).sum())
        a, c = (model.token(ids)[None] for ids in (ids_BL[b, 1:first], ids_BL[b, first:n]))
        (a,), (c,) = (model.read(x, torch.tensor([x.shape[1]])) for x in (a, c))
        scores = a @ c.T  # one matrix, softmax over both of its axes
        soft_a, soft_c = scores.softmax(1) @ c, scores.softmax(0).T @ a
        pooled = []
        for x, soft in ((a, soft_a), (c, soft_c)):
            m = torch.relu(model.compare(torch.cat([x, soft, x - soft, x * soft], -1)))[None]
            v, length = model.compose(m, torch.tensor([m.shape[1]])), torch.tensor([m.shape[1]])
            pooled += [mean_pool(v, length), max_pool(v, length)]
        torch.testing.assert_close(found[b], torch.tanh(model.hidden(torch.cat(pooled, -1)))[0])


def test_swapping_the_texts_swaps_the_alignment():
    model, n_R = made("esim"), torch.tensor([5, 3, 4, 2])
    a_TD, b_TD = torch.randn(8, 2 * W, dtype=torch.float64), torch.randn(6, 2 * W, dtype=torch.float64)
    soft_a, soft_b = model._align(torch.cat([a_TD, b_TD]), n_R).split([8, 6])
    other_b, other_a = model._align(torch.cat([b_TD, a_TD]), n_R.roll(2)).split([6, 8])
    assert torch.equal(soft_a, other_a) and torch.equal(soft_b, other_b)


def test_the_alignment_is_captured_in_both_directions():
    model, (ids_BL, _n_B, segment_BL) = made("esim"), batch()
    with capture(model) as maps, torch.no_grad():
        model.pool(ids_BL[:1], None, segment_BL[:1])
    first, second = maps["first_to_second"][0], maps["second_to_first"][0]
    assert first.weights_BHLM.shape == (1, 1, 3, 5) and second.weights_BHLM.shape == (1, 1, 5, 3)  # without the begin token
    axes = model.axes(segment_BL[0].tolist())
    assert axes["first_to_second"][0].queries == [1, 2, 3] and axes["first_to_second"][0].keys == [4, 5, 6, 7, 8]


def test_the_mean_takes_the_place_of_the_alignment():
    model, (ids_BL, _n_B, segment_BL) = made("esim with the mean"), batch()
    with capture(model) as maps, torch.no_grad():
        model.pool(ids_BL[:1], None, segment_BL[:1])
    assert torch.allclose(maps["first_to_second"][0].weights_BHLM, torch.tensor(1 / 5))


# -- sizes and refusals ------------------------------------------------------------------------------------------------


def test_published_sizes():
    with torch.device("meta"):
        found = {
            name: sum(p.numel() for path, p in of_size(name).named_parameters() if path != "token.weight")
            for name in ("infersent-paper", "esim-paper")
        }
    W, D = 2048, 300
    assert found["infersent-paper"] == 2 * 4 * W * (D + W + 1) + 512 * (4 * 2 * W + 1)  # one bias per gate
    assert 4.2e6 < found["esim-paper"] < 4.4e6  # the paper: 4.3 million
    assert SIZES["self-attentive-paper"].queries == 30


def test_what_is_refused():
    ids_BL, n_B, segment_BL = batch()
    with pytest.raises(ShapeError, match="esim reads pairs; give segment_BL"):
        made("esim").pool(ids_BL, n_B)
    with pytest.raises(ShapeError, match="at least a begin and an end token"):
        made("max").pool(ids_BL[:, :1])
    with pytest.raises(UnknownName, match="'average'"):
        build("infersent", {**SIZE, "pooling": "average"})
    with pytest.raises(BadConfig, match="texts=3"):
        build("infersent", {**SIZE, "texts": 3})
    with pytest.raises(UnknownName, match="mechanism"):
        build("esim", {**SIZE, "attention": "dots"})
    with pytest.raises(NotSupported, match="labels of words need"):
        Classifier(made("max"), 3, each=True)
