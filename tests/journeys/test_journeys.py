"""What a new user does in the first hour, end to end through the real command line: steps, not minutes; files, outputs and exit codes."""

import json

import pytest

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WORTE = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
SMALL = ("--set", "width=16", "--set", "heads=2", "--set", "depth=1")


def test_the_first_minutes(regard):
    """Look around: nothing here needs a run."""
    assert regard("--version").stdout.startswith("regard ")
    assert regard("version").stdout == regard("--version").stdout
    assert "Explore:" in regard("help").stdout and regard("help").stdout == regard().stdout
    assert max(map(len, regard("list").stdout.splitlines())) <= 80
    assert "context_length" in regard("show", "gpt2").stdout
    assert "Claim" in regard("show", "memory2020").stdout
    assert "■" in regard("show", "causal & window(2)").stdout
    assert "did you mean --json?" in regard("list", "--jsn", code=2).stderr
    assert "did you mean 'softmax'" in regard("show", "sofmax", code=2).stderr


def test_a_translator(regard):
    pairs = regard.write(
        "pairs.tsv",
        "".join(f"{a} and then {b}\t{WORTE[n]} und dann {WORTE[m]}\n" for n, a in enumerate(WORDS) for m, b in enumerate(WORDS)),
    )
    train = ("train", "translation", "--data", pairs, "--tokenizer", "word", "--batch-tokens", "256", *SMALL, "--quiet")
    done = regard(*train, "--steps", "3", "--out", "runs/pairs")
    assert "parameters, vocabulary" in done.stderr and "to train on" in done.stderr and "warm-up" in done.stderr
    assert "Finished (all steps done) at step 3; best: step " in done.stderr and "Next:  regard evaluate runs/pairs" in done.stdout
    assert "90 pairs to train on" in done.stderr
    config = json.loads((regard.folder / "runs/pairs/config.json").read_text())
    assert config["model"]["config"]["depth"] == [1, 1] and config["train"]["warmup_steps"] == 0  # at most a tenth of the budget
    assert len({path.stat().st_mode for path in (regard.folder / "runs/pairs").rglob("*.*") if path.is_file()}) == 1
    assert len(regard("predict", "runs/pairs", "one two", "three four", process=True).stdout.splitlines()) == 2
    assert regard("predict", "runs/pairs", given="one two\n").stdout == regard("predict", "runs/pairs", "one two").stdout
    assert "bleu" in json.loads(regard("evaluate", "runs/pairs", "--json").stdout)
    picture = regard.folder / "map.png"
    regard("look", "runs/pairs", "one two", "--png", "map.png")
    assert picture.read_bytes().startswith(b"\x89PNG")

    assert "already holds a run" in regard(*train, "--steps", "3", "--out", "runs/pairs", code=2).stderr
    before = (regard.folder / "runs/pairs/config.json").read_bytes()
    assert "heads" in regard("train", "translation", "--out", "runs/pairs", "--resume", "--set", "heads=4", code=2).stderr
    assert (regard.folder / "runs/pairs/config.json").read_bytes() == before, "a refused resume changed the run"
    assert "at step 5" in regard("train", "translation", "--out", "runs/pairs", "--resume", "--steps", "5", "--quiet").stderr
    assert "nothing to resume" in regard("train", "translation", "--out", "runs/typo", "--resume", code=2).stderr
    assert "not a model for translation" in regard(*train, "--model", "gpt2", "--out", "runs/x", code=2).stderr
    assert not (regard.folder / "runs/x").exists()


def test_one_word_targets_have_no_bleu(regard):
    pairs = regard.write("words.tsv", "".join(f"{a}\t{b}\n" for a, b in zip(WORDS, WORTE, strict=True)) * 5 + "one column\n")
    skip = ("--on-error", "skip", "--shares", "0.2", "0.2", "--tokenizer", "char", *SMALL, "--quiet")
    done = regard("train", "translation", "--data", pairs, "--steps", "2", "--out", "runs/words", *skip)
    assert "1 of 51 pairs skipped: 1 too few columns" in done.stderr
    assert "bleu" not in done.stderr + done.stdout and "exact_match" in done.stdout


@pytest.fixture(scope="module")
def book(regard) -> str:
    return regard.write("book.txt", "".join(f"Chapter {n}: the square of {n} is {n * n}, and its cube is {n**3}.\n" for n in range(150)))


