"""Mechanisms inside models of transformers, against the attention that transformers has itself."""

import subprocess
import sys

import pytest
import torch

from regard import (
    MECHANISMS,
    HardAttention,
    LocalAttention,
    PatternAttention,
    Performer,
    SoftmaxAttention,
    StepState,
    StreamingAttention,
    capture,
    causal,
    full,
    interop,
    lengths,
)
from regard.errors import BadConfig, BadFile, MissingFile, NotSupported, PatternNotSupported, RegardError, ShapeError, StateNotSupported
from regard.interop._masks import mask_of, read_mask
from regard.patterns import Pattern

transformers = pytest.importorskip("transformers", reason="its models are what is tested here")
masking = pytest.importorskip("transformers.masking_utils", reason="needs transformers 5")

B, L, N = 3, 11, 40  # batch, length, vocabulary

COMMON = {"vocab_size": N, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 64}
TALKS = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64, "decoder_start_token_id": 1, "scale_embedding": False,
    "forced_eos_token_id": None,
}  # fmt: skip
QUIET = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}

CONFIGS = {
    "bert": lambda: transformers.BertConfig(**COMMON, **SMALL, **QUIET),
    "roberta": lambda: transformers.RobertaConfig(**COMMON, **SMALL, **QUIET),
    "distilbert": lambda: transformers.DistilBertConfig(
        **COMMON, dim=32, n_layers=2, n_heads=4, hidden_dim=40, dropout=0.0, attention_dropout=0.0, max_position_embeddings=64
    ),
    "gpt2": lambda: transformers.GPT2Config(
        **COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    ),
    "llama": lambda: transformers.LlamaConfig(**COMMON, **SMALL, num_key_value_heads=2),
    "mistral": lambda: transformers.MistralConfig(**COMMON, **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4),
    "bart": lambda: transformers.BartConfig(**COMMON, **TALKS, dropout=0.0),
    "marian": lambda: transformers.MarianConfig(**COMMON, **TALKS, dropout=0.0),
    "t5": lambda: transformers.T5Config(
        **COMMON, d_model=32, d_kv=8, d_ff=40, num_layers=1, num_heads=4, dropout_rate=0.0, decoder_start_token_id=1
    ),
}
READERS, WRITERS, TALKERS = ("bert", "roberta", "distilbert"), ("gpt2", "llama", "mistral"), ("bart", "marian", "t5")


@pytest.fixture(autouse=True, scope="module")
def registered():
    interop.register()


def build(kind: str, name: str = "sdpa", **changes):
    torch.manual_seed(1)
    config = CONFIGS[kind]()
    for key, value in changes.items():
        setattr(config, key, value)
    auto = transformers.AutoModel if kind in READERS else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForSeq2SeqLM if kind in TALKERS else auto
    model = auto.from_config(config, attn_implementation=name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)  # so that scores are not all alike
    return model.eval()


def batch(kind: str, side: str = "right") -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, N, (B, L))
    mask = torch.ones_like(tokens)
    for row, gone in enumerate((0, 4, 7)):
        mask[row, slice(L - gone, None) if side == "right" else slice(0, gone)] = 0
    inputs = {"input_ids": tokens * mask, "attention_mask": mask}
    if kind in TALKERS:
        inputs["decoder_input_ids"] = torch.randint(3, N, (B, 6))
    return inputs


def result(model, inputs) -> torch.Tensor:
    """What the model says of real tokens."""
    out = model(**inputs)[0]
    return out if "decoder_input_ids" in inputs else out[inputs["attention_mask"].bool()]


def switched(model, name: str):
    model.set_attn_implementation(name)
    return model


