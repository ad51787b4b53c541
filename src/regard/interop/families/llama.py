"""Llama and its relatives in transformers' files: Mistral, Qwen 2 and 3, Phi 3, which differ in a bias, norms or a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import BadConfig, NotSupported
from ...layers.positions.scaling import kind_of
from ..attention import Softmax, layer_attention, same_in_all, specs, window_config
from ..constants import is_rotary_frequency
from ..family import DECODER, Family, Settings
from ..hf_config import HFConfig
from ..names import Entry, layer, tensor
from ..rotary import rope_parameters, rotary_config, rotary_settings

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
PER_LAYER = ("qwen2", "qwen3")  # those whose layers may differ in their window


def layer_windows(types: Any, depth: int, window: int | None) -> list[int | None]:
    """The window of each layer, from `layer_types` and `sliding_window`."""
    if not isinstance(types, list) or len(types) != depth or not {"full_attention", "sliding_attention"} >= set(types):
        raise BadConfig(
            f"config.json has layer_types={str(types)[:60]}; expected full_attention or sliding_attention for each of {depth} layers"
        )
    if window is None and "sliding_attention" in types:
        raise BadConfig("config.json has layers of sliding_attention, and no sliding_window")
    return [window if kind == "sliding_attention" else None for kind in types]


def decoder_config(model: Any, architecture: str, attention: Softmax) -> dict[str, Any]:
    """The keys of config.json that all of Llama's relatives have."""
    c = model.config
    return {
        "architectures": [architecture],
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rope_parameters": rotary_config(c.base, c.stretch, c.context_length, **({} if c.part == 1 else {"partial_rotary_factor": c.part})),
        "hidden_act": "silu",
        "attention_dropout": attention.dropout,
    }


def attention_bias(model: Any) -> bool:
    """True if all four projections have a bias, False if none has; anything else is refused."""
    c = model.config
    if c.qkv_bias != c.out_bias:
        raise NotSupported(f"this {model.facts.name} has qkv_bias={c.qkv_bias} and out_bias={c.out_bias}; transformers' has both or none")
    return bool(c.qkv_bias)


class LlamaLayers(Family):
    """Names of the tensors that Llama's relatives share."""

    settings = DECODER | {"hidden": "intermediate_size", "eps": "rms_norm_eps"}
    prefix = "model"
    tied = (("lm_head.weight", "embed_tokens.weight"),)
    final_norm = "norm"  # our name of the norm after the last block
    rope_theta = 10_000.0  # of the rotary angles, if config.json has none
    fused = False  # q, k and v are one matrix, as ours are, and so are gate and up
    norms: ClassVar[Mapping[str, str]] = {  # of a block
        "around_mixer.before": "input_layernorm",
        "around_feedforward.before": "post_attention_layernorm",
    }

    def table(self, settings: Settings) -> list[Entry]:
        entries = [tensor("embedding.token.weight", "embed_tokens.weight"), *self._norm(self.final_norm, "norm", settings)]
        for i in range(settings["depth"]):
            block, hf = f"blocks.{i}", f"layers.{i}"
            entries += self.attention_table(block, f"{hf}.self_attn", settings) + self.feedforward_table(block, f"{hf}.mlp", settings)
            for ours, theirs in self.norms.items():
                entries += self._norm(f"{block}.{ours}", f"{hf}.{theirs}", settings)
        return entries if settings["tied"] else [*entries, tensor("output.weight", "lm_head.weight")]

    def attention_table(self, block: str, hf: str, settings: Settings) -> list[Entry]:
        """The projections of a layer, and the norms of its queries and keys."""
        kv_size = settings["kv_heads"] * settings["head_dim"]
        sizes = (settings["heads"] * settings["head_dim"], kv_size, kv_size)
        entries = layer(f"{block}.mixer.out", f"{hf}.o_proj")[: 2 if settings.get("out_bias") else 1]
        for part in ("weight", "bias") if settings.get("qkv_bias") else ("weight",):
            projections = tuple(f"{hf}.{x}_proj.{part}" for x in "qkv")
            name = f"{block}.mixer.qkv.{part}"
            entries.append(tensor(name, f"{hf}.qkv_proj.{part}") if self.fused else Entry(name, projections, sizes=sizes))
        return entries + [tensor(f"{block}.mixer.{x}_norm.weight", f"{hf}.{x}_norm.weight") for x in "qk" if settings["qk_norm"]]

    def feedforward_table(self, block: str, hf: str, settings: Settings) -> list[Entry]:
        up = ("gate_up_proj",) if self.fused else ("gate_proj", "up_proj")
        return [
            tensor(f"{block}.feedforward.up.weight", *(f"{hf}.{name}.weight" for name in up)),
            tensor(f"{block}.feedforward.down.weight", f"{hf}.down_proj.weight"),
        ]

    def _norm(self, ours: str, hf: str, settings: Settings) -> list[Entry]:
        return layer(ours, hf)[: 2 if settings.get("norm") == "layer" else 1]


