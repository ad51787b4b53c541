"""Multi30k: how good a translator gets within a time limit on this machine, from image captions (29,000 pairs).

Run:  python -m benchmarks.multi30k FOLDER [--pair en-de] [--model transformer] [--minutes 45] [--seeds 1] [--batch-tokens 1600] [--dropout 0.2]
FOLDER holds train, val and test_2016_flickr as train.en.gz and so on. Writes a row of the section `multi30k` of RESULTS.md.

The speed is measured first, and the number of steps set so that training with its evaluations takes the given minutes; the learning
rate then decays to zero just at the end. The transformer's hidden matrices are trained by Muon. BLEU is sacrebleu's default (cased,
detokenised, 13a) on test_2016_flickr, beam 5. Beside it lower-cased, and lower-cased after Moses' tokenizer (sacremoses), the measure of
the literature (41.02: Wu et al. 2021, arXiv:2105.14462, Transformer-Tiny).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sacrebleu
import torch

from regard.data import read_pairs
from regard.decode import Beam, Power
from regard.machine import keep_memory
from regard.metrics import score_translations
from regard.models import build
from regard.runs import Run
from regard.tasks import TaskObjective, Translation, TranslationOptions, load_run, train, translations
from regard.train import TrainOptions, optimizer_of

from ._common import machine, train_step, write_row

MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"width": 128, "heads": 4, "depth": (4, 4), "hidden": 256, "position": "rotary"},  # Transformer-Tiny's size
    "rnnsearch": {"width": 192, "embedding": 128, "alignment": 192, "maxout": 128},
}
TRAINED: dict[str, dict[str, Any]] = {
    "transformer": {"optimizer": "muon", "weight_decay": 0.01, "lr": 7e-3},
    "rnnsearch": {"optimizer": "adamw", "weight_decay": 1e-4, "lr": 2e-3},
}
WARMUP = {"transformer": 150, "rnnsearch": 800}
ALPHAS = (0.6, 1.0)  # of the length penalty: the better one on the validation set is taken. More than 1 rewards length as such


def seconds_per_step(options: TranslationOptions, model: str, settings: dict[str, Any], steps: int = 40) -> float:
    """Of training, on real batches."""
    task = Translation(options)
    pairs = task.read()
    task.processor = task.make_processor(pairs, None)
    made = build(model, {**task.settings(model, pairs), **settings}).train()
    objective, generator = TaskObjective(task, pairs, made), torch.Generator()
    optimizer = optimizer_of(TrainOptions(**TRAINED[model])).build(made)
    start = time.perf_counter()
    for number, item in enumerate(objective.batches(0)[: steps + 5]):
        if number == 5:
            start = time.perf_counter()
        train_step(objective, made, optimizer, item, generator)
    return (time.perf_counter() - start) / steps


def tokenised(found: Sequence[str], wanted: Sequence[str], language: str) -> float:
    """BLEU of lower-cased text after Moses' tokenizer."""
    if not find_spec("sacremoses"):
        return math.nan
    from sacremoses import MosesTokenizer

    parted = MosesTokenizer(language)
    hypotheses, references = ([parted.tokenize(text.lower(), escape=False, return_str=True) for text in texts] for texts in (found, wanted))
    return float(sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score)