# -- the same as SDPA --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_softmax_is_sdpa(kind, side):
    model, inputs = build(kind), batch(kind, side)
    learned = [p for p in model.parameters() if p.requires_grad]
    outs, grads = [], []
    for name in ("sdpa", "regard:softmax"):
        out = result(switched(model, name), inputs)
        torch.manual_seed(2)
        outs.append(out)
        grads.append(torch.autograd.grad((out * torch.randn(out.shape)).sum(), learned, allow_unused=True))
    torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
    for one, two in zip(*grads, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    assert any(isinstance(part, SoftmaxAttention) for part in model.modules())


@pytest.mark.parametrize("kind", WRITERS + TALKERS)
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}, {"use_cache": False}], ids=["greedy", "beams", "without cache"])
def test_generation_is_that_of_sdpa(kind, how):
    inputs = {key: x for key, x in batch(kind, "left").items() if key != "decoder_input_ids"}
    asked = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_scores": True} | how
    model = build(kind)
    one, two = (switched(model, name).generate(**inputs, **asked) for name in ("sdpa", "regard:softmax"))
    assert torch.equal(one.sequences, two.sequences)
    for a, b in zip(one.scores, two.scores, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_caches_of_fixed_size(kind):
    """Keys that are not there yet are left out, whether generate() makes the masks or the model."""
    model, inputs = build(kind), batch(kind, "left")
    asked = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static"}
    one, two = (switched(model, name).generate(**inputs, **asked, disable_compile=True) for name in ("sdpa", "regard:softmax"))
    assert torch.equal(one, two)


def test_masks_that_the_user_makes():
    """Four dimensions: booleans, numbers to add that forbid, numbers to add that do not."""
    model, tokens = build("llama"), torch.randint(3, N, (B, L))
    allowed = torch.rand(B, 1, L, L) < 0.5
    allowed |= torch.eye(L, dtype=torch.bool)
    lowest = torch.finfo(torch.float32).min
    for mask in (allowed, torch.where(allowed, 0.0, lowest), torch.where(allowed, torch.randn(B, 1, L, L), -torch.inf)):
        one, two = (switched(model, name)(tokens, attention_mask=mask).logits for name in ("sdpa", "regard:softmax"))
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_dropout_is_that_of_the_model():
    model = build("bert", "regard:softmax", attention_probs_dropout_prob=0.5)
    inputs = batch("bert")
    still = model(**inputs)[0]
    model.train()
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])
    model.eval()
    assert torch.equal(model(**inputs)[0], still)


def test_packed_documents():
    """Positions that begin anew make documents; no one looks across."""
    model, tokens = build("llama"), torch.randint(3, N, (1, 10))
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    one, two = (switched(model, name)(tokens, position_ids=places, use_cache=False).logits for name in ("sdpa", "regard:softmax"))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


# -- patterns with a name ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["local", "longformer", "bigbird", "strided", "streaming"])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_patterned_mechanisms_are_sdpa_under_their_mask(kind, name):
    model, inputs = build(kind), batch(kind)
    out = result(switched(model, f"regard:{name}"), inputs)
    mechanism = next(part for part in model.modules() if isinstance(part, PatternAttention))
    pattern = lengths(inputs["attention_mask"].sum(1)) & (causal if kind == "llama" else full)
    mask = mechanism._within(pattern, L).mask(L, L)
    assert not torch.equal(mask.expand(B, -1, L, L), pattern.mask(L, L).expand(B, mask.shape[1], L, L)), "it narrows nothing"
    explicit = switched(model, "sdpa")(inputs["input_ids"], attention_mask=mask.expand(B, -1, -1, -1))[0]
    torch.testing.assert_close(out, explicit[inputs["attention_mask"].bool()], atol=1e-5, rtol=1e-5)


