"""What every translator promises, over the list and over the variants of each."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from regard import MECHANISMS, HardAttention, StepState, catalogue
from regard.errors import BadConfig, DtypeError, PatternNotSupported, RegardError, ShapeError, StateNotSupported, UnknownName
from regard.models import (
    MODELS,
    BartConfig,
    LuongConfig,
    RNNsearch,
    RNNsearchConfig,
    Seq2Seq,
    Seq2SeqConfig,
    T5Config,
    TransformerConfig,
    Translator,
    build,
    config_of,
)
from regard.patterns import causal, lengths
from regard.train.parameters import parameters_of

B, M, L, SOURCE, TARGET = 3, 7, 5, 13, 17  # all different: a swapped axis cannot pass by luck
LENGTHS = (4, 7, 2)

seq2seq = Seq2SeqConfig(source_vocab_size=SOURCE, target_vocab_size=TARGET, embedding=6, width=10)
rnnsearch = RNNsearchConfig(source_vocab_size=SOURCE, target_vocab_size=TARGET, embedding=6, width=10, alignment=9, maxout=8)
luong = LuongConfig(source_vocab_size=SOURCE, target_vocab_size=TARGET, embedding=6, width=10, max_length=11, radius=2)
transformer = TransformerConfig(
    source_vocab_size=SOURCE, target_vocab_size=TARGET, width=12, heads=3, depth=(2, 3), hidden=14, tied="output", max_length=11
)

shared = {"source_vocab_size": TARGET, "target_vocab_size": TARGET, "tied": "all", "width": 12, "heads": 3, "depth": (2, 3), "hidden": 14}
bart = BartConfig(**shared, max_length=11)
t5 = T5Config(**shared, head_dim=4, buckets=8, furthest=10, max_length=11)

DEFAULTS = {"seq2seq": seq2seq, "rnnsearch": rnnsearch, "luong": luong, "transformer": transformer, "bart": bart, "t5": t5}
VARIANTS = DEFAULTS | {
    "seq2seq rnn": replace(seq2seq, cell="rnn", reverse_source=False, feed_thought=False),
    "seq2seq gru both ways": replace(seq2seq, cell="gru", bidirectional=True, depth=1),
    "seq2seq lstm both ways": replace(seq2seq, bidirectional=True, reverse_source=False),
    "rnnsearch one way": replace(rnnsearch, bidirectional=False),
    "rnnsearch reset after": replace(rnnsearch, reset_after=True, output_state="previous"),
    "rnnsearch softmax": replace(rnnsearch, attention="softmax"),
    "rnnsearch counting": replace(rnnsearch, attention="local_monotonic"),
    "luong both ways": replace(luong, bidirectional=True, cell="gru", depth=1, reverse_source=False),
    "luong rnn": replace(luong, cell="rnn"),
    **{
        f"luong {name}{'' if feeding else ' parallel'}": replace(luong, attention=name, feeding=feeding)
        for name in ("dot", "general", "concat", "location", "local_monotonic", "local_predictive", "local_predictive_general")
        for feeding in (True, False)
    },
    "transformer post": replace(transformer, placement="post", tied="none", position="learned"),
    "transformer rotary": replace(transformer, position="rotary"),
    "transformer shared": replace(transformer, source_vocab_size=TARGET, tied="all", position="none"),
}
UNNORMALISED = {f"luong {name}{how}" for name in ("local_predictive", "local_predictive_general") for how in ("", " parallel")}
every = pytest.mark.parametrize("name", VARIANTS)


def made(config, dtype=torch.float64):
    """A model whose every parameter matters: no zeros, no ones."""
    model = build({type(c): n for n, c in DEFAULTS.items()}[type(config)], vars(config)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch():
    generator = torch.Generator().manual_seed(1)
    source_BM = torch.randint(4, SOURCE, (B, M), generator=generator)
    target_BL = torch.randint(4, TARGET, (B, L), generator=generator)
    return source_BM, torch.tensor(LENGTHS), target_BL


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


# -- the two ways agree ------------------------------------------------------------------------------------------------


@every
def test_teacher_forcing_is_step_by_step(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    with torch.no_grad():
        whole = model(source, n, target)
        state = model.start(source, n)
        steps = [model.step(token, state) for token in target.unbind(1)]
    assert whole.shape == (B, L, TARGET)
    assert state.length == L and state.batch == B
    close(torch.stack([s.logits_BN for s in steps], 1), whole)
    assert all(s.weights_BM is None for s in steps)


@every
def test_joined_rows_go_on_as_if_alone(name):
    """Sources of different lengths, and targets of which one is two words ahead."""
    model, (source, n, target) = made(VARIANTS[name]), batch()
    with torch.no_grad():
        whole = model(source, n, target)
        ahead, behind = model.start(source[1:2, :7], n[1:2]), model.start(source[[0, 2], :4], n[[0, 2]])
        for t in range(2):
            model.step(target[1:2, t], ahead)
        state = ahead.join(behind)
        assert state.batch == 3 and state.position() == (2, 0, 0)
        for t in range(3):
            logits = model.step(torch.stack([target[1, t + 2], target[0, t], target[2, t]]), state).logits_BN
            close(logits, torch.stack([whole[1, t + 2], whole[0, t], whole[2, t]]))


@every
def test_logits_are_features_through_the_head(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    weight_ND, bias_N = model.head()
    features = model.features(source, n, target)
    assert weight_ND.shape == (TARGET, features.shape[-1])
    assert any(weight_ND is parameter for parameter in model.parameters())
    close(F.linear(features, weight_ND, bias_N), model(source, n, target))


@every
def test_real_features_are_features_without_padding(name):
    """Packed or not: the same numbers, and the same gradients of every parameter."""
    model, (source, n, target) = made(VARIANTS[name]), batch()
    target_n = torch.tensor([L, 1, L - 2, 3])[:B]
    real = torch.arange(L) < target_n[:, None]
    packed, padded = model.real_features(source, n, target, target_n), model.features(source, n, target)[real]
    close(packed, padded)
    cotangent = torch.randn_like(packed)
    gradients = [torch.autograd.grad(x, list(model.parameters()), cotangent, allow_unused=True) for x in (packed, padded)]
    for one, two in zip(*gradients, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            close(one, two)


@every
def test_padding_never_enters(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    with torch.no_grad():
        together = model(source, n, target)
        for row, length in enumerate(LENGTHS):
            alone = model(source[row : row + 1, :length], n[row : row + 1], target[row : row + 1])
            close(together[row], alone[0])
        other = source.clone()
        for row, length in enumerate(LENGTHS):
            other[row, length:] = 0
        assert torch.equal(model(other, n, target), together)


@every
def test_the_future_is_not_seen(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    other = target.clone()
    other[:, 3:] = (other[:, 3:] + 1) % TARGET
    with torch.no_grad():
        before, after = model(source, n, target), model(source, n, other)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all()


@every
def test_source_words_and_their_order_matter(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    other = source.clone()
    other[:, [0, 1]] = source[:, [1, 0]]
    with torch.no_grad():
        same = torch.isclose(model(source, n, target), model(other, n, target)).all(-1).all(-1)
    assert same.all() if name == "transformer shared" else not same.any()  # that one has no positions


# -- states ------------------------------------------------------------------------------------------------------------


@every
def test_beams_are_followed(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    rows = torch.tensor([2, 0, 0, 1, 2])
    with torch.no_grad():
        whole = model(source, n, target)
        state = model.start(source, n)
        for t in range(2):
            model.step(target[:, t], state)
        assert state.reorder(rows) is state and state.batch == 5
        for t in range(2, L):
            step = model.step(target[rows, t], state, want_weights=True)
            close(step.logits_BN, whole[rows, t])
        assert step.weights_BM is None or step.weights_BM.shape == (5, M)


@every
def test_rows_begin_anew(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    rows, chosen = torch.tensor([2, 0, 1, 1]), torch.tensor([False, True, False, True])
    with torch.no_grad():
        whole = model(source, n, target)[rows]
        state = model.start(source, n)
        for t in range(2):
            model.step(target[:, t], state)
        state.reorder(rows).reset(chosen).detach()
        for t in range(2, L):
            logits = model.step(torch.where(chosen, target[rows, t - 2], target[rows, t]), state).logits_BN
            close(logits[~chosen], whole[~chosen, t])
            close(logits[chosen], whole[chosen, t - 2])


@every
def test_detach_cuts_the_past(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    state = model.start(source, n)
    model.step(target[:, 0], state)
    state.detach()
    model.step(target[:, 1], state).logits_BN.sum().backward()
    encoder = [p.grad for p in model.encoder.parameters()]
    assert all(g is None for g in encoder)
    assert model.head()[0].grad is not None


@every
def test_where_a_step_looked(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    with torch.no_grad():
        plain, asked = model.start(source, n), model.start(source, n)
        for token in target.unbind(1):
            without, step = model.step(token, plain), model.step(token, asked, want_weights=True)
            close(step.logits_BN, without.logits_BN)  # asking changes nothing, now or later
            if isinstance(model, Seq2Seq):
                assert step.weights_BM is None
                continue
            weights = step.weights_BM
            assert weights.shape == (B, M) and (weights >= 0).all()
            assert all(not weights[row, length:].any() for row, length in enumerate(LENGTHS))
            sums = weights.sum(-1)
            assert (sums < 1).all() if name in UNNORMALISED else torch.allclose(sums, torch.ones_like(sums))


# -- training ----------------------------------------------------------------------------------------------------------


@every
def test_gradients_reach_every_parameter(name):
    model, (source, n, target) = made(VARIANTS[name]).train(), batch()
    F.cross_entropy(model(source, n, target).flatten(0, 1), target.roll(-1, 1).flatten()).backward()
    idle = [path for path, p in model.named_parameters() if p.grad is None or not p.grad.any() or not p.grad.isfinite().all()]
    assert idle == []


@pytest.mark.parametrize("name", DEFAULTS)
def test_one_batch_is_learnt_by_heart(name):
    torch.manual_seed(3)
    config = DEFAULTS[name]
    sizes = {"width": 48, "dropout": 0.0} | ({"hidden": 64} if isinstance(config, TransformerConfig) else {"embedding": 32})
    model, (source, n, target) = build(name, vars(replace(config, **sizes))), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(source, n, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert loss < 0.1
    model.eval()
    with torch.no_grad():  # and said by heart
        state, token, said = model.start(source, n), target[:, 0], []
        for _ in range(L - 1):
            token = model.step(token, state).logits_BN.argmax(-1)
            said.append(token)
    assert torch.equal(torch.stack(said, 1), target[:, 1:])


MIXED = [name for name in VARIANTS if name.startswith(("rnnsearch", "transformer", "luong both", "seq2seq gru"))]


@pytest.mark.parametrize("name", MIXED)  # not the LSTM run whole: PyTorch's needs a processor that has bfloat16
def test_mixed_precision(name):
    model, (source, n, target) = made(VARIANTS[name], torch.float32), batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(source, n, target)
        state = model.start(source, n)
        for token in target.unbind(1):
            step = model.step(token, state, want_weights=True)
    mixed.float().sum().backward()
    exact = model(source, n, target)
    assert mixed.dtype == torch.bfloat16 and (mixed.float() - exact).norm() < 0.05 * exact.norm()
    assert (step.logits_BN.float() - exact[:, -1]).norm() < 0.05 * exact[:, -1].norm()


# -- configs and names -------------------------------------------------------------------------------------------------


def test_the_list():
    translators = [model.facts.name for model in MODELS if issubclass(model, Translator)]
    assert translators == ["rnnsearch", "seq2seq", "luong", "transformer", "bart", "t5"] and set(DEFAULTS) == set(translators)
    assert {model.facts.name for model in MODELS} == set(catalogue.models())
    assert catalogue.find("RNNsearch") is RNNsearch


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.facts.name)
def test_docstrings_say_what_a_reader_needs(model):
    assert {"Cost", "Use it", "Avoid it", "Paper"} <= set(catalogue.notes(model))


@every
def test_a_config_goes_to_json_and_back(name):
    model, (source, n, target) = made(VARIANTS[name]), batch()
    kind, plain = config_of(model)
    text = json.dumps({"name": kind, "config": plain})
    said = json.loads(text)
    assert said["config"] == plain
    again = build(said["name"], said["config"]).double().eval()
    assert again.config == model.config == VARIANTS[name]
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(source, n, target), model(source, n, target))


@every
def test_no_tensor_is_saved_twice(name):
    saved = parameters_of(made(VARIANTS[name]))
    assert len({x.data_ptr() for x in saved.values()}) == len(saved)


def test_what_cannot_be_built():
    fine = {"source_vocab_size": SOURCE, "target_vocab_size": TARGET}
    with pytest.raises(UnknownName, match="did you mean 'transformer'"):
        build("transfomer", fine)
    with pytest.raises(UnknownName, match="did you mean 'width'"):
        build("luong", fine | {"widht": 3})
    with pytest.raises(BadConfig, match="without target_vocab"):
        build("luong", {"source_vocab_size": 3})
    with pytest.raises(UnknownName, match="did you mean 'softmax'"):
        TransformerConfig(**fine, tied="none", attention=("softmax", "sofmax", "softmax"))
    for config in (LuongConfig, RNNsearchConfig):
        with pytest.raises(UnknownName, match="did you mean 'additive'"):
            config(**fine, attention="aditive")
    with pytest.raises(UnknownName, match="did you mean 'lstm'"):
        Seq2SeqConfig(**fine, cell="LSTM".lower() + "x")
    with pytest.raises(BadConfig, match="must be even"):
        Seq2SeqConfig(**fine, width=9, bidirectional=True)
    with pytest.raises(BadConfig, match=r"tied='output'"):
        TransformerConfig(**fine)
    with pytest.raises(BadConfig, match="multiple of heads=5"):
        TransformerConfig(**fine, tied="none", width=12, heads=5)
    for wrong in ({"depth": (2,)}, {"attention": ("softmax",)}, {"width": 0}, {"width": 1.5}, {"dropout": 1.0}, {"position": 3}):
        with pytest.raises(BadConfig, match=next(iter(wrong))):
            TransformerConfig(**fine, tied="none", **wrong)
    with pytest.raises(BadConfig, match="feeding=1; expected `bool`, got `int`"):
        LuongConfig(**fine, feeding=1)


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_does_not_fit_is_refused(name):
    model, (source, n, target) = made(DEFAULTS[name]), batch()
    with pytest.raises(ShapeError, match="one length per row"):
        model(source, n[:2], target)
    with pytest.raises(ShapeError, match="as many rows"):
        model(source, n, target[:2])
    with pytest.raises(DtypeError):
        model(source.double(), n, target)
    for wrong in (0, M + 1):
        with pytest.raises(ShapeError, match="1 to 7"):
            model.start(source, torch.tensor([wrong, 3, 3]))


# -- any mechanism in any place ----------------------------------------------------------------------------------------

SLOTS = {"encoder": 0, "decoder": 1, "cross": 2}


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize("kind", MECHANISMS, ids=lambda m: m.facts.name)
def test_any_mechanism_in_each_attention(kind, slot):
    if slot == "cross" and kind.facts.cross == "last":
        pytest.skip("its queries are the last of the keys, and a translation is not the end of its source")
    names = ["softmax"] * 3
    names[SLOTS[slot]] = kind.facts.name
    source, n, target = batch()
    torch.manual_seed(0)
    model = made(replace(transformer, attention=tuple(names)))
    if not kind.supports(causal if slot == "decoder" else lengths([1])):
        with pytest.raises(PatternNotSupported, match=kind.__name__):
            model(source, n, target)
        return
    if slot == "cross" and not kind.facts.cross:
        with pytest.raises(ShapeError, match=kind.__name__):
            model(source, n, target)
        return
    torch.manual_seed(1)
    with torch.no_grad():
        whole = model(source, n, target)
    assert whole.isfinite().all()
    if kind is HardAttention:  # draws anew
        return
    with torch.no_grad():
        for row, length in enumerate(LENGTHS):
            close(whole[row], model(source[row : row + 1, :length], n[row : row + 1], target[row : row + 1])[0])
        stuck = (
            kind.facts.state in (None, StepState)
            if slot == "decoder"
            else slot == "cross" and kind.facts.state is None and kind.facts.rows != "independent"
        )
        if stuck:
            with pytest.raises(StateNotSupported):
                model.step(target[:, 0], model.start(source, n))
            return
        state = model.start(source, n)
        for t, token in enumerate(target.unbind(1)):
            step = model.step(token, state, want_weights=True)
            close(step.logits_BN, whole[:, t])
            assert step.weights_BM.shape == (B, M)


@pytest.mark.parametrize("kind", [m for m in MECHANISMS if m is not HardAttention], ids=lambda m: m.facts.name)
@pytest.mark.parametrize("base", [luong, rnnsearch], ids=["luong", "rnnsearch"])
def test_any_mechanism_in_recurrent_models(base, kind):
    (source, n, target), known = batch(), kind.facts.patterns
    model = made(replace(base, attention=kind.facts.name))
    if not kind.facts.cross:
        with pytest.raises(RegardError, match=kind.__name__):
            model(source, n, target)
        return
    if known != "any" and not {"full", "lengths"} <= set(known):
        with pytest.raises(RegardError, match=kind.__name__):
            model(source, n, target)
        return
    if kind.facts.state is None and kind.facts.rows != "independent":
        with pytest.raises(StateNotSupported, match=kind.__name__):
            model.start(source, n)
        return
    with torch.no_grad():
        whole, state = model(source, n, target), model.start(source, n)
        for t, token in enumerate(target.unbind(1)):
            close(model.step(token, state, want_weights=True).logits_BN, whole[:, t])


def test_every_translator_is_tested_here():
    missing = {model.facts.name for model in MODELS if issubclass(model, Translator)} - DEFAULTS.keys()
    assert not missing, f"add a line to DEFAULTS in tests/models/test_translators.py for {', '.join(missing)}"
    assert all(model.facts.name == name for name, model in ((name, made(config)) for name, config in DEFAULTS.items()))