LM = ("--tokenizer", "char", "--context-length", "32", "--batch-size", "4", "--quiet")


@pytest.fixture(scope="module")
def language(regard, book) -> str:
    regard("train", "language", "--data", book, *LM, *SMALL, "--steps", "4", "--out", "runs/book")
    return "runs/book"


def test_a_language_model(regard, language, book):
    completion = regard("complete", language, "Chapter", "--max-tokens", "40", "--seed", "0", "--n", "3").stdout
    assert completion.strip("\n") != ""  # a draw may end at once; three drawn from one seed do not
    assert "perplexity" in regard("evaluate", language).stdout
    regard("look", language, "Chapter 1")
    assert "does not generate" in regard("complete", "runs/pairs", "x", code=2).stderr or not (regard.folder / "runs/pairs").exists()
    done = regard("train", "language", "--data", book, *LM, *SMALL, "--minutes", "0.02", "--out", "runs/clock")
    assert "time limit reached" in done.stderr
    warmup = json.loads((regard.folder / "runs/clock/config.json").read_text())["train"]["warmup_steps"]
    assert 1 <= warmup <= 400


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_schedules(regard, book, schedule):
    options = (
        "--schedule",
        schedule,
        "--weight-decay",
        "0.1",
        "--clip",
        "0.5",
        "--patience",
        "3",
        "--eval-every",
        "2",
        "--save-every",
        "2",
    )
    regard("train", "language", "--data", book, *LM, *SMALL, "--steps", "4", *options, "--threads", "1", "--out", f"runs/{schedule}")
    config = json.loads((regard.folder / f"runs/{schedule}/config.json").read_text())["train"]
    assert (config["schedule"], config["evaluate_every"], config["threads"]) == (schedule, 2, 1)


def test_other_attention(regard, language, book):
    regard("train", "language", "--data", book, *LM, *SMALL, "--steps", "2", "--attention", "local(radius=4)", "--out", "runs/local")
    assert "local(radius=4)" in (regard.folder / "runs/local/config.json").read_text()
    assert "Attention replaced by performer" in regard("swap", language, "performer", "--out", "runs/performer").stdout
    regard("complete", "runs/performer", "Chapter", "--max-tokens", "3")
    done = regard(
        "train", "language", "--data", book, *LM, "--init-from", language, "--attention", "linear", "--steps", "2", "--out", "runs/new"
    )
    assert "Attention replaced by linear" in done.stderr
    assert "linear" in regard("train", "language", "--data", book, "--attention", "lineer", "--out", "runs/x", code=2).stderr


def test_an_encoder_and_a_classifier(regard, book):
    small = ("--tokenizer", "char", "--quiet")
    regard(
        "train",
        "masked",
        "--data",
        book,
        *small,
        *SMALL,
        "--max-length",
        "32",
        "--batch-size",
        "4",
        "--steps",
        "2",
        "--out",
        "runs/encoder",
    )
    rows = "".join(f"{WORDS[n % 10]} {'good' if n % 2 else 'bad'}\t{'yes' if n % 2 else 'no'}\n" for n in range(60))
    regard.write("reviews.tsv", rows)
    base = ("--init-from", "runs/encoder", "--seeds", "0", "--epochs", "1", "--quiet")
    done = regard("train", "classify", "--data", "reviews.tsv", *base, "--shares", "0.2", "0.2", "--out", "runs/reviews")
    assert "accuracy" in done.stdout and "over 1 seeds" not in done.stdout
    assert json.loads((regard.folder / "runs/reviews/config.json").read_text())["options"]["freeze"] == 0.0
    assert regard("predict", "runs/reviews", "seven good").stdout.startswith(("yes", "no"))


def test_exchange(regard, language):
    pytest.importorskip("transformers", reason="an extra: pip install 'regard[interop]'")
    assert "config.json" in regard("export", language, "--out", "published").stdout
    assert "parameters" in regard("import", "published", "--out", "runs/again").stdout
    assert regard("evaluate", "runs/nowhere", code=2).stderr.startswith("regard: runs/nowhere")


def test_a_config_file(regard, book):
    text = regard("train", "language", "--data", book, *LM[:-1], *SMALL, "--steps", "2", "--attention", "linear", "--print-config").stdout
    regard.write("run.toml", text)
    regard("train", "--config", "run.toml", "--out", "runs/from-file", "--quiet")
    assert "linear" in (regard.folder / "runs/from-file/config.json").read_text()