class LlamaFamily(LlamaLayers):
    model = "llama"
    model_types: tuple[str, ...] = ("llama", "mistral", "qwen2", "qwen3")
    constants = ((r"rotary_emb\.inv_freq$", is_rotary_frequency),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        hf.require(hidden_act="silu")
        heads, kv_heads, head_dim = hf["num_attention_heads"], hf["num_key_value_heads"], hf.get("head_dim")
        bias = "attention_bias" in hf.defaults and hf["attention_bias"]
        return {
            "kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": hf["hidden_size"] // heads if head_dim is None else head_dim,
            **self.rotary(hf),
            "qkv_bias": hf.model_type == "qwen2" or bias,
            "out_bias": bias,
            "qk_norm": hf.model_type == "qwen3",
            "dropout": hf["resid_pdrop"] if hf.model_type == "phi3" else 0.0,
            "attention": specs([Softmax(window, hf["attention_dropout"] or 0.0, self.scale(hf)) for window in self.windows(hf)]),
        }

    def scale(self, hf: HFConfig) -> float | None:
        """The factor of the scores; None: the usual one."""
        return None

    def windows(self, hf: HFConfig) -> list[int | None]:
        """The window of each layer, or of all; None for full attention."""
        depth, window = hf["num_hidden_layers"], hf["sliding_window"] if "sliding_window" in hf.defaults else None
        if hf.model_type not in PER_LAYER:
            return [window]
        window, first, types = window if hf["use_sliding_window"] else None, hf["max_window_layers"], hf["layer_types"]
        if types is None:
            return [window if window is not None and i >= first else None for i in range(min(depth, 10_000))]
        return layer_windows(types, depth, window)

    def rotary(self, hf: HFConfig) -> dict[str, Any]:
        """Settings of the rotary embeddings."""
        found = rotary_settings(hf, base=self.rope_theta)
        self.check_part(found)
        return found

    @staticmethod
    def check_part(rotary: Settings) -> None:
        if rotary["part"] != 1:
            raise BadConfig(f"config.json has partial_rotary_factor={rotary['part']}; only 1, all features of a head, is supported")

    def more_config(self, model: Any) -> dict[str, Any]:
        c = model.config
        layers = layer_attention(model, "window")
        windows = {layer.window for layer in layers} - {None}
        model_type = (
            "qwen3"
            if c.qk_norm
            else "qwen2"
            if c.qkv_bias and not c.out_bias
            else "phi3"
            if c.part != 1
            else "mistral"
            if windows
            else "llama"
        )
        bias = {"qwen3": c.qkv_bias, "llama": c.qkv_bias, "qwen2": False}.get(model_type, False)
        if c.out_bias != bias or (c.part != 1 and model_type != "phi3"):
            raise NotSupported(
                f"a Llama with qkv_bias={c.qkv_bias}, out_bias={c.out_bias}, qk_norm={c.qk_norm}, part={c.part}{' and windows' * bool(windows)}; "
                "transformers has Qwen 2 with qkv_bias, Llama and Qwen 3 with both biases, Qwen 3 with norms of q and k, Phi 3 with partial rotary "
                "embeddings, and no model that combines them otherwise"
            )
        if model_type in PER_LAYER:
            more = window_config(model, layers)
            more["use_sliding_window"] = more["sliding_window"] is not None
            layers = [layer._replace(window=None) for layer in layers]
        else:
            more = {} if model_type == "llama" else {"sliding_window": same_in_all(model, layers).window}
        if model_type == "phi3":
            more |= {"resid_pdrop": c.dropout, "embd_pdrop": c.dropout}
            kind, numbers = kind_of(c.stretch)
            if kind not in ("", "longrope"):
                raise NotSupported(f"stretch={c.stretch} of partial rotary embeddings; transformers' Phi 3 has 'longrope' only")
            more |= {"original_max_position_embeddings": int(numbers[0])} if kind else {}
        if bias:
            more["attention_bias"] = True
        config = decoder_config(model, ARCHITECTURES[model_type], same_in_all(model, layers))
        return {"model_type": model_type, **config, **more}

    def fits(self, model: Any) -> bool:
        c = model.config
        return c.part == 1 and c.norm == "rms" and all(c.rotated)


class Phi3Family(LlamaFamily):
    """A Llama with fused matrices; one whose rotary embeddings rotate all features is written as a Llama."""

    model_types = ("phi3",)
    fused = True

    def rotary(self, hf: HFConfig) -> dict[str, Any]:
        """The only scaling is longrope, which older files call otherwise; the length it begins at is outside of rope_parameters."""
        rope, length = rope_parameters(hf), hf["original_max_position_embeddings"]
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "longrope", "yarn", "su"):
            raise BadConfig(f"config.json has rope_type={str(kind)[:60]!r}; supported for a phi3 are default and longrope")
        scaled = {} if kind == "default" else {"rope_type": "longrope", "original_max_position_embeddings": length}
        return rotary_settings(hf, {**rope, **scaled})

    def fits(self, model: Any) -> bool:
        c = model.config
        return c.part != 1 and c.norm == "rms" and all(c.rotated)
