"""Capture on models of transformers: what is seen is what eager attention returns, and seeing changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from regard import capture
from regard.errors import CaptureNotSupported, ShapeError, UnknownName
from regard.look._sources import Formed, Fused

transformers = pytest.importorskip("transformers", reason="its models are what is tested here")

B, L, N = 2, 9, 40  # batch, length, vocabulary

TOKENS = {"vocab_size": N, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
TEXT = TOKENS | SIZES | {"max_position_embeddings": 64}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
VISION = SIZES | {"image_size": 16, "patch_size": 4}
SEQ2SEQ = TOKENS | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
T5 = TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1}
SPEECH = SIZES | {"vocab_size": N, "conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (4, 4), "num_feat_extract_layers": 2}
SPEECH |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}


def text(side: str = "right") -> dict[str, torch.Tensor]:
    """Tokens of two texts, one of them shorter."""
    mask = torch.ones(B, L, dtype=torch.long)
    mask[1, slice(L - 3, None) if side == "right" else slice(0, 3)] = 0
    return {"input_ids": torch.randint(3, N, (B, L)) * mask, "attention_mask": mask}


def pair() -> dict[str, torch.Tensor]:
    return text() | {"decoder_input_ids": torch.randint(3, N, (B, 5))}


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(B, 3, 16, 16)}


def sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(B, 400)}


SELF = {"attentions": "*"}
BOTH = {
    "encoder_attentions": lambda name: "encoder." in name and "decoder." not in name,
    "decoder_attentions": lambda name: "decoder." in name and not crosses(name),
    "cross_attentions": lambda name: crosses(name),
}


def crosses(name: str) -> bool:
    return any(word in name for word in ("encoder_attn", "EncDecAttention", "crossattention"))


@dataclass
class Family:
    """A model, its inputs, and which layers its lists of attention weights are of."""

    model: str
    config: dict[str, Any]
    inputs: Callable[[], dict[str, torch.Tensor]] = text
    layers: dict[str, Any] = field(default_factory=lambda: SELF)
    backend: str = "sdpa"

    def build(self, backend: str = "") -> Any:
        torch.manual_seed(1)
        kind = getattr(transformers, self.model)
        model = kind._from_config(kind.config_class(**self.config), attn_implementation=backend or self.backend or None).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)  # so that scores are not all alike
        return model

    def reference(self, inputs: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        """What transformers returns when asked for weights, which needs eager attention."""
        out = self.build("eager")(**inputs, output_attentions=True)
        return {which: reduce(getattr, which.split("."), out) for which in self.layers}


FAMILIES = {
    # encoders of text
    "bert": Family("BertModel", TEXT),
    "roberta": Family("RobertaModel", TEXT),
    "albert": Family("AlbertModel", TEXT | {"embedding_size": 16}),
    "distilbert": Family("DistilBertModel", {"vocab_size": N, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}),
    "electra": Family("ElectraModel", TEXT | {"embedding_size": 16}),
    "modernbert": Family("ModernBertModel", TEXT | {"local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}),
    "deberta-v2": Family("DebertaV2Model", TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, backend="eager"),
    # decoders
    "gpt2": Family("GPT2LMHeadModel", TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt-neox": Family("GPTNeoXForCausalLM", TEXT),
    "gptj": Family("GPTJForCausalLM", TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}, backend="eager"),
    "bloom": Family("BloomForCausalLM", TOKENS | {"hidden_size": 32, "n_layer": 2, "n_head": 4}, backend="eager"),
    "falcon": Family("FalconForCausalLM", TEXT),
    "opt": Family("OPTForCausalLM", TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "llama": Family("LlamaForCausalLM", GROUPED),
    "mistral": Family("MistralForCausalLM", GROUPED | {"sliding_window": 4}),
    "mixtral": Family("MixtralForCausalLM", GROUPED | {"num_local_experts": 2, "sliding_window": None}),
    "qwen2": Family("Qwen2ForCausalLM", GROUPED),
    "qwen3": Family("Qwen3ForCausalLM", GROUPED),
    "gemma2": Family("Gemma2ForCausalLM", GROUPED | {"sliding_window": 4, "attn_logit_softcapping": 5.0}, backend="eager"),
    "gemma3": Family("Gemma3ForCausalLM", GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    "phi3": Family("Phi3ForCausalLM", TEXT | {"num_key_value_heads": 2}),
    "gpt-oss": Family("GptOssForCausalLM", GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}, backend="eager"),
    # encoder-decoders
    "t5": Family("T5ForConditionalGeneration", T5, pair, BOTH),
    "bart": Family("BartForConditionalGeneration", SEQ2SEQ, pair, BOTH),
    "marian": Family("MarianMTModel", SEQ2SEQ, pair, BOTH),
    "pegasus": Family("PegasusForConditionalGeneration", SEQ2SEQ, pair, BOTH),
    # images
    "vit": Family("ViTModel", VISION, image),
    "deit": Family("DeiTModel", VISION, image),
    "dinov2": Family("Dinov2Model", VISION, image),
    "beit": Family("BeitModel", VISION | {"use_relative_position_bias": True}, image),
    "siglip-vision": Family("SiglipVisionModel", VISION, image, {"attentions": "*self_attn"}),
    # sound
    "wavlm": Family("WavLMModel", SPEECH, sound, backend="eager"),  # calls multi_head_attention_forward
    "wav2vec2": Family("Wav2Vec2Model", SPEECH, sound),
    "hubert": Family("HubertModel", SPEECH, sound),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32, "begin_suppress_tokens": None},
        lambda: {"input_features": torch.randn(B, 8, 20), "decoder_input_ids": torch.randint(3, N, (B, 5))},
        BOTH,
    ),
    # several
    "clip": Family(
        "CLIPModel",
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
        lambda: text() | image(),
        {"text_model_output.attentions": "text_model.*", "vision_model_output.attentions": "vision_model.*"},
    ),
    "siglip": Family(
        "SiglipModel",
        {"text_config": TEXT, "vision_config": VISION},
        lambda: text() | image(),
        {"text_model_output.attentions": "text_model.*", "vision_model_output.attentions": "vision_model*self_attn"},
    ),
    "blip-text": Family(
        "BlipTextModel",
        TEXT | {"encoder_hidden_size": 32, "is_decoder": True},
        lambda: text() | {"encoder_hidden_states": torch.randn(B, 7, 32)},
        {"attentions": lambda name: not crosses(name), "cross_attentions": crosses},
        "eager",
    ),
}  # fmt: skip


def tensors(out: Any) -> list[torch.Tensor]:
    found = out.to_tuple() if hasattr(out, "to_tuple") else out
    return (
        [found]
        if isinstance(found, torch.Tensor)
        else [x for part in found if part is not None for x in tensors(part)]
        if isinstance(found, tuple | list)
        else []
    )


def snapshot(model: nn.Module) -> list[Any]:
    """All that a capture could leave behind."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    modules = [
        (name, sorted(vars(part)), [dict(hooks) for key, hooks in sorted(vars(part).items()) if key.endswith("_hooks")], part.forward)
        for name, part in model.named_modules()
    ]
    interfaces = [
        (dict(each._global_mapping), dict(each._local_mapping)) for each in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)
    ]
    return [modules, interfaces, torch._C._len_torch_function_stack(), nn.functional.scaled_dot_product_attention, nn.functional.softmax]


