"""Llama and its relatives in transformers' files: Mistral, Qwen 2 and 3, Phi 3, which differ in a bias, norms or a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import BadConfig, NotSupported
from ..attention import Softmax, layer_attention, same_in_all, specs, window_config
from ..constants import is_rotary_frequency
from ..family import DECODER, Family, Settings
from ..hf_config import HFConfig
from ..names import Entry, tensor
from ..rotary import rotary_config, rotary_settings

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
PER_LAYER = ("qwen2", "qwen3")  # those whose layers may differ in their window


def _windows(hf: HFConfig) -> list[int | None]:
    """The window of each layer; None for full attention."""
    depth, window = hf["num_hidden_layers"], hf.get("sliding_window") if hf.model_type != "llama" else None
    if hf.model_type not in PER_LAYER:
        return [window]
    window, first, types = window if hf["use_sliding_window"] else None, hf["max_window_layers"], hf["layer_types"]
    if types is None:
        return [window if window is not None and i >= first else None for i in range(min(depth, 10_000))]
    return layer_windows(types, depth, window)


def layer_windows(types: Any, depth: int, window: int | None) -> list[int | None]:
    """The window of each layer, from `layer_types` and `sliding_window`."""
    if not isinstance(types, list) or len(types) != depth or not {"full_attention", "sliding_attention"} >= set(types):
        raise BadConfig(
            f"config.json has layer_types={str(types)[:60]}; expected full_attention or sliding_attention for each of {depth} layers"
        )
    if window is None and "sliding_attention" in types:
        raise BadConfig("config.json has layers of sliding_attention, and no sliding_window")
    return [window if kind == "sliding_attention" else None for kind in types]


class LlamaLayers(Family):
    """Names of the tensors that Llama's relatives share."""

    settings = DECODER | {"hidden": "intermediate_size", "eps": "rms_norm_eps"}
    prefix = "model"
    tied = (("lm_head.weight", "embed_tokens.weight"),)
    fused = False  # q, k and v are one matrix, as ours are, and so are gate and up
    norms: ClassVar[Mapping[str, str]] = {  # of a block
        "around_mixer.before": "input_layernorm",
        "around_feedforward.before": "post_attention_layernorm",
    }

    def table(self, settings: Settings) -> list[Entry]:
        entries = [tensor("embedding.token.weight", "embed_tokens.weight"), tensor("norm.weight", "norm.weight")]
        kv_size = settings["kv_heads"] * settings["head_dim"]
        sizes = (settings["heads"] * settings["head_dim"], kv_size, kv_size)
        for i in range(settings["depth"]):
            block, hf = f"blocks.{i}", f"layers.{i}"
            if self.fused:
                entries.append(tensor(f"{block}.mixer.qkv.weight", f"{hf}.self_attn.qkv_proj.weight"))
            for part in () if self.fused else ("weight", "bias") if settings.get("qkv_bias") else ("weight",):
                projections = tuple(f"{hf}.self_attn.{x}_proj.{part}" for x in "qkv")
                entries.append(Entry(f"{block}.mixer.qkv.{part}", projections, sizes=sizes))
            if settings["qk_norm"]:
                entries += [tensor(f"{block}.mixer.{x}_norm.weight", f"{hf}.self_attn.{x}_norm.weight") for x in "qk"]
            up = ("gate_up_proj",) if self.fused else ("gate_proj", "up_proj")
            entries += [
                tensor(f"{block}.mixer.out.weight", f"{hf}.self_attn.o_proj.weight"),
                tensor(f"{block}.feedforward.up.weight", *(f"{hf}.mlp.{name}.weight" for name in up)),
                tensor(f"{block}.feedforward.down.weight", f"{hf}.mlp.down_proj.weight"),
                *(tensor(f"{block}.{ours}.weight", f"{hf}.{theirs}.weight") for ours, theirs in self.norms.items()),
            ]
        return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]


class LlamaFamily(LlamaLayers):
    model = "llama"
    model_types: tuple[str, ...] = ("llama", "mistral", "qwen2", "qwen3")
    constants = ((r"rotary_emb\.inv_freq$", is_rotary_frequency),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(hidden_act="silu")
        heads, kv_heads, head_dim = hf["num_attention_heads"], hf["num_key_value_heads"], hf.get("head_dim")
        rotary = rotary_settings(hf)
        if hf.model_type == "phi3":
            hf["original_max_position_embeddings"]  # of scaled embeddings, which it has in another form than others
            if rotary["stretch"]:
                raise BadConfig("config.json scales the rotary embeddings of a phi3; only rope_type='default' is supported")
        elif rotary["part"] != 1:
            raise BadConfig(f"config.json has partial_rotary_factor={rotary['part']}; only 1, all features of a head, is supported")
        return {
            "kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": hf["hidden_size"] // heads if head_dim is None else head_dim,
            **rotary,
            "qkv_bias": hf.model_type == "qwen2",
            "qk_norm": hf.model_type == "qwen3",
            "dropout": hf["resid_pdrop"] if hf.model_type == "phi3" else 0.0,
            "attention": specs([Softmax(window, hf["attention_dropout"] or 0.0) for window in _windows(hf)]),
        }

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        layers = layer_attention(model, "window")
        windows = {layer.window for layer in layers} - {None}
        if c.qkv_bias + c.qk_norm + (c.part != 1) > 1 or (c.part != 1 and c.stretch):
            raise NotSupported(
                f"a Llama with qkv_bias={c.qkv_bias}, qk_norm={c.qk_norm}, part={c.part}, stretch={c.stretch}; transformers has Qwen 2 with a bias, "
                "Qwen 3 with norms of q and k, Phi 3 with partial rotary embeddings, and no model that combines them"
            )
        model_type = "qwen2" if c.qkv_bias else "qwen3" if c.qk_norm else "phi3" if c.part != 1 else "mistral" if windows else "llama"
        if model_type in PER_LAYER:
            more = window_config(model, layers)
            more["use_sliding_window"] = more["sliding_window"] is not None
            layers = [layer._replace(window=None) for layer in layers]
        else:
            more = {} if model_type == "llama" else {"sliding_window": same_in_all(model, layers).window}
        if model_type == "phi3":
            more |= {"resid_pdrop": c.dropout, "embd_pdrop": c.dropout}
        rope = rotary_config(c.base, c.stretch, **({} if c.part == 1 else {"partial_rotary_factor": c.part}))
        return {
            "model_type": model_type,
            "architectures": [ARCHITECTURES[model_type]],
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "rope_parameters": rope,
            "hidden_act": "silu",
            "attention_dropout": same_in_all(model, layers).dropout,
            **more,
        }

    def fits(self, model: Any) -> bool:
        return model.config.part == 1


class Phi3Family(LlamaFamily):
    """A Llama with fused matrices; one whose rotary embeddings rotate all features is written as a Llama."""

    model_types = ("phi3",)
    fused = True

    def fits(self, model: Any) -> bool:
        return model.config.part != 1
