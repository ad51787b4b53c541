"""StarCoder 2 in transformers' files: GPT-NeoX in sequence, with fewer key heads and windows."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ..attention import Softmax, layer_attention, same_in_all
from ..family import DECODER, Settings
from ..hf_config import HFConfig, hf_activation
from ..names import Entry, LayerNames, block_layers, layer, tensor
from ..rotary import rotary_config, rotary_settings
from .gpt_neox import GPTNeoXFamily

BLOCK: LayerNames = {
    "mixer.out": "self_attn.o_proj",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
    "around_mixer.before": "input_layernorm",
    "around_feedforward.before": "post_attention_layernorm",
}


class Starcoder2Family(GPTNeoXFamily):
    model_types = ("starcoder2",)
    settings = DECODER | {
        "hidden": "intermediate_size",
        "eps": "norm_epsilon",
        "qkv_bias": "use_bias",
        "dropout": "residual_dropout",
    }
    prefix = "model"
    heads = ("lm_head.",)
    tied = (("lm_head.weight", "embed_tokens.weight"),)
    constants = ()

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(use_bias=True)
        if hf.get("head_dim") is not None:
            raise BadConfig("config.json has head_dim; only a starcoder2 whose heads share hidden_size is supported")
        rotary = rotary_settings(hf)
        if rotary["part"] != 1:
            raise BadConfig(f"config.json has partial_rotary_factor={rotary['part']}; only 1, all features of a head, is supported")
        attention = str(Softmax(hf["sliding_window"], hf["attention_dropout"] or 0.0))
        kv_heads = hf["num_key_value_heads"] or hf["num_attention_heads"]
        return {"kv_heads": kv_heads, "parallel": False, "activation": hf.activation("hidden_act"), "attention": (attention,), **rotary}

    def more_config(self, model: Any) -> dict[str, Any]:
        c, attention = model.config, same_in_all(model, layer_attention(model, "window"))
        if c.parallel or c.part != 1 or not c.qkv_bias:
            raise NotSupported(
                f"a GPT-NeoX with kv_heads={c.kv_heads}, parallel={c.parallel}, part={c.part}, qkv_bias={c.qkv_bias}; transformers has StarCoder 2 "
                "with parallel=False, part=1 and biases, and no other with fewer key heads"
            )
        return {
            "architectures": ["Starcoder2ForCausalLM"],
            "num_key_value_heads": c.kv_heads,
            "hidden_act": "gelu_pytorch_tanh" if c.activation == "gelu_tanh" else hf_activation(c.activation),  # equal but for rounding
            "attention_dropout": attention.dropout,
            "sliding_window": attention.window,
            "embedding_dropout": c.dropout,
            "rope_parameters": rotary_config(c.base, c.stretch, c.context_length),
        }

    def table(self, settings: Settings) -> list[Entry]:
        size = settings["width"] // settings["heads"]
        sizes = (settings["width"], settings["kv_heads"] * size, settings["kv_heads"] * size)
        entries = [tensor("embedding.token.weight", "embed_tokens.weight"), *layer("norm", "norm")]
        for i in range(settings["depth"]):
            for part in ("weight", "bias"):
                projections = tuple(f"layers.{i}.self_attn.{x}_proj.{part}" for x in "qkv")
                entries.append(Entry(f"blocks.{i}.mixer.qkv.{part}", projections, sizes=sizes))
        entries += block_layers(settings["depth"], "layers", BLOCK)
        return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]

    def fits(self, model: Any) -> bool:
        return model.config.kv_heads is not None
