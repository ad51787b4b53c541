"""What every language model must hold: one pass, a prompt cut anywhere, and single steps say the same; documents and rows stay apart."""

import math

import pytest
import torch
import torch.nn.functional as F

from regard.errors import BadConfig, DtypeError, ShapeError, StateNotSupported, UnknownName
from regard.kernels import smoothed_cross_entropy
from regard.models import MODELS, SIZES, LanguageModel, build, config_of, language, of_size

N, L = 17, 23
SMALL = {"vocab_size": N, "context_length": 40, "width": 12, "heads": 2, "depth": 2, "dropout": 0.0}
LINES = {
    "gpt": SMALL,
    "gpt2": SMALL,
    "gpt3": SMALL | {"head_dim": 5, "attention": ("softmax", "local(radius=3)")},
    "llama": SMALL | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "qkv_bias": True},
    "llama, tied": SMALL | {"heads": 3, "kv_heads": 3, "head_dim": 4, "hidden": 10, "tied": True},
    "llama, biases, positions in some layers": SMALL
    | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "out_bias": True, "rotated": (True, False), "norm": "layer", "part": 0.7},
    "granite": SMALL | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_divisor": 2.0},
    "mixtral": SMALL | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "experts": 4},
    "gpt_oss": SMALL
    | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "experts": 5, "attention": ("local(radius=3, sinks=2)", "softmax(sinks=2)")},
    "olmo2": SMALL | {"kv_heads": 1, "head_dim": 6, "hidden": 10},
    "gpt2, narrow": SMALL | {"hidden": 10, "activation": "relu", "tied": False},
    "opt": SMALL | {"hidden": 10},
    "gpt_neox": SMALL | {"heads": 3, "hidden": 10, "part": 0.5},
    "gpt_neox, in sequence": SMALL | {"heads": 3, "hidden": 10, "part": 1.0, "parallel": False, "tied": True, "kv_heads": 1},
    "gemma": SMALL
    | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "logit_softcap": 5.0, "attention": ("softmax(softcap=3.0)", "local(radius=3)")},
    "gemma, norms of q and k": SMALL | {"kv_heads": 1, "head_dim": 6, "hidden": 10, "qk_norm": True},
    **{f"rnn_lm, {cell}": {"vocab_size": N, "cell": cell, "embedding": 8, "width": 9, "depth": 2} for cell in ("rnn", "gru", "lstm")},
}
TRANSFORMERS = ["gpt", "gpt2", "gpt3", "llama"]
MECHANISMS = ["linear", "local", "streaming", "retention", "gated_delta", "sparse_fixed", "dense_synthesizer", "adaptive_span"]


def made(which: str, **changes) -> LanguageModel:
    torch.manual_seed(0)
    model = build(which.split(",")[0], LINES[which] | changes).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.fixture(params=LINES)
def model(request) -> LanguageModel:
    return made(request.param)