def test_a_window_of_ones_own_in_generation():
    """Written out by hand: |i − j| ≤ 2. And a cache that forgets what its own window hides does not shift ours."""
    interop.register("two-back", lambda heads, head_dim, length: LocalAttention(2))
    model, tokens = build("llama"), torch.randint(3, N, (B, L))
    i = torch.arange(L)
    mask = (i[:, None] - i).abs().le(2) & (i[:, None] >= i)
    expected = model(tokens, attention_mask=mask.expand(B, 1, L, L)).logits
    switched(model, "two-back")
    torch.testing.assert_close(model(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    assert str(model.model.layers[0].self_attn.regard) == "LocalAttention(window(2))"

    interop.register("first-token", lambda heads, head_dim, length: StreamingAttention(first=1, back=2))
    model = build("mistral", "first-token", sliding_window=6)
    whole = model(tokens).logits
    past, steps = None, []
    for t in range(L):
        out = model(tokens[:, t : t + 1], past_key_values=past, use_cache=True)
        past, steps = out.past_key_values, [*steps, out.logits]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)


# -- every mechanism ---------------------------------------------------------------------------------------------------


def refusal(mechanism, kind: str) -> type[RegardError] | None:
    facts = mechanism.facts
    if mechanism.sized(heads=4, head_dim=8, length=64).gates:
        return NotSupported
    needed = "causal" if kind == "gpt2" else "full"
    return None if facts.patterns == "any" or needed in facts.patterns else PatternNotSupported


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.facts.name)
def test_every_mechanism_runs_or_refuses(mechanism, kind):
    model, inputs = build(kind, f"regard:{mechanism.facts.name}"), batch(kind)
    error = refusal(mechanism, kind)
    if error is not None:
        with pytest.raises(error, match=mechanism.__name__):
            interop.prepare(model)
        return
    interop.prepare(model)
    out = result(model, inputs)
    assert out.isfinite().all()
    out.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    if kind == "bert":
        return
    tokens = inputs["input_ids"][:1]
    whole = model(tokens, use_cache=False).logits
    try:
        first = model(tokens[:, :6], use_cache=True)
        second = model(tokens[:, 6:7], past_key_values=first.past_key_values)
        third = model(tokens[:, 7:], past_key_values=second.past_key_values)
    except StateNotSupported as refused:
        assert mechanism.__name__ in str(refused)
        assert mechanism.facts.state in (None, StepState)
        return
    assert mechanism.facts.state is not None
    if mechanism is not HardAttention:  # which draws anew
        torch.testing.assert_close(torch.cat([first.logits, second.logits, third.logits], 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["linear", "performer", "softmax", "linformer"])
def test_they_train(name):
    model = interop.prepare(build("bert", f"regard:{name}")).train()
    inputs = batch("bert")
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    goal = torch.randn(B, L, 32)
    losses = []
    for _ in range(25):
        loss = (model(**inputs)[0] - goal).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(("kind", "side"), [("bert", "right"), ("llama", "right"), ("gpt2", "left")])
def test_linear_mechanisms_meet_no_dense_mask(kind, side, monkeypatch):
    def dense(*_, **__):
        raise AssertionError("a mask of L × M was made")

    monkeypatch.setattr(masking, "sdpa_mask", dense)
    monkeypatch.setattr(Pattern, "mask", dense)
    assert result(build(kind, "regard:performer"), batch(kind, side)).isfinite().all()


def test_mixed_precision_and_checkpointing():
    model, inputs = build("llama", "regard:performer").train(), batch("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert result(model, inputs).isfinite().all()
    grads = []
    for _ in range(2):
        model.zero_grad()
        result(model, inputs | {"use_cache": False}).sum().backward()
        grads.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
        model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(*grads)


# -- masks -------------------------------------------------------------------------------------------------------------


def padded(*rows: str) -> torch.Tensor:
    return torch.tensor([[cell == "1" for cell in row] for row in rows])


@pytest.mark.parametrize(
    ("function", "padding", "sizes", "rule"),
    [
        (masking.causal_mask_function, None, (5, 5, 0, 0), "causal"),
        (masking.causal_mask_function, None, (2, 5, 3, 0), "causal"),
        (masking.causal_mask_function, padded("11111", "11111"), (5, 5, 0, 0), "causal"),
        (masking.causal_mask_function, padded("11111", "11100"), (5, 5, 0, 0), "causal & lengths(<2>)"),
        (masking.causal_mask_function, padded("11111", "00111"), (1, 5, 4, 0), "causal & since(<2>)"),
        (masking.causal_mask_function, padded("01110", "00111"), (5, 5, 0, 0), "causal & (since(<2>) & lengths(<2>))"),
        (masking.causal_mask_function, padded("10111", "00111"), (5, 5, 0, 0), "causal & keep(<2×1×1×5>)"),
        (masking.causal_mask_function, padded("00000", "11111"), (5, 5, 0, 0), "causal & lengths(<2>)"),
        (masking.causal_mask_function, padded("111", "011"), (2, 7, 1, 0), "causal & since(<2>)"),
        (masking.bidirectional_mask_function, None, (3, 5, 0, 0), "full"),
        (masking.bidirectional_mask_function, padded("11111", "11000"), (3, 5, 0, 0), "lengths(<2>)"),
        (masking.sliding_window_causal_mask_function(3), None, (5, 5, 0, 0), "local_causal(2)"),
        (masking.sliding_window_causal_mask_function(3), padded("1111111", "0001111"), (1, 3, 6, 4), "local_causal(2) & since(<2>)"),
        (masking.sliding_window_causal_mask_function(3), padded("1111111", "1000101"), (2, 4, 5, 3), "local_causal(2) & keep(<2×1×1×7>)"),
        (masking.sliding_window_causal_mask_function(9), None, (5, 5, 0, 0), "causal"),
        (masking.sliding_window_bidirectional_mask_function(2), None, (5, 5, 0, 0), "window(2)"),
        (masking.sliding_window_bidirectional_mask_function(2), None, (3, 5, 0, 0), "keep(<2×1×3×5>)"),
        (
            masking.and_masks(
                masking.causal_mask_function, masking.packed_sequence_mask_function(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]))
            ),
            None,
            (4, 4, 0, 0),
            "causal & segments(<2×4>, None)",
        ),
        (masking.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.long)), None, (5, 5, 0, 0), "keep(<2×1×5×5>)"),
        (
            masking.or_masks(masking.causal_mask_function, lambda b, h, i, j: j < 2),
            padded("11111", "11110"),
            (5, 5, 0, 0),
            "keep(<2×1×5×5>)",
        ),
    ],
)
def test_masks_are_recognised(function, padding, sizes, rule):
    queries, keys, first, before = sizes
    mask = mask_of(2, queries, keys, first, before, function, padding)
    assert str(mask.pattern) == rule
    expected = masking.sdpa_mask(2, queries, keys, first, before, function, padding, allow_is_causal_skip=False)
    assert torch.equal(mask.dense().expand(expected.shape), expected)
    assert mask.past == (first > 0)
    again, bias = read_mask(mask[:], queries, keys, True)  # a model that takes its mask for a tensor
    assert bias is None and torch.equal(again.dense().expand(expected.shape), expected)


