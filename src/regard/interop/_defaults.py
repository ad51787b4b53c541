"""Default values of config.json: what transformers takes for a key that is left out, per family, and keys that are two names of one setting.

A file need not hold what equals the default of its family, and files written by hand or by other tools often do not. The defaults are
those of the config classes of transformers; a test compares both tables with them. Keys that change no output are in `NO_EFFECT`.
"""

from __future__ import annotations

from typing import Any

# initialisation, training, caches, heads that are not read
NO_EFFECT = frozenset(
    [
        "initializer_range",
        "init_std",
        "initializer_factor",
        "initializer_cutoff_factor",
        "use_cache",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
        "summary_last_dropout",
        "classifier_dropout",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "layerdrop",
        "onnx_export",
        "pretraining_tp",
        "axial_norm_std",
        "qa_dropout",
        "seq_classif_dropout",
        "deterministic_flash_attn",
        "sparse_prediction",
        "sparse_pred_ignore_index",
        "classifier_pooling",
        "chunk_size_lm_head",
        "reorder_and_upcast_attn",
        "use_tpu_fourier_optimizations",
        "tpu_short_seq_length",
        "encoder_stride",
        "logit_scale_init_value",
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
    ]
)

# fmt: off
DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "is_decoder": False, "add_cross_attention": False,
        "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True,
    },
    "roberta": {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "is_decoder": False,
        "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "distilbert": {
        "vocab_size": 30522, "max_position_embeddings": 512, "sinusoidal_pos_embds": False, "n_layers": 6, "n_heads": 12, "dim": 768,
        "hidden_dim": 3072, "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "pad_token_id": 0, "eos_token_id": None,
        "bos_token_id": None, "tie_word_embeddings": True,
    },
    "electra": {
        "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4,
        "intermediate_size": 1024, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "is_decoder": False,
        "add_cross_attention": False, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True,
    },
    "longformer": {
        "attention_window": 512, "sep_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "vocab_size": 30522,
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "tie_word_embeddings": True,
    },
    "big_bird": {
        "vocab_size": 50358, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 4096,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 66,
        "attention_type": "block_sparse", "use_bias": True, "rescale_embeddings": False, "block_size": 64, "num_random_blocks": 3,
        "is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "fnet": {
        "vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 4, "layer_norm_eps": 1e-12, "pad_token_id": 3,
        "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
    },
    "nystromformer": {
        "vocab_size": 30000, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 510,
        "type_vocab_size": 2, "segment_means_seq_len": 64, "num_landmarks": 64, "conv_kernel_size": 65, "inv_coeff_init_option": False,
        "layer_norm_eps": 1e-05, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    "modernbert": {
        "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
        "hidden_activation": "gelu", "max_position_embeddings": 8192, "norm_eps": 1e-05, "norm_bias": False, "pad_token_id": 50283,
        "eos_token_id": 50282, "bos_token_id": 50281, "cls_token_id": 50281, "sep_token_id": 50282, "attention_bias": False,
        "attention_dropout": 0.0, "layer_types": None, "rope_parameters": None, "local_attention": 128, "embedding_dropout": 0.0,
        "mlp_bias": False, "mlp_dropout": 0.0, "decoder_bias": True, "classifier_bias": False,
        "classifier_activation": "gelu", "tie_word_embeddings": True,
    },
    "reformer": {
        "attention_head_size": 64, "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"], "axial_pos_embds": True,
        "axial_pos_shape": [64, 64], "axial_pos_embds_dim": [64, 192], "eos_token_id": 2, "feed_forward_size": 512, "hash_seed": None,
        "hidden_act": "relu", "hidden_dropout_prob": 0.05, "hidden_size": 256, "is_decoder": False, "layer_norm_eps": 1e-12,
        "local_num_chunks_before": 1, "local_num_chunks_after": 0, "local_attention_probs_dropout_prob": 0.05,
        "local_attn_chunk_length": 64, "lsh_attn_chunk_length": 64, "lsh_attention_probs_dropout_prob": 0.0,
        "lsh_num_chunks_before": 1, "lsh_num_chunks_after": 0, "max_position_embeddings": 4096, "num_attention_heads": 12,
        "num_buckets": None, "num_hashes": 1, "vocab_size": 320, "tie_word_embeddings": False, "bos_token_id": None, "pad_token_id": 0,
    },
    "openai-gpt": {
        "vocab_size": 40478, "n_positions": 512, "n_embd": 768, "n_layer": 12, "n_head": 12, "afn": "gelu", "resid_pdrop": 0.1,
        "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None, "tie_word_embeddings": True,
    },
    "gpt2": {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
        "scale_attn_weights": True, "bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": None,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "opt": {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "max_position_embeddings": 2048,
        "do_layer_norm_before": True, "_remove_final_layer_norm": False, "word_embed_proj_dim": None, "dropout": 0.1,
        "attention_dropout": 0.0, "num_attention_heads": 12, "activation_function": "relu", "pad_token_id": 1, "bos_token_id": 2,
        "eos_token_id": 2, "enable_bias": True, "layer_norm_elementwise_affine": True, "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576,
        "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0, "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-05, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False,
        "use_parallel_residual": True, "rope_parameters": None, "attention_bias": True, "is_decoder": False,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": None, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "rope_parameters": None,
        "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "head_dim": None,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": None, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
        "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "rope_parameters": None,
        "sliding_window": 4096, "attention_dropout": 0.0,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "rope_parameters": None, "use_sliding_window": False, "sliding_window": 4096,
        "max_window_layers": 28, "layer_types": None, "attention_dropout": 0.0, "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None,
    },
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "rope_parameters": None, "attention_bias": False, "use_sliding_window": False,
        "sliding_window": 4096, "max_window_layers": 28, "layer_types": None, "attention_dropout": 0.0, "pad_token_id": None,
        "bos_token_id": None, "eos_token_id": None,
    },
    "phi3": {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": None, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "hidden_act": "silu",
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
        "rope_parameters": None, "bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000, "sliding_window": None,
    },
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-06, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": True,
        "rope_parameters": None, "attention_bias": False, "attention_dropout": 0.0, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "layer_types": None, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
        "use_bidirectional_attention": None,
    },
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": True,
        "rope_parameters": None, "attention_bias": False, "attention_dropout": 0.0, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "layer_types": None, "final_logit_softcapping": None, "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    "marian": {
        "vocab_size": 58101, "decoder_vocab_size": None, "max_position_embeddings": 1024, "encoder_layers": 12,
        "encoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096,
        "decoder_attention_heads": 16, "activation_function": "gelu", "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "decoder_start_token_id": 58100, "scale_embedding": False, "pad_token_id": 58100, "eos_token_id": 0,
        "bos_token_id": None, "forced_eos_token_id": 0, "share_encoder_decoder_embeddings": True, "is_decoder": False,
        "tie_word_embeddings": True,
    },
    "bart": {
        "vocab_size": 50265, "max_position_embeddings": 1024, "encoder_layers": 12, "encoder_ffn_dim": 4096,
        "encoder_attention_heads": 16, "decoder_layers": 12, "decoder_ffn_dim": 4096, "decoder_attention_heads": 16,
        "activation_function": "gelu", "d_model": 1024, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
        "scale_embedding": False, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": 2, "is_decoder": False, "tie_word_embeddings": True,
    },
    "t5": {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None, "num_heads": 8,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-06,
        "feed_forward_proj": "relu", "pad_token_id": 0, "eos_token_id": 1, "is_decoder": False,
    },
    "vit": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16,
        "num_channels": 3, "qkv_bias": True, "pooler_output_size": None, "pooler_act": "tanh",
    },
    "vivit": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu_fast",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-6, "image_size": 224, "num_frames": 32,
        "tubelet_size": [2, 16, 16], "num_channels": 3, "qkv_bias": True, "pooler_output_size": None, "pooler_act": "tanh",
    },
    "clip": {"text_config": None, "vision_config": None, "projection_dim": 512},
    "clip_text_model": {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "projection_dim": 512, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0, "pad_token_id": 1, "bos_token_id": 49406, "eos_token_id": 49407,
    },
    "clip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 512, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0,
    },
}
# families whose defaults are those of another but for these
DEFAULTS |= {
    "xlm-roberta": DEFAULTS["roberta"] | {"vocab_size": 30522},
    "camembert": DEFAULTS["roberta"] | {"vocab_size": 30522},
    "mbart": DEFAULTS["bart"] | {"decoder_start_token_id": None},
    "mt5": DEFAULTS["t5"] | {
        "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True,
        "bos_token_id": None, "decoder_start_token_id": 0,
    },
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-06, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": True,
        "rope_parameters": None, "attention_bias": False, "attention_dropout": 0.0, "use_bidirectional_attention": None,
    },
    "smollm3": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "pad_token_id": 128004,
        "bos_token_id": 128000, "eos_token_id": 128001, "rope_parameters": None, "use_sliding_window": False, "sliding_window": None,
        "no_rope_layers": None, "no_rope_layer_interval": 4, "layer_types": None, "attention_bias": False, "attention_dropout": 0.0,
        "mlp_bias": False, "tie_word_embeddings": True,
    },
    "stablelm": {
        "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-05,
        "tie_word_embeddings": False, "rope_parameters": None, "use_qkv_bias": False, "qk_layernorm": False,
        "use_parallel_residual": False, "hidden_dropout": 0.0, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0,
        "pad_token_id": None,
    },
    "starcoder2": {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "norm_epsilon": 1e-05,
        "bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": None, "rope_parameters": None, "sliding_window": None,
        "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0, "use_bias": True, "tie_word_embeddings": True,
    },
    "granite": {key: value for key, value in DEFAULTS["llama"].items() if key != "head_dim"} | {
        "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
    },
    "olmo2": {key: value for key, value in DEFAULTS["llama"].items() if key not in ("head_dim", "mlp_bias")} | {
        "vocab_size": 50304, "pad_token_id": 1, "bos_token_id": None, "eos_token_id": 50279, "rms_norm_eps": 1e-05,
    },
    "albert": {key: value for key, value in DEFAULTS["bert"].items() if key not in ("is_decoder", "add_cross_attention")} | {
        "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_hidden_groups": 1, "num_attention_heads": 64,
        "intermediate_size": 16384, "inner_group_num": 1, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1, "bos_token_id": 2, "eos_token_id": 3,
    },
    "mpnet": {key: value for key, value in DEFAULTS["roberta"].items() if key not in ("type_vocab_size", "is_decoder", "add_cross_attention")} | {
        "vocab_size": 30527, "relative_attention_num_buckets": 32,
    },
    "mixtral": DEFAULTS["mistral"] | {"rms_norm_eps": 1e-05, "sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8},
    "qwen3_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "rope_parameters": None, "attention_bias": False, "use_sliding_window": False,
        "sliding_window": 4096, "attention_dropout": 0.0, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": False, "mlp_only_layers": None, "pad_token_id": None,
        "bos_token_id": None, "eos_token_id": None,
    },
    "gpt_oss": {
        "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128, "tie_word_embeddings": False,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_parameters": None,
        "attention_dropout": 0.0, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "layer_types": None,
        "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "attention_bias": True,
    },
}
# fmt: on

# another name of a setting: where a file has both, transformers takes this one
ALIASES: dict[str, dict[str, str]] = {
    "distilbert": {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    "openai-gpt": {
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "marian": {"num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model", "num_hidden_layers": "encoder_layers"},
    "bart": {"num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model", "num_hidden_layers": "encoder_layers"},
    "t5": {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers", "head_dim": "d_kv"},
}
ALIASES |= {"mbart": ALIASES["bart"], "mt5": ALIASES["t5"]}
ALIASES |= {key: {"num_experts": "num_local_experts"} for key in ("mixtral", "qwen3_moe", "gpt_oss")}