def text(rows: int, length: int = L, seed: int = 1) -> torch.Tensor:
    return torch.randint(N, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(mine, other):
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def read(model, ids, cuts, state=None):
    """The features of a text, read in pieces."""
    state = model.start(len(ids)) if state is None else state
    return torch.cat([model.features(piece, state=state) for piece in ids.split(cuts, 1)], 1)


class TestOneText:
    @pytest.mark.parametrize("cuts", [[L], [1] * L, [5, 1, 9, 8]], ids=str)
    def test_a_prompt_may_be_cut_anywhere(self, model, cuts):
        ids = text(3)
        close(read(model, ids, cuts), model.features(ids))

    def test_steps_say_what_one_pass_says(self, model):
        ids, state = text(2), model.start(2)
        logits = model(ids)
        assert logits.shape == (2, L, N)
        for t in range(L):
            step = model.step(ids[:, t], state)
            close(step.logits_BN, logits[:, t])
            assert step.weights_BM is None and state.position() == t + 1 == state.length

    def test_the_future_is_not_seen(self, model):
        ids = text(2)
        other = ids.clone()
        other[:, 11:] = (other[:, 11:] + 1) % N
        assert model.features(ids)[:, :11].equal(model.features(other)[:, :11])
        assert not model.features(ids)[:, 11:].allclose(model.features(other)[:, 11:])

    def test_the_loss_needs_no_logits(self, model):
        ids = text(2)
        if cap := getattr(model.config, "logit_softcap", None):
            assert 0.5 * cap < model(ids).abs().max() < cap  # more than a projection
            return
        total, _ = smoothed_cross_entropy(model.features(ids[:, :-1]).flatten(0, 1), *model.head(), ids[:, 1:].flatten())
        close(total / (2 * (L - 1)), F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))

    def test_it_learns(self, model):
        ids, optimizer = text(4, 12), torch.optim.Adam(model.train().parameters(), 0.02)
        losses = []
        for _ in range(60):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]

    def test_it_begins_guessing_evenly(self, model):
        fresh = build(*config_of(model))
        loss = F.cross_entropy(fresh(text(4)).flatten(0, 1), text(4, seed=2).flatten())
        assert abs(loss.item() - math.log(N)) < 0.4

    def test_it_goes_to_a_file_and_back(self, model):
        again = build(*config_of(model)).double().eval()
        assert again.config == model.config
        again.load_state_dict(model.state_dict())
        assert again(text(1)).equal(model(text(1)))

    def test_what_does_not_fit_is_named(self, model):
        with pytest.raises(ShapeError, match="batch of one"):
            model(text(1)[0])
        with pytest.raises(DtypeError, match="as integers"):
            model(text(1).double())
        with pytest.raises(ShapeError, match="segments or documents"):
            model(text(1), text(2))


class TestDocuments:
    NUMBERS = torch.tensor([[0] * 9 + [1] * 2 + [2] * 12, [5] * 23, [7] * 1 + [3] * 21 + [9] * 1])

    @pytest.mark.parametrize("padded", [0.0, 100.0], ids=["in their rows", "a row each"])
    def test_each_is_read_as_if_alone(self, model, padded, monkeypatch):
        monkeypatch.setattr(language, "PADDED", padded)
        ids, numbers = text(3), self.NUMBERS
        x = model.features(ids, numbers)
        for row in range(3):
            for number in numbers[row].unique():
                here = numbers[row] == number
                close(x[row, here], model.features(ids[row, here][None])[0])

    @pytest.mark.parametrize("name", MECHANISMS)
    def test_whatever_the_mechanism(self, name):
        self.test_each_is_read_as_if_alone(made("gpt2", attention=(name, "softmax")), 0.0, pytest.MonkeyPatch())

    def test_gradients_are_those_of_each_alone(self, model):
        ids, numbers = text(1), self.NUMBERS[:1]
        model.features(ids, numbers).square().sum().backward()
        together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        for number in numbers.unique():
            model.features(ids[:, numbers[0] == number]).square().sum().backward()
        for name, p in model.named_parameters():
            if name in together:
                close(p.grad, together[name])

    def test_not_with_a_state(self, model):
        with pytest.raises(StateNotSupported, match="reset"):
            model.features(text(1), torch.zeros(1, L, dtype=torch.long), model.start(1))