def real_rows(inputs: dict[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """Rows of padding attend to nothing here and to everything there, so they are left out."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape[1] != shape[2]:
        return torch.ones(shape[0], shape[2], dtype=torch.bool)
    return mask.bool()


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_weights_are_those_of_eager_attention(name, monkeypatch):
    family = FAMILIES[name]
    if family.backend == "sdpa":
        monkeypatch.delattr(Formed, "rows")  # weights come from queries and keys
    model, inputs = family.build(), family.inputs()
    expected = family.reference(inputs)
    alone, before = tensors(model(**inputs)), snapshot(model)
    with capture(model) as maps:
        seen = tensors(model(**inputs))
    assert snapshot(model) == before
    assert len(seen) == len(alone) and all(torch.equal(a, b) for a, b in zip(seen, alone, strict=True))
    for which, layers in family.layers.items():
        with capture(model, layers) as maps:
            model(**inputs)
        assert len(maps.all) == len(expected[which]) == 2
        for found, weights in zip(maps.all, expected[which], strict=True):
            rows = real_rows(inputs, weights.shape)
            if name == "wavlm":  # which returns the mean of its heads, for each of them
                found = replace(found, weights_BHLM=found.weights_BHLM.mean(1, keepdim=True).expand(-1, 4, -1, -1))
            assert found.weights_BHLM.shape == weights.shape
            torch.testing.assert_close(found.weights_BHLM.transpose(1, 2)[rows], weights.transpose(1, 2)[rows], atol=1e-5, rtol=0)


# -- generation --------------------------------------------------------------------------------------------------------

STEPS = 6
GENERATE = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}


def prompt(family: Family) -> dict[str, torch.Tensor]:
    inputs = family.inputs()
    if "attention_mask" in inputs and "decoder_input_ids" not in inputs:
        inputs = {"input_ids": torch.randint(3, N, (B, L)), "attention_mask": torch.ones(B, L, dtype=torch.long)}
    return {key: x for key, x in inputs.items() if key != "decoder_input_ids"}


def whole(inputs: dict[str, torch.Tensor], sequences: torch.Tensor, decoder_only: bool) -> dict[str, torch.Tensor]:
    """The inputs of one pass over what was generated; the newest token has not been read."""
    if decoder_only:
        return {"input_ids": sequences[:, :-1]}
    return inputs | {"decoder_input_ids": sequences[:, :-1]}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma3", "gpt-oss", "bart", "t5", "whisper"])
@torch.no_grad()
def test_steps_of_generation_join_to_one_pass(name, cache):
    family = FAMILIES[name]
    model, inputs, how = family.build(), prompt(family), GENERATE | {"cache_implementation": cache}
    generate = transformers.GenerationMixin.generate  # Whisper's own drops the first token
    alone = generate(model, **inputs, **how)
    with capture(model) as maps:
        sequences = generate(model, **inputs, **how)
    assert torch.equal(sequences, alone)
    expected = family.reference(whole(inputs, sequences, family.layers is SELF))
    for which, layers in family.layers.items():
        chosen = [layer for layer in maps.layers if layers == "*" or layers(layer)]
        assert len(chosen) == len(expected[which]) == 2
        for layer, weights in zip(chosen, expected[which], strict=True):
            joined = maps.view(layer)
            assert len(maps[layer]) == (1 if which == "encoder_attentions" else STEPS)
            assert joined.rows == tuple(range(weights.shape[2])) and joined.columns == tuple(range(weights.shape[3]))
            rows = real_rows(inputs, weights.shape)
            torch.testing.assert_close(joined.weights_BHLM.transpose(1, 2)[rows], weights.transpose(1, 2)[rows], atol=1e-5, rtol=0)


# -- what is captured --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_choice_of_layers_heads_and_rows():
    model, inputs = FAMILIES["llama"].build(), text()
    with capture(model) as everything:
        model(**inputs)
    with capture(model, layers=-1, heads=[1, -1], rows=[0, -2]) as maps:
        model(**inputs)
    assert (maps.layers, maps.all[0].heads, maps.all[0].rows) == (["model.layers.1.self_attn"], (1, 3), (0, L - 2))
    torch.testing.assert_close(maps.all[0].weights_BHLM, everything.all[1].weights_BHLM[:, [1, 3]][:, :, [0, L - 2]])


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"layers": "decoder"}, UnknownName, "model.layers.0.self_attn"),
        ({"heads": 4}, ShapeError, "model.layers.0.self_attn has 4 heads"),
        ({"limit": 1000}, CaptureNotSupported, "Narrow layers="),
    ],
)
def test_impossible_choices(asked, error, says):
    model = FAMILIES["llama"].build()
    with pytest.raises(error, match=says), capture(model, **asked):
        model(**text())


@torch.no_grad()
def test_long_prompts_need_little_memory(monkeypatch):
    """The newest of 8,192 rows, against a step of eager attention over a cache."""
    family, length, chunk = FAMILIES["llama"], 8192, 2**20
    model, ids = family.build(), torch.randint(3, N, (1, length))
    sizes, rows_of = [], Fused.rows
    monkeypatch.setattr(Fused, "rows", lambda source, rows: sizes.append(len(rows)) or rows_of(source, rows))
    with capture(model, layers=[0, 1], rows=slice(-8, None), chunk=chunk) as maps:
        cache = model(ids).past_key_values
    assert sum(sizes) == 16 and max(sizes) <= chunk / (4 * length * 4)  # 4 heads of float32, several copies
    assert maps.nbytes == 2 * 4 * 8 * length * 4
    cache.crop(-1)
    eager = family.build("eager")
    for found, weights in zip(maps.all, eager(ids[:, -1:], past_key_values=cache, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(found.weights_BHLM[:, :, -1:], weights, atol=1e-5, rtol=0)
    with pytest.raises(CaptureNotSupported, match="Narrow layers="), capture(model, limit=2**20):
        model(ids)


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_multihead_attention_of_torch(masked):
    """Without masks it runs a kernel of its own, which a capture must not switch off."""
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x, masks = torch.randn(B, L, 32), {}
    if masked:
        padding = torch.arange(L) >= torch.tensor([[L], [L - 3]])
        masks = {"key_padding_mask": padding, "attn_mask": torch.ones(L, L, dtype=torch.bool).triu(1)}
    alone = attention(x, x, x, need_weights=False, **masks)[0]
    with capture(attention) as maps:
        seen = attention(x, x, x, need_weights=False, **masks)[0]
    assert torch.equal(seen, alone)
    expected = attention(x, x, x, average_attn_weights=False, **masks)[1]
    torch.testing.assert_close(maps.view().weights_BHLM, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_labels():
    model, words = FAMILIES["gpt2"].build(), [f"w{i}" for i in range(L)]
    with capture(model, tokens=words) as maps:
        model(torch.randint(3, N, (1, L)))
    assert maps.view().labels() == (words, words)


# -- what is refused ---------------------------------------------------------------------------------------------------

WINDOWED = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}
REFUSED = {
    "swin": (Family("SwinModel", WINDOWED, image), "layers.0.blocks.0.attention: SwinAttention .* within windows"),
    "longformer": (Family("LongformerModel", TEXT | {"attention_window": 4}, backend=""), "LongformerSelfAttention .* softmax does not"),
    "nystromformer": (
        Family("NystromformerModel", TEXT | {"num_landmarks": 3, "segment_means_seq_len": 9}, backend=""),
        "weights for 2 × 3 queries",
    ),
    "rwkv": (Family("RwkvModel", TOKENS | {"hidden_size": 32, "num_hidden_layers": 2}, backend=""), "RwkvSelfAttention .* uses neither"),
    "fnet": (Family("FNetModel", TEXT, backend=""), "FNetModel holds no attention layer"),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.no_grad()
def test_refused_by_name(name):
    family, says = REFUSED[name]
    model, inputs = family.build(), family.inputs()
    inputs.pop("attention_mask", None)
    before = snapshot(model)
    with pytest.raises(CaptureNotSupported, match=says), capture(model):
        model(**inputs)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_kernels_that_hide_their_queries_are_refused(name):
    model = FAMILIES["llama"].build()
    model.config._attn_implementation = name
    with pytest.raises(CaptureNotSupported, match=f'{name}.*set_attn_implementation\\("sdpa"\\)'), capture(model):
        model.model.layers[0].self_attn(torch.randn(1, 3, 32), (torch.ones(1, 3, 8), torch.zeros(1, 3, 8)), None)


class DifferentialAttention(nn.Module):
    """softmax · v − λ · softmax · v: its weights are a difference that is never formed."""

    def forward(self, x):
        one, two = (torch.softmax(scale * x @ x.mT, -1) for scale in (1, 2))
        return one @ x - 0.5 * (two @ x)


def test_several_matrices_are_refused():
    attention = DifferentialAttention()
    with pytest.raises(CaptureNotSupported, match=r"DifferentialAttention .* several matrices"), capture(attention):
        attention(torch.randn(B, 4, L, 8))


@torch.no_grad()
def test_layers_without_weights_are_left_out_unless_chosen():
    """Linear attention between layers of softmax attention."""
    family = Family(
        "MiniMaxModel", GROUPED | {"num_local_experts": 2, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]}
    )
    model, inputs = family.build(), text()
    with capture(model) as maps:
        model(**inputs)
    assert maps.layers == ["layers.1.self_attn"]
    with pytest.raises(CaptureNotSupported, match=r"layers\.0\.self_attn: MiniMaxLightning"), capture(model, "layers.0"):
        model(**inputs)


# -- nothing changes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_training_is_the_same(backend, checkpointing):
    family = Family("BertModel", TEXT | {"attention_probs_dropout_prob": 0.3}, backend=backend)
    model, inputs = family.build().train(), text()
    if checkpointing:
        model.gradient_checkpointing_enable()

    def step() -> list[torch.Tensor]:
        torch.manual_seed(2)
        model.zero_grad()
        out = model(**inputs).last_hidden_state
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None), torch.get_rng_state()]

    alone = step()
    with capture(model) as maps:
        seen = step()
    assert all(torch.equal(a, b) for a, b in zip(alone, seen, strict=True))
    assert len(maps.all) == 2 and all(m.normalised for m in maps.all)  # before dropout, and once


def test_everything_is_restored_after_an_interruption(monkeypatch):
    model = FAMILIES["bert"].build()
    before = snapshot(model)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.encoder.layer[1].attention.self.value.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), capture(model):
        model(**text())
    hook.remove()
    assert snapshot(model) == before


@torch.no_grad()
def test_another_thread_and_another_model():
    """What counts is the model, not who calls it; a model beside it is not captured."""
    model, other, inputs = FAMILIES["bert"].build(), FAMILIES["bert"].build(), text()
    with capture(model) as outer, capture(model) as inner:
        other(**inputs)
        thread = Thread(target=lambda: model(**inputs))
        thread.start()
        thread.join()
    assert len(outer.all) == len(inner.all) == 2
    assert all(torch.equal(a.weights_BHLM, b.weights_BHLM) for a, b in zip(outer.all, inner.all, strict=True))


@torch.no_grad()
def test_half_precision():
    model, inputs = FAMILIES["llama"].build().bfloat16(), text()
    with capture(model) as maps:
        model(**inputs)
    expected = FAMILIES["llama"].build("eager").bfloat16()(**inputs, output_attentions=True).attentions
    for found, weights in zip(maps.all, expected, strict=True):
        rows = real_rows(inputs, weights.shape)
        torch.testing.assert_close(found.weights_BHLM.transpose(1, 2)[rows], weights.float().transpose(1, 2)[rows], atol=2e-2, rtol=0)
