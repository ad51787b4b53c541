"""Readers: what all of them share, and SAN's parts against their formulas."""

import pytest
import torch

from regard import capture
from regard.errors import NotSupported, ShapeError
from regard.models import MODELS, SAN, Bert, BertConfig, Classifier, Reader, SANConfig, SpanReader, body_of, build, config_of
from regard.models.reader import NEVER, answer_positions, log_mean

N, L = 40, 15


def sharp(model):
    """With parameters so large that no distribution is near uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    return model


SMALL = {
    "san": sharp(SAN(SANConfig(vocab_size=N, embedding=7, width=5, steps=3))),
    "san, one step": sharp(SAN(SANConfig(vocab_size=N, embedding=7, width=5, steps=1, aligned=False, exact_match=False))),
    "span head on bert": sharp(SpanReader(Bert(BertConfig(vocab_size=N, width=12, heads=3, hidden=14, depth=2, max_length=L)))),
}


def batch():
    """Three rows of question and passage; the last has an empty question."""
    generator = torch.Generator().manual_seed(1)
    ids_BL, n_B, asked_B = torch.randint(4, N, (3, L), generator=generator), torch.tensor([L, 9, 11]), torch.tensor([6, 4, 2])
    segment_BL = ((torch.arange(L) >= asked_B[:, None]) & (torch.arange(L) < n_B[:, None])).long()
    return ids_BL, n_B, segment_BL


@pytest.fixture(params=SMALL)
def model(request) -> Reader:
    return SMALL[request.param].eval()


def test_every_reader_is_tested_here():
    missing = {kind for kind in MODELS if issubclass(kind, Reader)} - {type(model) for model in SMALL.values()}
    assert not missing, f"add a line to SMALL in tests/models/test_readers.py for {', '.join(kind.__name__ for kind in missing)}"


@torch.no_grad()
def test_probabilities_are_over_the_passage_and_no_answer(model):
    reading = model(*batch())
    for log_p_BL in reading:
        torch.testing.assert_close(log_p_BL.exp().sum(1), torch.ones(3))
        assert torch.equal(log_p_BL > -torch.inf, answer_positions(*batch()[1:]))
    assert answer_positions(*batch()[1:])[1].nonzero().flatten().tolist() == [0, 4, 5, 6, 7]  # 8 is the end token


@torch.no_grad()
def test_a_batch_equals_its_rows_one_by_one(model):
    ids_BL, n_B, segment_BL = batch()
    together = model(ids_BL, n_B, segment_BL)
    other = model(torch.where(torch.arange(L) < n_B[:, None], ids_BL, (ids_BL + 5) % N), n_B, segment_BL)
    for row, n in enumerate(n_B.tolist()):
        alone = model(ids_BL[row : row + 1, :n], n_B[row : row + 1], segment_BL[row : row + 1, :n])
        for mine, whole, changed in zip(alone, together, other, strict=True):
            torch.testing.assert_close(mine[0].exp(), whole[row, :n].exp(), atol=1e-6, rtol=0)
            torch.testing.assert_close(changed[row, :n].exp(), whole[row, :n].exp(), atol=1e-6, rtol=0)  # padding is never read


def test_it_learns_everywhere(model):
    model = SpanReader(build(*config_of(body_of(model)))) if isinstance(model, SpanReader) else build(*config_of(model))
    start_BL, end_BL = model.train()(*batch())
    (-start_BL[:, 0] - end_BL[torch.arange(3), batch()[1] - 2]).sum().backward()
    heads = ("body.pooler", "body.mlm", "body.nsp")  # of pretraining
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert [name for name in without if not name.startswith(heads)] == []


def test_shapes_and_bodies_are_checked(model):
    ids_BL, n_B, segment_BL = batch()
    with pytest.raises(ShapeError, match="one length per row"):
        model(ids_BL, n_B[:2], segment_BL)
    with pytest.raises(ShapeError, match="token ids"):
        model(ids_BL, n_B, segment_BL[:, :3])
    with pytest.raises(NotSupported, match="expected an encoder"):
        SpanReader(build("gpt2", vocab_size=N, width=12, heads=3, depth=1))
    assert float(model.threshold) == NEVER and "threshold" in model.state_dict()  # it is saved with the parameters


def test_a_head_over_a_body():
    reader = SMALL["span head on bert"]
    assert body_of(reader) is reader.body and body_of(reader.body) is reader.body and reader.max_length == L
    assert body_of(Classifier(reader.body, 2)) is reader.body
    other = reader.with_attention("linear")
    assert other.config == other.body.config != reader.config and torch.equal(other.output.weight, reader.output.weight)


# -- the average of the steps ------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_average_is_of_probabilities():
    model = SMALL["san"].eval()
    steps, reading = model.steps(*batch()), model(*batch())
    assert steps.start_BL.shape == (3, 3, L)
    for each, mean in zip(steps, reading, strict=True):
        torch.testing.assert_close(mean.exp(), each.exp().mean(0))
        assert not torch.allclose(mean.exp(), each.mean(0).exp(), atol=1e-5)  # the mean of logs is something else


def test_log_mean_of_the_steps_that_are_kept():
    p_TBL = torch.tensor([[[0.5, 0.5, 0.0]], [[0.1, 0.9, 0.0]], [[0.2, 0.8, 0.0]]], requires_grad=True)
    keep_TB = torch.tensor([[True], [False], [True]])
    found = log_mean(p_TBL.log(), keep_TB)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.35, 0.65, 0.0]]))
    found[0, 0].backward()
    assert p_TBL.grad is not None and p_TBL.grad[:2, 0, 0].tolist() == pytest.approx([1 / 0.7, 0])


def test_prediction_dropout_keeps_a_step():
    torch.manual_seed(0)
    model = SAN(SANConfig(vocab_size=N, embedding=3, width=2, steps=4, prediction_dropout=0.9)).train()
    keep_TB = model._kept(4, 2000, torch.device("cpu"))
    assert keep_TB.any(0).all() and abs(float(keep_TB.float().mean()) - (4 * 0.1 + 0.9**4) / 4) < 0.02
    assert model.eval()._kept(4, 5, torch.device("cpu")) is None
    few = SAN(SANConfig(vocab_size=N, embedding=3, width=2, prediction_dropout=0.0)).train()
    assert few._kept(4, 5, torch.device("cpu")) is None


# -- SAN's parts -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_self_attention_has_no_diagonal():
    model = SMALL["san"].eval()
    with capture(model) as maps:
        model(*batch())
    (within,) = maps["to_passage"]
    weights_BLM, n_B = within.weights_BHLM[:, 0], (answer_positions(*batch()[1:])).sum(1)
    assert weights_BLM.diagonal(dim1=1, dim2=2).abs().max() == 0
    for row, n in enumerate(n_B.tolist()):
        torch.testing.assert_close(weights_BLM[row, :n, :n].sum(-1), torch.ones(n))
        assert weights_BLM[row, :, n:].abs().max() == 0 if n < weights_BLM.shape[2] else True


@torch.no_grad()
def test_the_answer_module_by_its_formula():
    """Step by step, without batches of padding: s₀ from the question, x from the memory, start, and end given the start."""
    model = SMALL["san"].eval()
    ids_BL, n_B, segment_BL = (x[:1] for x in batch())
    texts = model._split(ids_BL, n_B, segment_BL)
    question_BMD, passage_BPD = model._encode(texts)
    h_MD, m_PD = question_BMD[0], model._memory(question_BMD, passage_BPD, texts)[0]
    D = m_PD.shape[1]
    s_D = (h_MD @ model.summary_D).softmax(0) @ h_MD
    for step in range(3):
        if step:
            x_D = (m_PD @ model.query.weight @ s_D / D**0.5).softmax(0) @ m_PD
            s_D = model.recur(x_D[None], s_D[None])[0]
        start_P = (m_PD @ model.start.weight @ s_D).softmax(0)
        end_P = (m_PD @ model.end.weight @ torch.cat([s_D, start_P @ m_PD])).softmax(0)
        found = model.steps(ids_BL, n_B, segment_BL)
        torch.testing.assert_close(found.start_BL[step, 0].exp()[texts.at_BP[0]], start_P)
        torch.testing.assert_close(found.end_BL[step, 0].exp()[texts.at_BP[0]], end_P)


@torch.no_grad()
def test_question_and_passage_are_told_apart():
    ids_BL, n_B, segment_BL = batch()
    texts = SMALL["san"]._split(ids_BL, n_B, segment_BL)
    assert texts.question_n_B.tolist() == [4, 2, 0] and texts.passage_n_B.tolist() == [9, 5, 9]  # no BOS, EOS; the passage with position 0
    assert texts.question_BM[0].tolist() == ids_BL[0, 1:5].tolist() and texts.at_BP[1, :5].tolist() == [0, 4, 5, 6, 7]
