"""Capture on models of transformers: what is seen is what eager attention returns, and seeing changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pytest
import torch
from torch import nn

from regard import capture
from regard.errors import CaptureNotSupported, ShapeError, UnknownName

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
        model = kind._from_config(kind.config_class(**self.config), attn_implementation=backend or self.backend).eval()
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
    return [found] if isinstance(found, torch.Tensor) else [x for part in found if part is not None for x in tensors(part)] if isinstance(found, tuple | list) else []


def snapshot(model: nn.Module) -> list[Any]:
    """All that a capture could leave behind."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    modules = [
        (name, sorted(vars(part)), [dict(hooks) for key, hooks in sorted(vars(part).items()) if key.endswith("_hooks")], part.forward)
        for name, part in model.named_modules()
    ]
    interfaces = [(dict(each._global_mapping), dict(each._local_mapping)) for each in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS)]
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
        monkeypatch.setattr("regard.look._observe.Formed", None)  # weights come from queries and keys
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
@pytest.mark.filterwarnings("ignore")
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