def decoded(run: Run, sources: Sequence[str], alpha: float) -> list[str]:
    return [text for text, _ in translations(run, sources, Beam(size=5, length_penalty=Power(alpha)))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--pair", default="en-de")
    options.add_argument("--model", default="transformer", choices=MODELS)
    options.add_argument("--minutes", type=float, default=45)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--vocab-size", type=int, default=4000)
    options.add_argument("--batch-tokens", type=int, default=1600, help="tokens per batch, of the longer side")
    options.add_argument("--dropout", type=float, default=0.2)
    options.add_argument("--out", type=Path, default=Path("runs"))
    options.add_argument("--again", action="store_true", help="train nothing, evaluate existing runs")
    given = options.parse_args()
    keep_memory()  # as `regard train` does
    source, target = given.pair.split("-")

    def files(part: str) -> str:
        return f"{given.folder}/{part}.{source}.gz {given.folder}/{part}.{target}.gz"

    config = TranslationOptions(
        data=files("train"), valid=files("val"), vocab_size=given.vocab_size, batch_tokens=given.batch_tokens, valid_sentences=500
    )
    settings = MODELS[given.model] | {"dropout": given.dropout}
    steps = 1  # unused where runs are only evaluated
    if not given.again:
        step = seconds_per_step(config, given.model, settings)
        steps = int(given.minutes * 60 * 0.88 / step)  # the rest is for evaluations, and because long runs are slower
        print(f"{step * 1e3:.0f} ms per step: {steps} steps", flush=True)
    (tried, right), (sources, wanted) = (
        zip(*read_pairs(files(part), shares=(0.0, 0.0)).train, strict=True) for part in ("val", "test_2016_flickr")
    )
    cased, lower, parted, minutes, made = [], [], [], [], []
    for seed in range(given.seeds):
        training = TrainOptions(
            steps=steps, minutes=given.minutes, **TRAINED[given.model], schedule="cosine", average=0, seed=seed,
            warmup_steps=min(WARMUP[given.model], steps // 8), evaluate_every=max(1, steps // 4), log_every=50,
        )  # fmt: skip
        out = given.out / f"multi30k-{given.pair}-{given.model}-{given.minutes:g}-{seed}"
        if not given.again:
            result = train(Translation, config, training, out, model=given.model, settings=settings, progress=False)
            (out / "took.json").write_text(json.dumps({"steps": result.steps, "seconds": result.seconds, "machine": machine()}))
        took, run = json.loads((out / "took.json").read_text()), load_run(out)
        alpha = max(ALPHAS, key=lambda alpha: score_translations(decoded(run, tried, alpha), right).bleu)
        start = time.perf_counter()
        found = decoded(run, sources, alpha)
        decoding = time.perf_counter() - start
        scored = score_translations(found, wanted)
        cased.append(scored.bleu)
        lower.append(sacrebleu.corpus_bleu(found, [wanted], lowercase=True).score)
        parted.append(tokenised(found, wanted, target))
        minutes.append(took["seconds"] / 60)
        made.append(took["steps"])
        (out / "test.txt").write_text("\n".join(found) + "\n", encoding="utf-8")
        print(
            f"seed {seed}: {took}; cased {cased[-1]:.2f}, lower-cased {lower[-1]:.2f}, tokenised {parted[-1]:.2f}, alpha {alpha}, "
            f"{decoding:.0f} s of decoding",
            flush=True,
        )
        print(scored.signature, flush=True)

    def shown(numbers: list[float]) -> str:
        return f"{statistics.mean(numbers):.2f}" + (f" ({min(numbers):.2f}–{max(numbers):.2f})" if len(numbers) > 1 else "")

    run_name = f"{given.pair}, {given.model}, {TRAINED[given.model]['optimizer']}, {given.vocab_size} tokens, {given.batch_tokens} per batch, dropout {given.dropout}{', evaluated again' if given.again else ''}"
    write_row(
        "multi30k",
        [
            "## Multi30k, test_2016_flickr",
            "",
            "BLEU by sacrebleu, beam 5, the length penalty's α 0.6 or 1.0 by validation; mean and range over seeds.",
            "`evaluated again`: the run is older than the rule that chooses α (docs/log says why).",
            "",
        ],
        "| run | minutes of training | steps | seeds | cased | lower-cased | tokenised by Moses | machine |",
        f"| {run_name} | {statistics.mean(minutes):.1f} | {statistics.mean(made):,.0f} | {given.seeds} | **{shown(cased)}** | {shown(lower)} | {shown(parted)} | "
        f"{took['machine']} |",
    )


if __name__ == "__main__":
    main()
