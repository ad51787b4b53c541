"""Special tokens and generation: what transformers generates from an exported directory is what we generate."""

import json

import pytest
import torch
from tests.interop import tiny

import regard
from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.decode import Beam, GenerationOptions, generate
from regard.errors import BadFile
from regard.interop import export, import_checkpoint
from regard.models import Classifier, build
from regard.tasks import TextProcessor, make_run
from regard.tasks.translation import translations

transformers = pytest.importorskip("transformers", reason="the oracle of these tests; pip install 'regard[interop]'")
LINES = ["the cat sat on the mat.", "a dog, (the dog) sat!", "no cat on a mat"]
KINDS = ["bpe", "byte", "char", "word"]


def randomized(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_language_models_of_ours(kind, model, tmp_path):
    tokenizer = Tokenizer.train(LINES * 2, kind, vocab_size=270, min_count=1)
    sizes = {"vocab_size": len(tokenizer), "context_length": 64, "width": 16, "heads": 2, "depth": 1}
    more = {"kv_heads": 2, "head_dim": 8, "hidden": 24} if model == "llama" else {}
    run = make_run("language", randomized(build(model, sizes | more)), TextProcessor(Tokenizers(tokenizer)))
    export(run, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.generation_config.eos_token_id == theirs.config.eos_token_id == 2 and theirs.config.bos_token_id == 1
    again = regard.load_run(tmp_path / "hf")
    for prompt in ("the cat", "dog", "mat."):
        given = read(prompt, return_tensors="pt")
        length = given.input_ids.shape[1]
        expected = theirs.generate(**given, max_new_tokens=12, do_sample=False)[0, length:].tolist()
        for each in (run, again):
            ((found,),) = generate(each.model, each.processor.tokenizer, prompt, GenerationOptions(max_tokens=12, temperature=0.0))
            assert found.ids == expected


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_translators_of_ours(kind, joint, tmp_path):
    pairs = [(line, line[::-1]) for line in LINES]
    tokenizers = Tokenizers.train(pairs, kind, vocab_size=280, joint=joint, min_count=1)
    marian = {"placement": "post", "position": "sinusoidal_halves", "output_bias": True, "tied": "all" if joint else "output"}
    sizes = {"source_vocab_size": len(tokenizers.source), "target_vocab_size": len(tokenizers.target), "max_length": 64,
             "width": 16, "heads": 2, "depth": (1, 1), "hidden": 24}  # fmt: skip
    run = make_run("translation", randomized(build("transformer", sizes | marian)), TextProcessor(tokenizers))
    export(run, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    source = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    target = source if joint else transformers.AutoTokenizer.from_pretrained(tmp_path / "hf" / "target")
    for line in LINES:
        expected = theirs.generate(**source(line, return_tensors="pt"), max_new_tokens=9, do_sample=False, num_beams=1)[0].tolist()
        ((text, found),) = translations(run, [line], Beam(size=1, max_tokens=9))
        ids = [token for token in expected[1:] if token != 2]
        assert expected[0] == 1 and found[0].ids == ids
        assert kind == "word" or target.decode(ids, skip_special_tokens=True) == text


def library_tokenizer(folder):
    """A vocabulary of words for the tiny models, w0 … w36."""
    from tokenizers import Tokenizer as Native
    from tokenizers import models, pre_tokenizers

    native = Native(models.WordLevel({f"w{n}": n for n in range(tiny.N)}, unk_token="w0"))
    native.pre_tokenizer = pre_tokenizers.Whitespace()
    native.save(str(folder / "tokenizer.json"))


GENERATION = [
    None,
    {"eos_token_id": [9, 11, 30], "bos_token_id": 5, "pad_token_id": 4, "top_p": 0.9, "do_sample": True},
    {"eos_token_id": 8, "suppress_tokens": [3, 12], "bad_words_ids": [[14], [2, 3]]},
]


@pytest.mark.parametrize("generation", GENERATION)
@pytest.mark.parametrize("family", ["gpt2", "llama", "marian"])
def test_of_imported_models(family, generation, tmp_path):
    """The ids of config.json or generation_config.json survive import, run and export, and end what is generated."""
    theirs = tiny.build(family)
    theirs.save_pretrained(tmp_path / "a")
    library_tokenizer(tmp_path / "a")
    path = tmp_path / "a" / "generation_config.json"
    path.unlink(missing_ok=True)
    if generation is not None:
        path.write_text(json.dumps(generation | ({"decoder_start_token_id": 7} if family == "marian" else {})))
    auto = transformers.AutoModelForSeq2SeqLM if family == "marian" else transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(tmp_path / "a").eval()
    import_checkpoint(tmp_path / "a", tmp_path / "run")
    run = regard.load_run(tmp_path / "run")
    export(run, tmp_path / "b")
    again = auto.from_pretrained(tmp_path / "b").eval()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "suppress_tokens", "bad_words_ids", "top_p"):
        assert getattr(again.generation_config, key) == getattr(theirs.generation_config, key), key
    options = {"max_new_tokens": 20, "do_sample": False, "num_beams": 1, "pad_token_id": 4, "bad_words_ids": None}
    banned = [2, 3, *((generation or {}).get("bad_words_ids") or [])]
    options |= {"bad_words_ids": [[14]]} if len(banned) > 2 else {}
    for seed in range(8):
        prompt = tiny.ids(1, 6, seed)
        line = " ".join(f"w{n}" for n in prompt[0].tolist())
        if family == "marian":
            end = run.processor.tokenizer.target_end_id
            ((_, found),) = translations(run, [line], Beam(size=1, max_tokens=21))  # the end token included
            expected = theirs.generate(torch.cat([prompt, torch.tensor([[end]])], 1), **options, forced_eos_token_id=None)[0].tolist()
            eos = run.processor.tokenizer.eos_ids
            if not set(expected) & set(eos[1:]):  # a translator ends at the first of them
                assert [token for token in expected[1:] if token != end] == found[0].ids
            continue
        expected = theirs.generate(prompt, **options)[0, 6:].tolist()
        ((completion,),) = generate(run.model, run.processor.tokenizer, line, GenerationOptions(max_tokens=20, temperature=0.0))
        assert completion.ids == expected


IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
READERS = {"vit": "AutoModelForImageClassification", "clip": "AutoModel"}
READERS |= dict.fromkeys(tiny.TRANSLATORS, "AutoModelForSeq2SeqLM") | dict.fromkeys(tiny.DECODERS, "AutoModelForCausalLM")


@pytest.mark.parametrize("spoken", [True, False], ids=["tokenizer", "no tokenizer"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_documented_way_of_export_writes_the_same(family, spoken, tmp_path):
    """From a model, from a run and on the command line; of the directory itself, of a run made of it, and of a model saved again."""
    theirs = tiny.build(family)
    generates = family in tiny.DECODERS + tiny.TRANSLATORS
    if generates:
        given = {"eos_token_id": [9, 11], "bos_token_id": 5, "pad_token_id": 4, "suppress_tokens": [3]}
        given |= {"decoder_start_token_id": 7, "forced_eos_token_id": 9} if family in tiny.TRANSLATORS else {}
        theirs.generation_config = transformers.GenerationConfig(**given)
    theirs.save_pretrained(tmp_path / "theirs")
    if spoken and family != "vit":
        library_tokenizer(tmp_path / "theirs")
    import_checkpoint(tmp_path / "theirs", tmp_path / "run")
    regard.save(regard.load(tmp_path / "theirs"), tmp_path / "saved")
    written = []
    for name in ("theirs", "run", "saved"):
        out = [tmp_path / f"{name}-{way}" for way in ("model", "run", "command")]
        export(regard.load(tmp_path / name), out[0])
        export(regard.load_run(tmp_path / name), out[1])
        assert main(["export", str(tmp_path / name), "--out", str(out[2])]) == 0
        written += out
    files = {path.relative_to(written[0]) for path in written[0].rglob("*")}
    assert {path.name for path in files} >= {"config.json", "model.safetensors"} | ({"generation_config.json"} if generates else set())
    for other in written[1:]:
        assert {path.relative_to(other) for path in other.rglob("*")} == files
        assert all((other / path).is_dir() or (other / path).read_bytes() == (written[0] / path).read_bytes() for path in files)
    auto = getattr(transformers, READERS.get(family, "AutoModelForMaskedLM"))
    again, before = auto.from_pretrained(written[0]), auto.from_pretrained(tmp_path / "theirs")
    for key in IDS:
        if hasattr(again.config, key):
            assert getattr(again.config, key) == getattr(before.generation_config if generates else before.config, key, None), key
        assert not generates or getattr(again.generation_config, key) == getattr(before.generation_config, key), key


def test_a_model_without_a_run_names_no_token_that_it_lacks(tmp_path):
    """Marian's own default of the first token, 58,100, is not a token of a small vocabulary."""
    sizes = {"source_vocab_size": 37, "target_vocab_size": 37, "max_length": 40, "width": 16, "heads": 2, "depth": (1, 1), "hidden": 24}
    marian = {"placement": "post", "position": "sinusoidal_halves", "output_bias": True, "tied": "all"}
    export(build("transformer", sizes | marian), tmp_path / "hf")
    read = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    assert [getattr(read.generation_config, key) for key in IDS] == [None, None, None, 1, None]  # it begins with ours


def test_a_head_around_a_loaded_model_keeps_its_tokenizer(tmp_path):
    tiny.build("bert").save_pretrained(tmp_path / "a")
    library_tokenizer(tmp_path / "a")
    judge = Classifier(regard.load(tmp_path / "a"), 2)
    export(judge, tmp_path / "b", labels=["no", "yes"])
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "b")) == tiny.N
    regard.save(judge, tmp_path / "run", labels=["no", "yes"])
    assert len(regard.load(tmp_path / "run").tokenizer) == tiny.N


@pytest.mark.parametrize(
    "wrong", [{"eos_token_id": "x"}, {"eos_token_id": [1, None]}, {"bos_token_id": -1}, {"suppress_tokens": ["a"]}, {"bad_words_ids": 3.5}]
)
def test_ids_that_are_none(wrong, tmp_path):
    tiny.build("gpt2").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(BadFile, match="token id"):
        regard.load(tmp_path)
