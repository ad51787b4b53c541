"""Every tensor of a file is used or compared; files that lie about sizes, or are damaged, are refused in one line before memory is taken."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop import tiny
from tests.interop.conftest import edit_config

from regard import load
from regard.cli import main
from regard.errors import BadConfig, BadFile, Misfit, RegardError
from regard.interop import import_checkpoint

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
FILE = "model.safetensors"


def saved(family, folder, **more):
    tiny.build(family).save_pretrained(folder)
    tensors = load_file(folder / FILE)
    save_file(tensors | {name: x.contiguous() for name, x in more.items()}, folder / FILE, metadata={"format": "pt"})
    return tensors


COPIES = {  # family → a tensor that transformers ties, and the one it equals
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    "distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "opt": ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    "marian": ("lm_head.weight", "model.shared.weight"),
    "marian, encoder": ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    "marian, decoder": ("model.decoder.embed_tokens.weight", "model.shared.weight"),
}


@pytest.mark.parametrize("case", COPIES)
def test_a_copy_is_compared(case, tmp_path):
    family, (copy, original) = case.split(",")[0], COPIES[case]
    tensors = saved(family, tmp_path)
    save_file(tensors | {copy: tensors[original].clone()}, tmp_path / FILE)
    load(tmp_path)
    save_file(tensors | {copy: tensors[original] + 1e-6}, tmp_path / FILE)
    with pytest.raises(BadConfig, match="ties them"):
        load(tmp_path)


TABLES = {  # tensors in older files that are no parameters, and the values they have
    "bert": ("bert.embeddings.position_ids", torch.arange(40)[None]),
    "nystromformer": ("nystromformer.embeddings.position_ids", torch.arange(2, 42)[None]),
    "gpt2": ("transformer.h.0.attn.bias", torch.ones(1, 1, 40, 40).tril()),
    "gpt_neox": ("gpt_neox.layers.0.attention.bias", torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()),
    "llama": ("model.layers.0.self_attn.rotary_emb.inv_freq", 10_000.0 ** (-torch.arange(0, 6, 2) / 6)),
    "marian": ("model.encoder.embed_positions.weight", None),
}


@pytest.mark.parametrize("family", TABLES)
def test_a_table_is_compared(family, tmp_path):
    name, values = TABLES[family]
    if values is None:
        values = transformers.models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding(40, tiny.D).create_weight()
    saved(family, tmp_path, **{name: values})
    load(tmp_path)
    changed = ~values if values.dtype == torch.bool else values + 1
    saved(family, tmp_path, **{name: changed})
    with pytest.raises(BadConfig, match="its values differ"):
        load(tmp_path)


def test_rows_that_only_fit_in_sum(tmp_path):
    tensors = saved("llama", tmp_path)
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    save_file(tensors | {q: tensors[q][:-6].clone(), k: torch.cat([tensors[k], tensors[q][-6:]])}, tmp_path / FILE)
    with pytest.raises(Misfit, match="q_proj"):
        load(tmp_path)


def test_one_tensor_under_two_names(tmp_path):
    tensors = saved("bert", tmp_path)
    save_file(tensors | {"pooler.dense.weight": tensors["bert.pooler.dense.weight"] + 1}, tmp_path / FILE)
    with pytest.raises(Misfit, match="beside"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"vocab_size": 2**30}),
        ("bert", {"hidden_size": 2**20, "num_attention_heads": 1}),
        ("bert", {"num_hidden_layers": 10**9}),
        ("bert", {"num_hidden_layers": 10**30}),
        ("bert", {"max_position_embeddings": 2**31 - 1}),
        ("llama", {"intermediate_size": 2**30, "num_hidden_layers": 2}),
        ("llama", {"head_dim": 2**40}),
        ("qwen2", {"num_hidden_layers": 10**9, "layer_types": None}),
        ("reformer", {"attn_layers": ["lsh"] * 10**5}),
        ("reformer", {"local_attn_chunk_length": 2**40}),
        ("marian", {"decoder_layers": 10**9}),
        ("longformer", {"attention_window": [2**40] * 2}),
        ("gpt2", {"n_embd": 2**40, "n_inner": None}),
        ("gpt2", {"n_embd": float("nan")}),
        ("bert", {"layer_norm_eps": float("inf")}),
    ],
)
def test_sizes_that_the_file_does_not_have(family, change, tmp_path):
    saved(family, tmp_path)
    edit_config(tmp_path, **change)
    tracemalloc.start()
    with pytest.raises(RegardError) as caught:
        load(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**25  # and tensors would have failed
    tracemalloc.stop()
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    "content", [b'{"a":' * 10**5, b"\xff\xfe{}", b'{"model_type": ["bert"]}', b'{"model_type": null}', b'{"model_type": {}}']
)
def test_damaged_config(content, tmp_path):
    saved("bert", tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RegardError) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_safetensors(tmp_path):
    saved("bert", tmp_path)
    path = tmp_path / FILE
    whole, refused = path.read_bytes(), 0
    for at in range(0, 300, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            load(tmp_path)  # a byte of the metadata may change without harm
        except (BadFile, BadConfig):
            refused += 1
    assert refused > 30


def test_padding_inside_a_text(tmp_path):
    """RoBERTa and Longformer count positions without it."""
    for family in ("roberta", "longformer"):
        theirs = tiny.build(family)
        theirs.save_pretrained(tmp_path / family)
        mine, x = load(tmp_path / family), tiny.ids()
        x[:, 5:9] = 1
        given = {"global_attention_mask": torch.zeros_like(x).index_fill(1, torch.tensor([0]), 1)} if family == "longformer" else {}
        with torch.no_grad():
            assert (mine(x) - theirs(x, attention_mask=torch.ones_like(x), **given).logits).abs().max() <= 1e-5


def test_a_window_longer_than_the_positions(tmp_path):
    """A Mistral reads on beyond max_position_embeddings, where its window matters."""
    theirs = tiny.build("mistral", max_position_embeddings=8, sliding_window=12)
    theirs.save_pretrained(tmp_path)
    expected, found = tiny.both("mistral", theirs, load(tmp_path))
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["gpt2", "google-bert/bert-base-uncased"])
def test_a_name_of_the_hub(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["import", name, "--out", "run"]) == 2
    assert f"hf download {name} --local-dir {name.split('/')[-1]}" in capsys.readouterr().err


def test_perplexity_and_masks_as_transformers_computes_them(tmp_path, capsys):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(32))]
    theirs = tiny.build("bert")
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    import_checkpoint(tmp_path / "bert", tmp_path / "run")
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path / "bert")
    masked = transformers.BertForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    best = transformers.pipeline("fill-mask", model=masked, tokenizer=tokenizer)("w3 [MASK] of w4", top_k=2)
    assert main(["predict", str(tmp_path / "run"), "w3 [MASK] of w4", "--nbest", "2"]) == 0
    expected = " ".join(f"{one['token_str']}({one['score']:.2f})" for one in best)
    assert capsys.readouterr().out.strip() == expected

    gpt2 = tiny.build("gpt2")
    gpt2.save_pretrained(tmp_path / "gpt2")
    from tests.interop.test_generation import library_tokenizer

    library_tokenizer(tmp_path / "gpt2")
    ids = tiny.ids(1, 30)[0].tolist()
    (tmp_path / "text.txt").write_text(" ".join(f"w{n}" for n in ids))
    row = torch.tensor([[5, *ids, 6]])  # bos and eos of the file
    with torch.no_grad():
        loss = float(gpt2(row, labels=row).loss)
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "gpt2"), "--data", str(tmp_path / "text.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert abs(found["loss"] - loss) < 1e-4