@pytest.mark.parametrize(
    ("mask", "rule", "past", "keys"),
    [
        (torch.ones(2, 1, 5, 5).bool(), "full", False, 5),
        (torch.ones(5, 5).tril().bool().expand(2, 1, 5, 5), "causal", False, 5),
        (torch.ones(3, 9).tril(2).bool().expand(2, 1, 3, 9), "causal", True, 5),
        (torch.tensor([1, 1, 1, 0, 0]).bool().expand(1, 1, 1, 5), "causal", True, 3),
        (torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()[:, None, None], "causal & lengths(<2>)", True, 3),
        (torch.ones(2, 4, 5, 5).bool(), "keep(<2×4×5×5>)", False, 5),
    ],
)
def test_dense_masks_are_read(mask, rule, past, keys):
    seen, bias = read_mask(mask, mask.shape[2], mask.shape[3], True)
    assert (str(seen.pattern), seen.past, seen.keys, bias) == (rule, past, keys, None)


def test_no_mask_means_what_it_means_to_sdpa():
    assert read_mask(None, 5, 5, True)[0].pattern is causal and read_mask(None, 5, 7, False)[0].pattern is full
    assert read_mask(None, 1, 7, True)[0].past
    with pytest.raises(PatternNotSupported, match="3 queries over 7 keys"):
        read_mask(None, 3, 7, True)
    with pytest.raises(PatternNotSupported, match=r"\(2, 5\)"):
        read_mask(torch.ones(2, 5), 5, 5, True)
    with pytest.raises(PatternNotSupported, match="int64"):
        read_mask(torch.ones(2, 1, 5, 5).long(), 5, 5, True)


# -- seeing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_capture_shows_what_eager_returns(kind):
    inputs = batch(kind)
    expected = build(kind, "eager")(**inputs, output_attentions=True).attentions
    model = build(kind, "regard:softmax")
    model(**inputs)
    with capture(model) as maps:
        model(**inputs)
    assert [map.layer.rpartition(".")[2] for map in maps.all] == ["regard", "regard"]
    real = inputs["attention_mask"].bool()
    for map, weights in zip(maps.all, expected, strict=True):
        torch.testing.assert_close(map.weights_BHLM.transpose(1, 2)[real], weights.transpose(1, 2)[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "local", "performer"])
def test_capture_while_generating(name):
    model, tokens = build("llama", f"regard:{name}"), torch.randint(3, N, (1, 5))
    interop.prepare(model)
    with capture(model, rows=-1, layers=0) as maps:
        out = model.generate(tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert [map.queries for map in maps.all] == [5, 6, 7, 8]
    with capture(model, rows=7, layers=0) as whole:
        model(out[:, :8])
    torch.testing.assert_close(maps.all[-1].weights_BHLM, whole.all[0].weights_BHLM, atol=1e-5, rtol=1e-4)


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [("bert", "linformer"), ("bert", "performer"), ("marian", "general"), ("gpt2", "dense_synthesizer")]
)
def test_parameters_are_made_trained_saved_and_loaded(kind, name, tmp_path):
    model, inputs = build(kind, f"regard:{name}"), batch(kind)
    if name != "performer":
        with pytest.raises(NotSupported, match=r"parameters of its own.*prepare\(model\)"):
            model(**inputs)
    count = sum(p.numel() for p in model.parameters())
    assert interop.prepare(model) is model
    own = {key: x for key, x in model.state_dict().items() if ".regard." in key}
    assert own and (sum(p.numel() for p in model.parameters()) > count or name == "performer")
    with torch.no_grad():
        for x in own.values():
            x += 0.5
    expected = result(model, inputs)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=f"regard:{name}").eval()
    interop.prepare(loaded, tmp_path)
    torch.testing.assert_close(result(loaded, inputs), expected)


