"""A tiny model of every family of transformers that is read, and both its outputs and ours for the same batch."""

import torch
from tests.interop.conftest import randomize

N, D, H, F, DEPTH = 37, 24, 4, 20, 2
ENCODER = {"vocab_size": N, "hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": H, "intermediate_size": F,
           "max_position_embeddings": 40}  # fmt: skip
NO_HEADS = {key: value for key, value in ENCODER.items() if key != "num_attention_heads"}
GPT = {"vocab_size": N, "n_positions": 40, "n_embd": D, "n_layer": DEPTH, "n_head": H, "bos_token_id": 5, "eos_token_id": 6}
LLAMA = {**ENCODER, "num_key_value_heads": 2}
SEQ2SEQ = {"vocab_size": N, "d_model": D, "encoder_layers": DEPTH, "decoder_layers": 3, "encoder_ffn_dim": F, "decoder_ffn_dim": F,
           "encoder_attention_heads": H, "decoder_attention_heads": H, "max_position_embeddings": 40, "pad_token_id": 0, "eos_token_id": 1,
           "decoder_start_token_id": 0, "forced_eos_token_id": 1}  # fmt: skip
# model_type → stem of the classes, head, settings that differ from the defaults and from each other
FAMILIES = {
    "bert": ("Bert", "ForPreTraining", ENCODER),
    "roberta": ("Roberta", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}),
    "camembert": ("Camembert", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": ("DistilBert", "ForMaskedLM", {
        "vocab_size": N, "dim": D, "n_layers": DEPTH, "n_heads": H, "hidden_dim": F, "max_position_embeddings": 40,
    }),
    "electra": ("Electra", "ForMaskedLM", {**ENCODER, "embedding_size": 10}),
    "albert": ("Albert", "ForPreTraining", {**ENCODER, "num_hidden_layers": 3, "num_hidden_groups": 2, "embedding_size": 10}),
    "mpnet": ("MPNet", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 42}),
    "modernbert": ("ModernBert", "ForMaskedLM", {**ENCODER, "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "longformer": ("Longformer", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 42, "attention_window": [4, 8], "type_vocab_size": 1}),
    "big_bird": ("BigBird", "ForMaskedLM", {**ENCODER, "max_position_embeddings": 80, "block_size": 4, "num_random_blocks": 2}),
    "fnet": ("FNet", "ForPreTraining", NO_HEADS),
    "nystromformer": ("Nystromformer", "ForMaskedLM", {**ENCODER, "segment_means_seq_len": 32, "num_landmarks": 8, "conv_kernel_size": 5}),
    "reformer": ("Reformer", "ForMaskedLM", {
        "vocab_size": N, "hidden_size": D, "num_attention_heads": H, "attention_head_size": 6, "feed_forward_size": F,
        "max_position_embeddings": 64, "attn_layers": ["local", "lsh", "lsh", "local"], "axial_pos_shape": (8, 8),
        "axial_pos_embds_dim": (10, 14), "num_hashes": 2, "num_buckets": 4, "hash_seed": 5, "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 8,
    }),
    "vit": ("ViT", "ForImageClassification", {
        "image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": H,
        "intermediate_size": F, "num_labels": 5,
    }),
    "clip": ("CLIP", "Model", {
        "text_config": {**ENCODER, "hidden_size": 20, "projection_dim": 14, "eos_token_id": N - 1}, "projection_dim": 14, "vision_config": {
            "projection_dim": 14, "image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": H,
            "intermediate_size": F,
        },
    }),
    "openai-gpt": ("OpenAIGPT", "LMHeadModel", GPT),
    "gpt2": ("GPT2", "LMHeadModel", GPT),
    "llama": ("Llama", "ForCausalLM", LLAMA),
    "mistral": ("Mistral", "ForCausalLM", {**LLAMA, "sliding_window": 5}),
    "qwen2": ("Qwen2", "ForCausalLM", {**LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", "ForCausalLM", {**LLAMA, "head_dim": 10}),
    "phi3": ("Phi3", "ForCausalLM", {**LLAMA, "pad_token_id": None, "eos_token_id": 6, "rope_parameters": {
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.67,
    }}),
    "smollm3": ("SmolLM3", "ForCausalLM", {**LLAMA, "num_hidden_layers": 3, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attention_bias": True}),
    "stablelm": ("StableLm", "ForCausalLM", {**LLAMA, "hidden_size": 32, "use_qkv_bias": True}),
    "starcoder2": ("Starcoder2", "ForCausalLM", {**LLAMA, "sliding_window": 5}),
    "granite": ("Granite", "ForCausalLM", {**LLAMA, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.7,
        "attention_multiplier": 0.3}),
    "olmo2": ("Olmo2", "ForCausalLM", {**LLAMA, "pad_token_id": 0, "eos_token_id": 1}),
    "mixtral": ("Mixtral", "ForCausalLM", {**LLAMA, "num_local_experts": 5, "sliding_window": 5, "head_dim": 6}),
    "qwen3_moe": ("Qwen3Moe", "ForCausalLM", {**LLAMA, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "intermediate_size": 12, "mlp_only_layers": []}),
    "gpt_oss": ("GptOss", "ForCausalLM", {**LLAMA, "head_dim": 10, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 5,
        "swiglu_alpha": 1.3, "swiglu_limit": 1.5}),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", {**ENCODER, "rope_parameters": {
        "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.34,
    }}),
    "opt": ("OPT", "ForCausalLM", {
        "vocab_size": N, "hidden_size": D, "num_hidden_layers": DEPTH, "num_attention_heads": H, "ffn_dim": F, "max_position_embeddings": 40,
        "word_embed_proj_dim": D,
    }),
    "gemma": ("Gemma", "ForCausalLM", {**LLAMA, "head_dim": 10}),
    "gemma2": ("Gemma2", "ForCausalLM", {**LLAMA, "head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": ("Gemma3", "ForCausalLM", {**LLAMA, "num_hidden_layers": 3, "head_dim": 10, "sliding_window": 5, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "marian": ("Marian", "MTModel", {**SEQ2SEQ, "activation_function": "silu", "scale_embedding": True}),
    "bart": ("Bart", "ForConditionalGeneration", SEQ2SEQ),
    "mbart": ("MBart", "ForConditionalGeneration", SEQ2SEQ),
    "mt5": ("MT5", "ForConditionalGeneration", {
        "vocab_size": N, "d_model": D, "d_kv": 7, "d_ff": F, "num_layers": DEPTH, "num_decoder_layers": 3, "num_heads": H,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
    }),
    "t5": ("T5", "ForConditionalGeneration", {
        "vocab_size": N, "d_model": D, "d_kv": 7, "d_ff": F, "num_layers": DEPTH, "num_decoder_layers": 3, "num_heads": H,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0,
    }),
}  # fmt: skip
DECODERS = [family for family, (_, head, _) in FAMILIES.items() if head in ("ForCausalLM", "LMHeadModel")]
TRANSLATORS = ["marian", "bart", "mbart", "t5", "mt5"]
IMAGES = ["vit"]
IMAGES_AND_TEXTS = ["clip"]
ENCODERS = [family for family in FAMILIES if family not in DECODERS + TRANSLATORS + IMAGES + IMAGES_AND_TEXTS]
NO_PADDING = ("fnet", "nystromformer")  # they mix padding into everything


def build(family, **changes):
    """A model of transformers with parameters that hide nothing."""
    import transformers

    stem, head, settings = FAMILIES[family]
    model = getattr(transformers, stem + head)(transformers.CONFIG_MAPPING[family](**(settings | changes)))
    model = randomize(model)
    if family in ("marian", "bart", "mbart"):
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(5))
    model.tie_weights()
    return model


def ids(rows=2, length=32, seed=3):
    return torch.randint(7, N, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def both(family, theirs, mine):
    """The logits of both models for the same batch, at real tokens."""
    if family in IMAGES:
        size, channels = theirs.config.image_size, theirs.config.num_channels
        height, width = (size, size) if isinstance(size, int) else size
        pixels = torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(3))
        return theirs(pixels).logits, mine(pixels)
    if family in IMAGES_AND_TEXTS:
        c = theirs.config.vision_config
        pixels = torch.randn(2, c.num_channels, c.image_size, c.image_size, generator=torch.Generator().manual_seed(3))
        texts = ids(3, 12)
        texts[0, 7], texts[1, 11], texts[2, 4:] = N - 1, N - 1, N - 1  # where they end
        return theirs(input_ids=texts, pixel_values=pixels).logits_per_image, mine(pixels, texts)
    x, n = ids(), torch.tensor([32, 19])
    real = torch.arange(32) < n[:, None]
    if family in DECODERS:
        return theirs(x).logits, mine(x)
    if family in TRANSLATORS:
        target = ids(2, 11, seed=4)
        return theirs(input_ids=x, attention_mask=real.long(), decoder_input_ids=target).logits, mine(x, n, target)
    if family in NO_PADDING:
        out = theirs(input_ids=x)
        return (out.logits if "logits" in out else out.prediction_logits), mine(x)
    given = {"input_ids": torch.where(real, x, theirs.config.pad_token_id or 0), "attention_mask": real.long()}
    if family == "longformer":
        given["global_attention_mask"] = torch.zeros_like(x).index_fill(1, torch.tensor([0]), 1)
    out = theirs(**given)
    return (out.logits if "logits" in out else out.prediction_logits)[real], mine(given["input_ids"], n)[real]
