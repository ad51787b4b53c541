"""Multi30k: how good a translator gets in a given time on this machine, from captions of pictures (29,000 pairs).

Run:  python -m benchmarks.multi30k FOLDER [--pair en-de] [--model transformer] [--minutes 45] [--seeds 1] [--budget 1600] [--dropout 0.2] [--out runs] [--again]
FOLDER holds train, val and test_2016_flickr as train.en.gz and so on. Writes a row of the section `multi30k` of RESULTS.md.

The speed is measured first, and the number of steps set so that training with its evaluations takes the minutes given; the learning
rate then falls to zero just at the end. The transformer's hidden matrices are trained by Muon. BLEU is sacrebleu's default (cased, detokenised,
13a) on test_2016_flickr, beam 5. Beside it lower-cased, and lower-cased of words as Moses' tokeniser parts them (`pip install sacremoses`),
which is the measure of the literature (41.02: Wu et al. 2021, arXiv:2105.14462, Transformer-Tiny).
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

from regard.data import Tokenizers, read
from regard.decode import Beam, Power
from regard.kernels import keep_memory
from regard.models import build
from regard.tasks import Run
from regard.tasks.translation import TranslationConfig, TranslationTask, score, summed_loss, train_translator, translations
from regard.train import AdamW, Budget, Cosine, Every, Muon, OptimizerConfig, TrainConfig

from ._measure import machine, row

MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"width": 128, "heads": 4, "depth": (4, 4), "hidden": 256, "position": "rotary"},  # Transformer-Tiny's size
    "rnnsearch": {"width": 192, "embedding": 128, "alignment": 192, "maxout": 128},
}
TRAINED: dict[str, tuple[OptimizerConfig, float]] = {  # by what, and the highest rate
    "transformer": (Muon(weight_decay=0.01), 7e-3),
    "rnnsearch": (AdamW(weight_decay=1e-4), 2e-3),
}
WARMUP = {"transformer": 150, "rnnsearch": 800}
ALPHAS = (0.6, 1.0)  # of the length penalty: the better on the validation set is taken. More than 1 pays for length as such


def seconds_a_step(config: TranslationConfig, model: str, settings: dict[str, Any], steps: int = 40) -> float:
    """Of training, on real batches."""
    pairs = config.read()
    tokenizers = Tokenizers.train(pairs.train, config.tokens, config.vocab, config.joint)
    task = TranslationTask(pairs, tokenizers, config)
    made = build(model, {"source_vocab": len(tokenizers.source), "target_vocab": len(tokenizers.target), **settings}).train()
    optimizer = TRAINED[model][0].build(made)
    start = time.perf_counter()
    for number, item in enumerate(task.batches(0)[: steps + 5]):
        if number == 5:
            start = time.perf_counter()
        total, _, count = summed_loss(made, task.batch(item), config.smoothing)
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - start) / steps


def tokenised(found: Sequence[str], wanted: Sequence[str], language: str) -> float:
    """BLEU of lower-cased words, parted by Moses' rules in both."""
    if not find_spec("sacremoses"):
        return math.nan
    from sacremoses import MosesTokenizer

    parted = MosesTokenizer(language)
    hypotheses, references = ([parted.tokenize(text.lower(), escape=False, return_str=True) for text in texts] for texts in (found, wanted))
    return float(sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score)


def decoded(run: Run, sources: Sequence[str], alpha: float) -> list[str]:
    return [text for text, _ in translations(run.model, run.tokenizers, sources, Beam(width=5, length=Power(alpha)))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--pair", default="en-de")
    options.add_argument("--model", default="transformer", choices=MODELS)
    options.add_argument("--minutes", type=float, default=45)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--vocab", type=int, default=4000)
    options.add_argument("--budget", type=int, default=1600, help="tokens a batch, the longer side counted")
    options.add_argument("--dropout", type=float, default=0.2)
    options.add_argument("--out", type=Path, default=Path("runs"))
    options.add_argument("--again", action="store_true", help="train nothing, judge the runs that are there")
    given = options.parse_args()
    keep_memory()  # as `regard train` does
    source, target = given.pair.split("-")

    def files(part: str) -> str:
        return f"{given.folder}/{part}.{source}.gz {given.folder}/{part}.{target}.gz"

    config = TranslationConfig(data=files("train"), valid=files("val"), vocab=given.vocab, budget=given.budget, judged=500)
    settings = MODELS[given.model] | {"dropout": given.dropout}
    steps = 1  # of runs that are only judged: not looked at
    if not given.again:
        step = seconds_a_step(config, given.model, settings)
        steps = int(given.minutes * 60 * 0.88 / step)  # the rest: evaluations, and what a long run is slower by
        print(f"{step * 1e3:.0f} ms a step: {steps} steps", flush=True)
    (tried, right), (sources, wanted) = (
        zip(*read(files(part), shares=(0.0, 0.0)).train, strict=True) for part in ("val", "test_2016_flickr")
    )
    cased, lower, parted, minutes, made = [], [], [], [], []
    for seed in range(given.seeds):
        train = TrainConfig(
            budget=Budget(steps=steps, minutes=given.minutes),
            optimizer=TRAINED[given.model][0],
            schedule=Cosine(peak=TRAINED[given.model][1], warmup=min(WARMUP[given.model], steps // 8), steps=steps),
            every=Every(evaluate=max(1, steps // 4), log=50),
            seed=seed,
        )
        out = given.out / f"multi30k-{given.pair}-{given.model}-{given.minutes:g}-{seed}"
        if not given.again:
            result = train_translator(out, config, train, given.model, settings, progress=False)
            (out / "took.json").write_text(json.dumps({"steps": result.steps, "seconds": result.seconds, "machine": machine()}))
        took, run = json.loads((out / "took.json").read_text()), Run.load(out)
        alpha = max(ALPHAS, key=lambda alpha: score(decoded(run, tried, alpha), right).bleu)
        start = time.perf_counter()
        found = decoded(run, sources, alpha)
        decoding = time.perf_counter() - start
        judged = score(found, wanted)
        cased.append(judged.bleu)
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
        print(judged.signature, flush=True)

    def shown(numbers: list[float]) -> str:
        return f"{statistics.mean(numbers):.2f}" + (f" ({min(numbers):.2f}–{max(numbers):.2f})" if len(numbers) > 1 else "")

    said = f"{given.pair}, {given.model}, {type(TRAINED[given.model][0]).__name__}, {given.vocab} tokens, {given.budget} a batch, dropout {given.dropout}{', judged again' if given.again else ''}"
    row(
        "multi30k",
        [
            "## Multi30k, test_2016_flickr",
            "",
            "BLEU by sacrebleu, beam 5, the length penalty's α 0.6 or 1.0 by validation; mean and range over seeds.",
            "`judged again`: the run is older than the rule by which it is judged (LOG.md says why).",
            "",
        ],
        "| what | minutes of training | steps | seeds | cased | lower-cased | tokenised by Moses | machine |",
        f"| {said} | {statistics.mean(minutes):.1f} | {statistics.mean(made):,.0f} | {given.seeds} | **{shown(cased)}** | {shown(lower)} | {shown(parted)} | "
        f"{took['machine']} |",
    )


if __name__ == "__main__":
    main()
