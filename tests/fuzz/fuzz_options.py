"""Options of every mechanism, settings of every model, options of training and of the command line, with values that nobody should give.

    python tests/fuzz/fuzz_options.py --cases 20000 --seed 0          or: make fuzz

Each case gives one or two options values of every type and size. What is made of them is used: a mechanism attends, a model reads, options
make an optimizer and a schedule. It works, or ends with one typed error. Failures are printed with their number: --only N repeats one.
"""

import argparse
import contextlib
import io
import math
import random
import sys
from collections import Counter
from dataclasses import fields

import torch

from regard import causal, full
from regard.attention import MECHANISMS
from regard.cli import main as command
from regard.errors import RegardError
from regard.layers.spec import _known_settings
from regard.machine import find_device
from regard.models import MODELS, build
from regard.run_config import parse_options
from regard.testing._models import inputs
from regard.testing._subject import NotApplicable
from regard.train import TrainOptions
from regard.train.optim import optimizer_of
from regard.train.schedule import schedule_of

H, K, L = 4, 7, 17
HUGE = [2**31 - 1, 2**31, 2**63, 10**20, -(10**20), 1e300, math.inf, -math.inf, math.nan, 1e400]
VALUES = [
    *(-3, -1, 0, 1, 2, 3, 5, 64, -1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.5, 1e-300),
    *(
        "x",
        "",
        "none",
        "softmax",
        "local(radius=2)",
        "linear, softmax",
        "softmax(scale='x')",
        "softmax under",
        "gelu",
        "\x00",
        b"x",
        None,
        True,
    ),
    *(
        (),
        (0,),
        (2,),
        (1, 2),
        (2, 2),
        (-1, 2),
        (0.5,) * H,
        (1.5,),
        ("x",),
        ("softmax",),
        [2, 2],
        [[1, 2]],
        [],
        {},
        {"x": 1},
        {1},
        object(),
        1j,
    ),
    *HUGE,
    *((value,) for value in HUGE[:4]),
]
SMALL = {
    **{"vocab_size": 11, "source_vocab_size": 11, "target_vocab_size": 11, "context_length": 16, "max_length": 16, "width": 8, "heads": 2},
    **{"hidden": 8, "depth": 1, "embedding": 8, "alignment": 8, "features": 8, "image_size": 8, "patch_size": 4, "image_width": 8},
    **{"image_heads": 2, "image_depth": 1, "image_hidden": 8, "head_dim": 4, "kv_heads": 2, "codes": 8, "maxout": 4, "token_hidden": 8},
    **{"frames": 4, "temporal_depth": 1, "encoder_depth": 1, "components": 2, "latent": 4, "glimpses": 2, "landmarks": 4, "segmented": 16},
    **{
        "kernel": 3,
        "block": 4,
        "random": 1,
        "chunk": 4,
        "window": 4,
        "key_size": 4,
        "queries": 2,
        "max_sentences": 4,
        "sentence_length": 4,
    },
}
FEWER = {"alignment", "chunk", "window"}  # of some models tuples, of others absent


def is_huge(value):
    return any(isinstance(each, int | float) and abs(each) > 10_000 for each in (value if isinstance(value, tuple | list) else [value]))


def mechanism_case(dice):
    mechanism = dice.choice(MECHANISMS)
    given = mechanism.sized(heads=H, head_dim=K, length=L).settings
    known = [name for name in _known_settings(mechanism) or [] if name != "parts"]
    chosen = {name: dice.choice(VALUES) for name in dice.sample(known, min(len(known), dice.choice([1, 1, 2])))}

    def act():
        attention = mechanism(**{**given, **chosen})
        q, k, v = torch.randn(3, 1, L, H, K, requires_grad=True).unbind()
        gates = {name: torch.zeros(shape) for name, shape in attention.gate_shapes(q, k).items()}
        for pattern in (full, causal):
            if attention.supports(pattern):
                out = attention(q, k, v, pattern, **gates)
                if out.requires_grad:
                    out.sum().backward()

    return f"{mechanism.__name__}({said(chosen)})", act


def model_case(dice):
    model = dice.choice(MODELS)
    known = {field.name: field for field in fields(model.Config)}
    small = {name: SMALL[name] for name in known if name in SMALL}
    if model.facts.name == "nystromformer":
        small["segmented"] = 16
    chosen = {name: dice.choice(VALUES) for name in dice.sample(sorted(known), dice.choice([1, 1, 2]))}

    def act():
        made = build(model.facts.name, {**small, **chosen}).eval()
        if not any(map(is_huge, chosen.values())):
            with contextlib.suppress(NotApplicable), torch.no_grad():
                made(*inputs(made))

    return f"build({model.facts.name!r}, {said(chosen)})", act


def training_case(dice):
    chosen = {name: dice.choice(VALUES) for name in dice.sample([field.name for field in fields(TrainOptions)], dice.choice([1, 1, 2]))}

    def act():
        for make in (lambda: TrainOptions(**chosen), lambda: parse_options(TrainOptions, chosen, "training")):
            options = make()
            find_device(options.device)
            optimizer_of(options).build(torch.nn.Linear(3, 3))
            assert all(math.isfinite(schedule_of(options, 7).at(step, step / 10)) for step in (1, 2, 9))

    return f"TrainOptions({said(chosen)})", act


WORDS = [
    "-1",
    "0",
    "1",
    "2",
    "1e3",
    "0.5",
    "nan",
    "inf",
    "1e400",
    str(10**20),
    str(2**63),
    str(2**70),
    "x",
    "",
    "none",
    "auto",
    "--",
    "é",
    "a=b",
]


def command_case(dice):
    flags = [field.name.replace("_", "-") for field in fields(TrainOptions)]
    flags += ["context-length", "batch-size", "vocab-size", "tokenizer", "shares", "set", "model", "stride", "no-such-option"]
    chosen = [part for _ in range(dice.choice([1, 1, 2])) for part in (f"--{dice.choice(flags)}", dice.choice(WORDS))]

    def act():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as heard:
            code = command(["train", "language", "--data", "text.txt", "--out", "run", "--print-config", *chosen])
        assert code in (0, 2) and "Traceback" not in heard.getvalue(), heard.getvalue()
        assert code == 0 or len(heard.getvalue().strip().splitlines()) <= 3, heard.getvalue()

    return f"regard train language {' '.join(chosen)}", act


KINDS = (mechanism_case,) * 12 + (model_case,) * 12 + (training_case,) * 3 + (command_case,)


def said(chosen):
    return ", ".join(f"{name}={value!r}" for name, value in chosen.items())


def run(number, seed):
    """One case: what it was, and what went wrong, "" if nothing."""
    dice = random.Random(f"{seed} {number}")
    torch.manual_seed(number)
    name, act = dice.choice(KINDS)(dice)
    try:
        act()
    except RegardError as error:
        return name, "" if str(error).strip() and "\n" not in str(error).strip() else f"not one line: {error}"
    except Exception as error:
        return name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return name, ""


def main(cases, seed, only=None):
    wrong = Counter()
    for number in range(cases) if only is None else [only]:
        name, problem = run(number, seed)
        if problem:
            wrong[number] += 1
            print(f"{number}: {name}: {problem}", flush=True)
    print(f"{cases if only is None else 1} cases, {len(wrong)} failures, seed {seed}")
    return int(bool(wrong))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", type=int)
    given = options.parse_args()
    torch.set_num_threads(1)
    sys.exit(main(given.cases, given.seed, given.only))