def test_a_folder_without_them_is_said(tmp_path):
    model = build("bert", "regard:linformer")
    with pytest.raises(MissingFile, match="save_pretrained"):
        interop.prepare(model, tmp_path)
    build("bert").save_pretrained(tmp_path)
    with pytest.raises(BadFile, match="regard"):
        interop.prepare(model, tmp_path)


def test_files_with_and_without_a_head_fit(tmp_path):
    torch.manual_seed(0)
    model = interop.prepare(transformers.BertForMaskedLM._from_config(CONFIGS["bert"](), attn_implementation="regard:general"))
    model.save_pretrained(tmp_path)
    loaded = interop.prepare(transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="regard:general"), tmp_path)
    one, two = (m.encoder.layer[0].attention.self.regard.state_dict() for m in (model.bert, loaded))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_preparing_leaves_modes_and_gradients_alone():
    model = interop.prepare(build("bert", "regard:linformer").train())
    assert model.training and all(part.training for part in model.modules()) and all(p.requires_grad for p in model.parameters())
    model = build("bert", "regard:performer")
    with torch.inference_mode():
        model(**batch("bert"))
    model.train()(**batch("bert"))[0].sum().backward()


def test_another_name_is_another_mechanism():
    model, inputs = build("bert", "regard:local"), batch("bert")
    model(**inputs)
    switched(model, "regard:performer")(**inputs)
    held = [part for part in model.modules() if type(part).__module__.startswith("regard.")]
    assert [type(part) for part in held] == [Performer, Performer]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_what_a_mechanism_cannot_do_is_said():
    inputs = batch("bert")
    with pytest.raises(NotSupported, match=r"Performer.*0.25.*attention_probs_dropout_prob"):
        build("bert", "regard:performer", attention_probs_dropout_prob=0.25).train()(**inputs)
    with pytest.raises(PatternNotSupported, match=r"Performer supports .*local_causal\(3\)"):
        build("mistral", "regard:performer")(**batch("mistral"))
    with pytest.raises(PatternNotSupported, match=r"Performer supports .*keep"):
        build("bert", "regard:performer")(inputs["input_ids"], attention_mask=padded("10111011111").expand(B, -1).long())
    with pytest.raises(NotSupported, match=r"caps its scores at 20.*softcap=20"):
        interface = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["regard:softmax"]
        interface(torch.nn.Linear(2, 2), *torch.randn(3, 1, 2, 3, 4), None, softcap=20.0)
    with pytest.raises(NotSupported, match=r"regard.capture"):
        build("bert", "regard:softmax")(**inputs, output_attentions=True)
    with pytest.raises(StateNotSupported, match=r"GaussianWindow.*at least two tokens"):
        interop.prepare(build("marian", "regard:gaussian_window")).generate(inputs["input_ids"], max_new_tokens=3)
    with pytest.raises(StateNotSupported, match=r"GaussianWindow.*use_cache=False"):
        interop.prepare(build("gpt2", "regard:gaussian_window")).generate(inputs["input_ids"], max_new_tokens=3)
    with pytest.raises(ShapeError, match="LocalAttention attends within one sequence"):
        build("marian", "regard:local")(**batch("marian"))
    interop.register("nothing", lambda heads, head_dim, length: torch.nn.Identity())
    with pytest.raises(BadConfig, match=r"'nothing'.*Identity"):
        build("bert", "nothing")(**inputs)


@pytest.mark.parametrize("name", ["eager", "my/window", "sdpa2", "flash-like", ""])
def test_names_that_mean_something_else(name):
    with pytest.raises(BadConfig, match="transformers"):
        interop.register(name, lambda heads, head_dim, length: LocalAttention(2))


def test_names_of_others_are_left_alone():
    transformers.AttentionInterface.register("somebody's", lambda *_: None)
    with pytest.raises(BadConfig, match="already"):
        interop.register("somebody's", lambda heads, head_dim, length: LocalAttention(2))
    with pytest.raises(BadConfig, match="both"):
        interop.register("window")


def test_without_transformers():
    """Importing needs nothing of it; registering says in one sentence what is missing."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import regard.interop\n"
        "try: regard.interop.register()\n"
        "except regard.errors.NotSupported as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "transformers" in said and "pip install 'regard[interop]'" in said
