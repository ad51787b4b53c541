"""Vectors of imported encoders against transformers' own features, pooled by hand."""

import json

import numpy as np
import pytest
import torch

import regard
from regard.cli import main

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", "a", "dog"]
TEXTS = ["the cat sat on the mat", "a dog", "the cats", "a dog sat on a cat"]


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
def test_a_bert_as_a_sentence_encoder(tmp_path, mode):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=16
    )
    model = transformers.BertModel(config).eval()
    folder = tmp_path / "bert"
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        x_BLD, real_BL1 = model(**given).last_hidden_state, given.attention_mask[..., None]
    pooled = x_BLD[:, 0] if mode == "cls_token" else (x_BLD * real_BL1).sum(1) / real_BL1.sum(1)
    expected = torch.nn.functional.normalize(pooled, dim=-1).numpy()
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for run in (folder, tmp_path / "run"):  # the directory, and what is imported of it
        if run != folder:
            assert main(["import", str(folder), "--out", str(run)]) == 0
        assert main(["embed", str(run), str(tmp_path / "texts.txt"), "--out", str(tmp_path / "v.npy"), "--quiet"]) == 0
        assert np.allclose(np.load(tmp_path / "v.npy", allow_pickle=False), expected, atol=1e-5)
    ((_, vectors),) = regard.tasks.embed(regard.load_run(folder), TEXTS)
    assert np.allclose(vectors, expected, atol=1e-5)
