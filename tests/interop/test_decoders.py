"""Published decoders and translators, read from the files of transformers and written back: the same logits both ways."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop import tiny
from tests.interop.conftest import edit_config, randomize

from regard import load
from regard.errors import BadConfig, NotSupported, ShapeError
from regard.interop.checkpoints import export
from regard.models import build

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
N, L = 37, 19


def gpt2(**changes):
    sizes = {"vocab_size": N, "n_positions": 24, "n_embd": 15, "n_layer": 2, "n_head": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(sizes | changes)))


def openai_gpt(**changes):
    sizes = {"vocab_size": N, "n_positions": 24, "n_embd": 15, "n_layer": 2, "n_head": 3}
    return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**(sizes | changes)))


def llama_like(kind: str, **changes):
    sizes = {
        "vocab_size": N, "max_position_embeddings": 24, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 29,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**(sizes | changes))
    return getattr(transformers, f"{kind}ForCausalLM")(config)


LLAMA31 = {  # of eight pairs of features, the first keeps its pace, the last four are slowed down by the factor, three are between
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 40, "beta_fast": 8.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0],
            "original_max_position_embeddings": 20}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
FAMILIES = {
    "gpt2": gpt2,
    "gpt2, narrow": lambda: gpt2(n_inner=17, activation_function="relu"),
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "openai-gpt": openai_gpt,
    "llama, biases": lambda: llama_like("Llama", attention_bias=True),
    "qwen3, biases": lambda: llama_like("Qwen3", attention_bias=True, head_dim=8),
    "llama, yarn": lambda: llama_like("Llama", head_dim=16, rope_parameters=YARN),
    "llama, yarn, as deepseek": lambda: llama_like(
        "Llama", head_dim=16, rope_parameters=YARN | {"factor": None, "mscale": 2.0, "mscale_all_dim": 1.5, "truncate": False}
    ),
    "llama, dynamic": lambda: llama_like("Llama", rope_parameters=DYNAMIC),
    "llama, longrope": lambda: llama_like("Llama", rope_parameters=LONGROPE),
    "phi3, longrope": lambda: llama_like(
        "Phi3",
        rope_parameters={**LONGROPE, "partial_rotary_factor": 0.75, "short_factor": [1.0, 2.0], "long_factor": [2.0, 3.0]},
        original_max_position_embeddings=20,
        pad_token_id=None,
    ),
    "llama": lambda: llama_like("Llama"),
    "llama, tied, wide heads": lambda: llama_like("Llama", tie_word_embeddings=True, head_dim=10, rope_theta=500.0, rms_norm_eps=1e-3),
    "llama, stretched": lambda: llama_like("Llama", rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}),
    "llama 3.1": lambda: llama_like("Llama", head_dim=16, rope_parameters=LLAMA31),
    "mistral": lambda: llama_like("Mistral", sliding_window=None),
    "mistral, window": lambda: llama_like("Mistral", sliding_window=5),
    "qwen2": lambda: llama_like("Qwen2"),
}


def ids(rows: int = 2, seed: int = 3):
    return torch.randint(N, (rows, L), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
class TestDecoders:
    @pytest.fixture
    def saved(self, family, tmp_path):
        model = randomize(FAMILIES[family]())
        model.save_pretrained(tmp_path / "hf")
        return model, tmp_path

    def test_logits_match_transformers(self, family, saved):
        model, folder = saved
        mine = load(folder / "hf")
        with torch.no_grad():
            logits = model(ids()).logits
            assert (mine(ids()) - logits).abs().max() <= 1e-5
            state, steps = mine.start(2), []
            for token in ids().unbind(1):
                steps.append(mine.step(token, state).logits_BN)
        assert (torch.stack(steps, 1) - logits).abs().max() <= 1e-5

    def test_and_back(self, family, saved):
        model, folder = saved
        export(load(folder / "hf"), folder / "mine")
        again = transformers.AutoModelForCausalLM.from_pretrained(folder / "mine").eval()
        with torch.no_grad():
            assert again(ids()).logits.equal(model(ids()).logits)
        before, after = (load_file(folder / name / "model.safetensors") for name in ("hf", "mine"))
        for name, x in after.items():
            assert name in before or name.replace("model.", "", 1) in before
            assert x.equal(before[name])


def test_gpt2_of_old(tmp_path):
    """Early files lack the prefix and hold masks."""
    model = randomize(gpt2())
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 24, 24).tril() for i in range(2)}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert (load(tmp_path)(ids()) - model(ids()).logits).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("family", "wrong", "named"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn"),
        ("openai-gpt", {"afn": "relu"}, "afn"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"rope_parameters": {"rope_type": "ntk", "factor": 2.0, "rope_theta": 10000.0}}, "supported are .* yarn"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}}, "lacks factor"),
        ("llama", {"rope_parameters": {**LONGROPE, "long_factor": [2.0]}}, "expected as many of both"),
        ("llama", {"rope_parameters": {**LONGROPE, "long_factor": [2.0], "short_factor": [1.0]}}, "3 short and long numbers"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "rope_theta": 10000.0}}, "low_freq_factor"),
        ("llama", {"rope_parameters": {**LLAMA31, "low_freq_factor": 5.0}}, "low below high"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "no sliding_window"),
    ],
)
def test_what_would_differ_is_refused(family, wrong, named, tmp_path):
    FAMILIES[family]().save_pretrained(tmp_path)
    edit_config(tmp_path, **wrong)
    with pytest.raises(BadConfig, match=named):
        load(tmp_path)


@pytest.mark.parametrize("rope", [DYNAMIC, LONGROPE | {"original_max_position_embeddings": 9}], ids=["dynamic", "longrope"])
def test_angles_that_depend_on_the_length_of_the_text(rope, tmp_path):
    """Beyond the length of training all angles change, those of older keys, too: such a text is read at once, or not at all."""
    model = randomize(llama_like("Llama", rope_parameters=rope, max_position_embeddings=12))
    model.save_pretrained(tmp_path / "hf")
    mine = load(tmp_path / "hf")
    export(mine, tmp_path / "mine")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "mine").eval()
    with torch.no_grad():
        for length in (8, L):
            expected = model(ids()[:, :length]).logits
            assert (mine(ids()[:, :length]) - expected).abs().max() <= 1e-5
            assert again(ids()[:, :length]).logits.equal(expected)
        state = mine.start(2)
        mine(ids()[:, :8], state=state)
        with pytest.raises(ShapeError, match="read the whole text at once"):
            mine(ids()[:, 8:], state=state)


def test_rope_scaling_of_older_files(tmp_path):
    model = randomize(llama_like("Llama", rope_parameters=LLAMA31))
    model.save_pretrained(tmp_path)
    scaling = {key: value for key, value in LLAMA31.items() if key != "rope_theta"}
    edit_config(tmp_path, rope_parameters=None, rope_theta=100.0, rope_scaling=scaling)
    with torch.no_grad():
        assert (load(tmp_path)(ids()) - model(ids()).logits).abs().max() <= 1e-5


def test_another_mechanism_is_not_written(tmp_path):
    model = build("gpt2", {"vocab_size": N, "width": 12, "heads": 2, "depth": 1, "attention": ("linear",)})
    with pytest.raises(NotSupported, match="linear"):
        export(model, tmp_path / "out")
    windows = build("llama", {"vocab_size": N, "width": 12, "heads": 2, "kv_heads": 2, "depth": 2, "attention": ("softmax", "local")})
    with pytest.raises(NotSupported, match=r"differs between layers: .*window 129"):
        export(windows, tmp_path / "out")
    settings = {
        "vocab_size": N,
        "width": 12,
        "heads": 2,
        "kv_heads": 2,
        "qkv_bias": True,
        "attention": ("local(radius=3)", "local(radius=4)"),
    }
    with pytest.raises(NotSupported, match="one length for all"):
        export(build("llama", settings), tmp_path / "out")
    capped = build("llama", {"vocab_size": N, "width": 12, "heads": 2, "kv_heads": 2, "attention": ("softmax(softcap=3.0)",)})
    with pytest.raises(NotSupported, match="no softcap"):
        export(capped, tmp_path / "out")
    dropouts = build("gpt2", {"vocab_size": N, "width": 12, "heads": 2, "depth": 2, "attention": ("softmax", "softmax(dropout=0.1)")})
    with pytest.raises(NotSupported, match=r"differs between layers: .*dropout 0\.1"):
        export(dropouts, tmp_path / "out")


@pytest.mark.parametrize("attention", ["softmax(dropout=0.2)", "local(radius=3,dropout=0.2)"])
def test_attention_dropout_is_written(attention, tmp_path):
    model = build("llama", {"vocab_size": N, "width": 12, "heads": 2, "kv_heads": 2, "depth": 2, "attention": (attention,)})
    export(model, tmp_path)
    softmaxes = [getattr(block.mixer.attention, "softmax", block.mixer.attention) for block in load(tmp_path).blocks]
    assert {softmax.dropout for softmax in softmaxes} == {0.2}


class TestMarian:
    def saved(self, folder, **changes):
        sizes = {
            "vocab_size": N, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 29, "decoder_ffn_dim": 29,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32, "activation_function": "swish",
            "scale_embedding": True, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1,
        }  # fmt: skip
        model = randomize(transformers.MarianMTModel(transformers.MarianConfig(**(sizes | changes))))
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(5))
        model.save_pretrained(folder / "hf")
        return model

    def logits(self, model, source, n, target):
        real = (torch.arange(source.shape[1]) < n[:, None]).long()
        with torch.no_grad():
            return model(input_ids=source, attention_mask=real, decoder_input_ids=target).logits

    @pytest.mark.parametrize(
        "changes",
        [{}, {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}, {"scale_embedding": False}],
        ids=["shared", "apart", "not scaled"],
    )
    def test_both_ways(self, tmp_path, changes):
        model = self.saved(tmp_path, **changes)
        source, target, n = ids(3), ids(3, seed=4)[:, :11] % 31, torch.tensor([19, 12, 7])
        mine = load(tmp_path / "hf")
        with torch.no_grad():
            assert (mine(source, n, target) - self.logits(model, source, n, target)).abs().max() <= 1e-5
        export(mine, tmp_path / "mine")
        again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "mine").eval()
        assert self.logits(again, source, n, target).equal(self.logits(model, source, n, target))

    def test_only_what_marian_is(self, tmp_path):
        with pytest.raises(NotSupported, match="sinusoidal_halves"):
            export(build("transformer", {"source_vocab_size": 9, "target_vocab_size": 9}), tmp_path / "out")


@pytest.mark.parametrize("said", [{"scale_decoder_outputs": False}, {"tie_word_embeddings": False}], ids=["newer", "older"])
def test_t5_1_1(said, tmp_path):
    """Gated, with an output projection of its own, which files of several ages say in several ways, and any number of heads."""
    theirs = tiny.build("t5", num_heads=5)
    theirs.save_pretrained(tmp_path)
    path, head = tmp_path / "model.safetensors", 0.2 * torch.randn(tiny.N, tiny.D, generator=torch.Generator().manual_seed(6))
    save_file(load_file(path) | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    with pytest.raises(BadConfig, match=r"lm_head\.weight differs from shared\.weight"):
        load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scale_decoder_outputs"], config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config | said))
    expected, found = tiny.both("t5", type(theirs).from_pretrained(tmp_path).eval(), mine := load(tmp_path))
    assert mine.config.untied and (found - expected).abs().max() <= 1e-5
    export(mine, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back").eval()
    assert tiny.both("t5", again, mine)[0].equal(expected)
