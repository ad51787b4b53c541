"""Gradients with respect to the inputs are those of finite differences; they follow ablations, and reach the explorer's format."""

import numpy as np
import pytest
import torch
from torch import nn

from regard.attention import SoftmaxAttention
from regard.errors import NotSupported, UnknownName
from regard.look import Maps, capture
from regard.look.explorer import Recording, record
from regard.look.gradients import InputGradients, next_token_gradients
from regard.look.html import pack
from regard.look.interventions import Ablation, ablate
from regard.models import build

SIZES = {"vocab_size": 23, "context_length": 16, "width": 24, "heads": 3, "depth": 2}
RECURRENT = {"vocab_size": 23, "context_length": 16, "width": 20, "embedding": 12}


def language_model(name: str):
    torch.manual_seed(0)
    model = build(name, RECURRENT if name == "rnn_lm" else SIZES).eval().double()
    for parameter in model.parameters():
        parameter.data *= 2
    return model, torch.randint(23, (1, 9))


def captured(model, ids_1L) -> Maps:
    with torch.no_grad(), capture(model) as maps:
        x_1LD = model.features(ids_1L)
    maps.gradients = next_token_gradients(model, ids_1L, x_1LD, lambda ids: [f"t{n}" for n in ids], maps.layers)
    return maps


def slow_gradients(model, embedding: nn.Embedding, log_probability, tokens: int, epsilon: float = 1e-4):
    """∂ log p / ∂ e by central differences: the rows that the embedding gives are moved, one coordinate at a time."""
    width, found = embedding.embedding_dim, torch.zeros(tokens, embedding.embedding_dim, dtype=torch.float64)
    moved = torch.zeros(1, tokens, width, dtype=torch.float64)
    handle = embedding.register_forward_hook(lambda module, args, out: out + moved if out.shape == moved.shape else None)
    with torch.no_grad():
        for j in range(tokens):
            for d in range(width):
                sides = []
                for sign in (1, -1):
                    moved[0, j, d] = sign * epsilon
                    sides.append(float(log_probability()))
                    moved[0, j, d] = 0
                found[j, d] = (sides[0] - sides[1]) / (2 * epsilon)
    handle.remove()
    return found


@pytest.mark.parametrize("name", ["gpt2", "rnn_lm"])
def test_they_are_those_of_finite_differences(name):
    model, ids_1L = language_model(name)
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding) and module.num_embeddings == 23)
    i, wanted = 5, ids_1L[0, 6]

    @torch.no_grad()
    def log_probability():
        return float(model(ids_1L)[0, i].log_softmax(-1)[wanted])

    with torch.no_grad():
        gradients = next_token_gradients(model, ids_1L, model.features(ids_1L), lambda ids: [str(n) for n in ids], ())
    slow_MD = slow_gradients(model, embedding, log_probability, ids_1L.shape[1])
    (row,) = gradients.rows([i])
    torch.testing.assert_close(row.norm[0], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(row.times_input[0], (slow_MD * embedding(ids_1L)[0]).sum(-1).detach(), atol=1e-7, rtol=1e-5)
    assert row.log_probability == pytest.approx(log_probability())
    assert float(row.norm[0][i + 1 :].abs().max()) == 0 and bool((row.norm[0][: i + 1] > 0).all())  # the future has no influence
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_last_output_is_the_most_likely_next_token():
    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients
    assert gradients.outputs[-1] == f"t{int(model(ids_1L)[0, -1].argmax())}" and gradients.outputs[0] == f"t{int(ids_1L[0, 1])}"
    with pytest.raises(UnknownName):
        gradients.rows([9])


def test_source_and_target_of_a_translator_have_their_own():
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 17, "target_vocab_size": 17, "width": 12, "heads": 2, "depth": (1, 1), "hidden": 16}
    model = build("transformer", sizes).eval().double()  # one embedding for both
    source, n, target = torch.tensor([[5, 3, 9, 2]]), torch.tensor([4]), torch.tensor([[1, 7, 7, 4, 8]])
    wanted_L = torch.tensor([7, 7, 4, 8, 2])
    gradients = InputGradients(model, (source, target), lambda model: model.features(source, n, target)[0], wanted_L, list("abcde"), {})
    (row,) = gradients.rows([2])

    def log_probability():
        return model(source, n, target)[0, 2].log_softmax(-1)[4]

    for number, tokens in enumerate((4, 5)):
        slow_MD = slow_gradients(model, model.embedding.token, log_probability, tokens)
        torch.testing.assert_close(row.norm[number], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)
    assert float(row.norm[1][3:].max()) == 0


def test_they_follow_an_ablation():
    from contextlib import contextmanager

    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients

    @contextmanager
    def ablated():
        with ablate(model, [Ablation("blocks.0.mixer.attention", head) for head in range(3)]):
            yield model

    ((plain,), (changed,)) = gradients.rows([6]), gradients.within(ablated).rows([6])
    assert not torch.allclose(plain.norm[0], changed.norm[0]) and plain.log_probability != changed.log_probability
    assert gradients.rows([6])[0].log_probability == plain.log_probability


def test_a_text_that_is_too_long_and_a_model_without_them_are_refused(monkeypatch):
    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients
    monkeypatch.setattr("regard.look.gradients.LONGEST", 8)
    with pytest.raises(NotSupported, match="at most 8 inputs"):
        gradients.rows([0])
    attention = SoftmaxAttention()
    with pytest.raises(NotSupported, match="no gradient"):
        InputGradients(attention, (ids_1L,), lambda model: torch.zeros(9, 4), ids_1L[0], list("abcdefghi"), {}).rows([0])


def test_the_format_has_a_row_per_query_and_files_only_when_asked():
    model, ids_1L = language_model("gpt2")
    maps = captured(model, ids_1L)
    recording = Recording(maps)
    header = recording.header()
    layer = header["maps"][1]
    assert header["labels"][layer["outputs"]] == maps.gradients.outputs
    assert header["maps"][-1]["derived"] and header["maps"][-1]["outputs"] is not None  # a rollout can be compared, too
    piece = torch.from_numpy(np.frombuffer(recording.piece("gradients/1/4"), "<f4").copy())
    (row,) = maps.gradients.rows([4])
    torch.testing.assert_close(piece, torch.cat([torch.tensor([row.log_probability]), row.norm[0], row.times_input[0]]).float())
    with pytest.raises(UnknownName):
        recording.piece("gradients/1/9")
    without, with_all = (pack(record(maps), gradients=wanted) for wanted in (False, True))
    assert len(with_all) > len(without)
