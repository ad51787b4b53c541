"""T5 in transformers' files."""

from __future__ import annotations

from typing import Any

from ...errors import BadConfig, NotSupported
from ...models import T5 as T5Model
from ..attention import Softmax, layer_attention
from ..family import Family, SettingKeys, Settings
from ..hf_config import HFConfig
from ..names import Entry, tensor

SETTINGS: SettingKeys = {
    "source_vocab_size": "vocab_size",
    "width": "d_model",
    "heads": "num_heads",
    "head_dim": "d_kv",
    "hidden": "d_ff",
    "dropout": "dropout_rate",
    "eps": "layer_norm_epsilon",
    "buckets": "relative_attention_num_buckets",
    "furthest": "relative_attention_max_distance",
}
FEED_FORWARD = {"relu": False, "gated-gelu": True}


class T5Family(Family):
    model = "t5"
    model_types = ("t5",)
    settings = SETTINGS
    tied = tuple((copy, "shared.weight") for copy in ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"))
    # the first files hold a bias for cross-attention, which nothing ever adds
    constants = ((r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$", lambda x, settings: True),)

    def more_settings(self, hf: HFConfig) -> dict[str, Any]:
        encoder, decoder, kind = hf["num_layers"], hf["num_decoder_layers"], hf["feed_forward_proj"]
        if kind not in FEED_FORWARD:
            raise BadConfig(f"config.json has feed_forward_proj={kind!r}; supported are {', '.join(FEED_FORWARD)}")
        fixed = {"dense_act_fn": "gelu_new" if FEED_FORWARD[kind] else kind, "is_gated_act": FEED_FORWARD[kind]}
        for key, value in fixed.items():  # which newer files hold beside feed_forward_proj
            if hf.get(key, value) != value:
                raise BadConfig(f"config.json has {key}={hf.get(key)!r} with feed_forward_proj={kind!r}; only {key}={value!r} is supported")
        scaled = self.scaled(hf)
        return {
            "target_vocab_size": hf["vocab_size"],
            "depth": (encoder, encoder if decoder is None else decoder),
            "gated": FEED_FORWARD[kind],
            "untied": not scaled and "lm_head.weight" in hf.tensor_names,
            "scaled_output": scaled,
            "max_length": 512,  # no limit: positions are relative
        }

    def scaled(self, hf: HFConfig) -> bool:
        """T5 1.1 says that it does not tie its embeddings; newer files say what follows from it: features are not scaled before the output."""
        return hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings") is not False)

    def more_config(self, model: T5Model) -> dict[str, Any]:
        c = model.config
        if any(layer != Softmax(scale=1.0) for layer in layer_attention(model, "scale")):
            raise NotSupported(
                "transformers' T5 has softmax attention with scale=1 and without dropout of the weights only; export one that has"
            )
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "num_layers": c.depth[0],
            "num_decoder_layers": c.depth[1],
            "feed_forward_proj": "gated-gelu" if c.gated else "relu",
            "is_encoder_decoder": True,
            "tie_word_embeddings": c.scaled_output and not c.untied,
        }

    def table(self, settings: Settings) -> list[Entry]:
        entries = [
            tensor("embedding.token.weight", "shared.weight"),
            tensor("encoder_norm.weight", "encoder.final_layer_norm.weight"),
            tensor("decoder_norm.0.weight", "decoder.final_layer_norm.weight"),
        ]
        for stack, depth in zip(("encoder", "decoder"), settings["depth"], strict=True):
            parts = {"mixer": "SelfAttention"} | ({"cross": "EncDecAttention"} if stack == "decoder" else {})
            bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            entries.append(tensor(f"{stack}.0.mixer.position.table.weight", bias))  # of all layers
            for i in range(depth):
                block, hf, last = f"{stack}.{i}", f"{stack}.block.{i}.layer", len(parts)
                for n, (part, name) in enumerate(parts.items()):
                    entries += [
                        tensor(f"{block}.{part}.qkv.weight", *(f"{hf}.{n}.{name}.{x}.weight" for x in "qkv")),
                        tensor(f"{block}.{part}.out.weight", f"{hf}.{n}.{name}.o.weight"),
                        tensor(f"{block}.around_{part}.before.weight", f"{hf}.{n}.layer_norm.weight"),
                    ]
                up = ("wi_0", "wi_1") if settings["gated"] else ("wi",)
                entries += [
                    tensor(f"{block}.feedforward.up.weight", *(f"{hf}.{last}.DenseReluDense.{name}.weight" for name in up)),
                    tensor(f"{block}.feedforward.down.weight", f"{hf}.{last}.DenseReluDense.wo.weight"),
                    tensor(f"{block}.around_feedforward.before.weight", f"{hf}.{last}.layer_norm.weight"),
                ]
        return [*entries, tensor("output.weight", "lm_head.weight")] if settings["untied"] else entries