class TestRows:
    def joined(self, model):
        """Two that have read 9 tokens, and one that has read 4."""
        ids, state, other = text(3), model.start(2), model.start(1)
        model.features(ids[:2, :9], state=state)
        model.features(ids[2:, :4], state=other)
        return ids, state.join(other)

    @pytest.mark.parametrize("cuts", [[1] * 10, [10], [3, 7]], ids=str)
    def test_joined_rows_go_on_as_if_alone(self, model, cuts):
        ids, state = self.joined(model)
        assert state.batch == 3 and state.position() == (9, 9, 4)
        x = read(model, torch.stack([ids[0, 9:19], ids[1, 9:19], ids[2, 4:14]]), cuts, state)
        close(x[:2], model.features(ids[:2])[:, 9:19])
        close(x[2], model.features(ids[2:])[0, 4:14])

    def test_a_row_that_is_left_alone_goes_on(self, model):
        ids, state = self.joined(model)
        state.reorder(torch.tensor([2, 2]))
        assert state.batch == 2 and state.position() == 4 == state.length
        x = read(model, ids[[2, 2], 4:], [1] * 5 + [14], state)
        close(x, model.features(ids[[2, 2]])[:, 4:])

    def test_a_reset_row_begins_anew(self, model):
        ids, state = self.joined(model)
        state.reset(torch.tensor([1]))
        assert state.position() == (9, 0, 4)
        x = read(model, torch.stack([ids[0, 9:14], ids[1, :5], ids[2, 4:9]]), [2, 3], state)
        close(x[0], model.features(ids[:1])[0, 9:14])
        close(x[1], model.features(ids[1:2, :5])[0])
        close(x[2], model.features(ids[2:])[0, 4:9])

    def test_all_that_begin_anew_are_as_at_the_beginning(self, model):
        ids, state = self.joined(model)
        state.reset(torch.tensor([True, True, True]))
        assert state.position() == 0 == state.length
        close(read(model, ids, [11, 12], state), model.features(ids))

    def test_new_ones_join_again_and_again(self, model):
        """As a server does it: rows come and go while others go on."""
        ids, state = self.joined(model)
        model.features(torch.stack([ids[0, 9:11], ids[1, 9:11], ids[2, 4:6]]), state=state)
        state.reorder(torch.tensor([2, 0]))
        fresh = model.start(1)
        model.features(ids[1:2, :15], state=fresh)
        state.join(fresh)
        assert state.position() == (6, 11, 15)
        x = read(model, torch.stack([ids[2, 6:10], ids[0, 11:15], ids[1, 15:19]]), [1, 2, 1], state)
        for row, (who, n) in enumerate(((2, 6), (0, 11), (1, 15))):
            close(x[row], model.features(ids[[who]])[0, n : n + 4])


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("which", TRANSFORMERS)
def test_any_mechanism_in_each(which, name):
    fewer = {"kv_heads": 2} if which == "llama" else {}
    model, ids = made(which, attention=(name, "softmax"), **fewer), text(2)
    assert [block.mixer.attention.facts.name for block in model.blocks] == [name, "softmax"]
    close(read(model, ids, [7, 1, 15]), model.features(ids))
    TestRows().test_joined_rows_go_on_as_if_alone(model, [4, 6])


COUNTS = {
    "openai-gpt": 116_534_784,
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-small": 125_226_240,
    "gpt3-175b": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "qwen2-0.5b": 494_032_768,
    "zaremba-medium": 19_780_400,
    "zaremba-large": 66_034_000,
}
PAPER = {"gpt3-medium": 350e6, "gpt3-large": 760e6, "gpt3-2.7b": 2.7e9, "gpt3-6.7b": 6.7e9, "gpt3-13b": 13e9}  # as table 2.1 prints them


def count(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in of_size(name).parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_published_sizes(name):
    assert count(name) == COUNTS[name]


@pytest.mark.parametrize("name", PAPER)
def test_sizes_as_printed(name):
    assert abs(count(name) / PAPER[name] - 1) < 0.02


def test_sizes_are_found_by_name():
    assert {"gpt2-small", "gpt3-tiny", "bert-base", "transformer-base", "openai-gpt"} <= SIZES.keys()
    assert of_size("gpt3-tiny", vocab_size=9).config.vocab_size == 9
    with pytest.raises(UnknownName, match="gpt2-small"):
        of_size("gpt2-smal")
    with pytest.raises(UnknownName, match="did you mean 'width'"):
        of_size("gpt2-small", widht=3)


def test_every_language_model_is_tested_here():
    names = {model.facts.name for model in MODELS if issubclass(model, LanguageModel)}
    missing = names - {which.split(",")[0] for which in LINES}
    assert not missing, f"add a line to LINES in tests/models/test_language_models.py for {', '.join(missing)}"


@pytest.mark.parametrize(
    ("which", "wrong", "named"),
    [
        ("gpt2", {"attention": ()}, "names of mechanisms"),
        ("gpt2", {"width": 13}, "multiple of heads"),
        ("llama", {"kv_heads": 4, "heads": 6}, "divide"),
        ("llama", {"head_dim": 5}, "even"),
        ("rnn_lm, gru", {"tied": True}, "make them equal"),
    ],
)
def test_settings_that_make_no_sense(which, wrong, named):
    with pytest.raises(BadConfig, match=named):
        made(which, **wrong)


def test_places_end_where_they_are_learned():
    with pytest.raises(ShapeError, match="40 positions"):
        made("gpt2")(text(1, 41))
    assert made("llama")(text(1, 41)).shape == (1, 41, N)
