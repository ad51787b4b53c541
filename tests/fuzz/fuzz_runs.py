"""Run directories and checkpoints, mutated at random: whatever is in them, using them works or ends with one typed error.

    python tests/fuzz/fuzz_runs.py --cases 100000 --seed 0          or: make fuzz

Each case copies a tiny run, damages it (bytes, JSON values, tensor headers, whole files: gone, swapped, emptied, a folder, a FIFO, a device,
a loop of links), and does what a user would: list it, load it, predict, resume it. A child process does the cases, with at most 1 GiB of
memory more than it began with, and is started again after one that kills it. Failures are printed with their number: --only N repeats one.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from hashlib import sha256
from itertools import cycle
from pathlib import Path

import torch

import regard
from regard.cli.runs import Runs
from regard.data import Tokenizer
from regard.data.hf_tokenizer import HFTokenizer
from regard.errors import RegardError
from regard.models import Classifier, build
from regard.tasks import TASKS, LanguageOptions, predict, train
from regard.train import TrainOptions

MEMORY = 1 << 30  # bytes
SECONDS = 20  # of one case
TEXT = "the cat sat on the mat and the dog on the log; " * 20
SIZES = {"width": 4, "heads": 2, "depth": 1}
EXTREMES = [0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, 10**40, -(2**63), 0.5, 1e308, -1e-320, True, False, None, "", "x", "softmax", "\x00",
            "a" * 5000, "\x1b[2J", "../../x", "/dev/zero", [], {}, [[]], [1] * 1000, {"x": {}}, "⟨pad⟩", "\ud800", float("nan"), float("inf")]  # fmt: skip


def seeds(folder):
    """Runs and an input of each, as many of language models as of all other tasks: trained with checkpoints; saved; with the tokenizer of
    another library; the example of every task."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tasks"))  # this is a script

    torch.manual_seed(0)
    (folder / "text.txt").write_text(TEXT)
    options = LanguageOptions(data=str(folder / "text.txt"), tokenizer="char", context_length=8, batch_size=2, shares=(0.1, 0.1))
    train(
        "language",
        options,
        TrainOptions(steps=4, save_every=2, evaluate_every=2, average=0),
        folder / "trained",
        settings=SIZES,
        progress=False,
    )
    shutil.rmtree(folder / "trained" / "tokens")  # a cache; it has its own tests
    bpe = Tokenizer.train([TEXT], "bpe", 280)
    body = build("gpt2", {"vocab_size": 280, "context_length": 8, **SIZES})
    regard.save(Classifier(body, 2), folder / "classifier", tokenizer=bpe, labels=["no", "yes"])
    regard.save(body, folder / "hf", tokenizer=HFTokenizer.from_tokenizer(bpe))
    bert = build("bert", {"vocab_size": 281, "max_length": 8, **SIZES})
    regard.save(bert.with_attention("linear"), folder / "encoder", tokenizer=bpe)
    saved = [(folder / name, "the cat") for name in ("trained", "trained", "classifier", "hf", "encoder")]
    return [one for pair in zip(cycle(saved), examples(folder), strict=False) for one in pair]


def examples(folder):
    """A run of every task."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tasks"))  # this is a script
    from examples import write_example

    for task in TASKS:
        (folder / task.name).mkdir()
        example, out = write_example(task, folder / task.name), folder / f"{task.name}-run"
        options = task.default_train.replace(steps=2, epochs=None, minutes=None, seeds=(), schedule="constant", average=0, evaluate_every=1)
        train(task, example.options, options, out, settings=example.settings, progress=False)
        shutil.rmtree(out / "tokens", ignore_errors=True)
        yield out, example.input


# -- damage ------------------------------------------------------------------------------------------------------------


def usable(path):
    """Whether it can still be damaged: a file of moderate size, not yet replaced by a link."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22


def damage_bytes(path, dice):
    data = bytearray(path.read_bytes())
    for _ in range(dice.choice((1, 1, 1, 3, 20))):
        at = dice.randrange(len(data) + 1)
        how = dice.randrange(5)
        if how == 0 and data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
        elif how == 1:
            data[at:at] = dice.randbytes(dice.choice((1, 8, 100)))
        elif how == 2:
            del data[at : at + dice.choice((1, 8, 1000))]
        elif how == 3:
            data[at:at] = dice.choice((b"\xff\xfe", b"\xc3", b"\x00", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b"\n", b'"'))
        else:
            del data[at:]
    path.write_bytes(data)


def paths_in(value, here=()):
    yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from paths_in(child, (*here, key))


def damage_json(path, dice):
    """A value replaced, removed, doubled or added; False if the file is not JSON."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):  # RecursionError: an earlier damage has nested it too deep for Python's decoder
        return damage_bytes(path, dice)
    for _ in range(dice.choice((1, 1, 2))):
        spots = [spot for spot in paths_in(value) if spot]
        if not spots:
            break
        *above, key = dice.choice(spots)
        parent = value
        for step in above:
            parent = parent[step]
        how = dice.randrange(4)
        if how < 2:
            parent[key] = copy.deepcopy(dice.choice(EXTREMES))  # what is put in may be damaged next
        elif how == 2:
            del parent[key]
        elif isinstance(parent, dict):
            parent[dice.choice(("depth", "x", "format_version", f"{key}s"))] = copy.deepcopy(parent[key])
        else:
            parent.insert(key, copy.deepcopy(parent[key]))
    text = json.dumps(value)
    path.write_bytes(text.replace("NaN", dice.choice(("NaN", "nan", "1e999"))).encode())


def damage_tensors(path, dice):
    """The header of a file of tensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = path.with_suffix(".header")
    header.write_bytes(data[8 : 8 + size])
    damage_json(header, dice)
    new = header.read_bytes()
    header.unlink()
    length = dice.choice((len(new), len(new), len(new), size, 0, 2**40, 2**63)) if dice.random() < 0.3 else len(new)
    path.write_bytes(length.to_bytes(8, "little") + new + data[8 + size :])


def damage_whole(path, dice):
    """Something else in place of the file."""
    other = dice.choice([one for one in sorted(path.parent.rglob("*")) if usable(one)])
    content = other.read_bytes()
    path.unlink()
    how = dice.randrange(8)
    if how == 0:
        path.write_bytes(b"")
    elif how == 1:
        path.write_bytes(content)
    elif how == 2:
        path.mkdir()
    elif how == 3:
        os.mkfifo(path)
    elif how == 4:
        path.symlink_to(dice.choice(("/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem")))
    elif how == 5:
        path.symlink_to(path.name)  # a loop
    elif how == 6:
        path.write_bytes(b"")
        os.truncate(path, 1 << 40)  # a terabyte of nothing


def rehash(folder):
    """Make a damaged checkpoint consistent again, as somebody who means harm would."""
    for state in folder.glob("state/step-*"):
        if not usable(state / "manifest.json"):
            continue
        try:
            manifest = json.loads((state / "manifest.json").read_text())
            for name, about in manifest["files"].items():
                content = (state / name).read_bytes() if usable(state / name) else b""
                about |= {"size": len(content), "sha256": sha256(content).hexdigest()}
            (state / "manifest.json").write_text(json.dumps(manifest))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    if not (folder / "state" / "latest").is_dir():
        (folder / "state" / "latest").unlink(missing_ok=True)


def damage(folder, dice):
    """A few mutations of one run."""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        files = sorted(one for one in folder.rglob("*") if usable(one))
        if not files:
            return
        path, how = dice.choice(files), dice.random()
        if how < 0.1:
            damage_whole(path, dice)
        elif path.suffix == ".safetensors" and how < 0.6:
            damage_tensors(path, dice)
        elif path.suffix == ".json" and how < 0.8:
            damage_json(path, dice)
        else:
            damage_bytes(path, dice)
    if (folder / "state").is_dir() and dice.random() < 0.5:
        rehash(folder)


# -- use ---------------------------------------------------------------------------------------------------------------


def attempt(problems, what, action):
    """Typed errors of one line are fine; anything else is a problem."""
    try:
        return action()
    except RegardError as error:
        if "\n" in str(error) or len(str(error)) > 6000:
            problems.append(f"{what}: not one line: {str(error)[:300]!r}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        problems.append(f"{what}: {type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})")
    return None


def list_runs(folder):
    """`regard runs`: nothing in a run may command the terminal."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        Runs(folder=folder).run()
    if not all(c.isprintable() or c == "\n" for c in out.getvalue()):
        raise ValueError(f"control characters: {out.getvalue()[:200]!r}")


def case(number, seed, runs, scratch):
    """One damaged run, used. What went wrong."""
    dice, problems = random.Random(f"{seed}/{number}"), []
    folder = scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    origin, text = runs[number % len(runs)]
    shutil.copytree(origin, folder)
    damage(folder, dice)
    attempt(problems, "list", lambda: list_runs(scratch))
    run = attempt(problems, "load", lambda: regard.load_run(folder))
    if run is not None:
        attempt(problems, "predict", lambda: predict(run, [text]))
    if origin.name == "trained" and number % 2:
        options = TrainOptions(steps=5, save_every=2, evaluate_every=2, average=0)
        data = LanguageOptions(data=str(origin.parent / "text.txt"), tokenizer="char", context_length=8, batch_size=2, shares=(0.1, 0.1))
        attempt(problems, "resume", lambda: train("language", data, options, folder, settings=SIZES, resume=True, progress=False))
    return problems


def child(numbers, seed, runs, scratch, out):
    """Cases in this process, with a limit on its memory and on the time of each; each is noted before it begins."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with open(out, "a", buffering=1) as report:
        for number in numbers:
            report.write(f"{number}\n")
            signal.alarm(SECONDS)  # whoever does not end by then is killed by it
            problems: list[str] = []
            found = attempt(problems, "the case itself", lambda number=number: case(number, seed, runs, scratch))
            for problem in [*problems, *(found or ())]:
                report.write(f"{number} {' '.join(problem.split())}\n")
        report.write("done\n")
    os._exit(0)


def fuzz(cases, seed, only=None, show=print):
    """The problems found, by number."""
    torch.set_num_threads(1)
    problems, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs = seeds(Path(folder))
        (Path(folder) / "scratch").mkdir()
        todo, report = list(range(cases) if only is None else only), Path(folder) / "report"
        while todo:
            report.write_text("")
            pid = os.fork()
            if not pid:
                try:
                    child(todo, seed, runs, Path(folder) / "scratch", report)
                finally:
                    os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            lines = report.read_text().splitlines()
            problems += [line for line in lines if " " in line]
            reached = [int(line) for line in lines if line.isdecimal()]
            if lines and lines[-1] == "done":
                break
            if not reached:
                problems.append(f"no case was begun: the child ended with {status}")
                break
            problems.append(f"{reached[-1]} the process ended with {status} ({SECONDS} s are over if that is {-signal.SIGALRM})")
            todo = todo[todo.index(reached[-1]) + 1 :]
    show(f"{cases if only is None else len(only)} cases in {time.monotonic() - began:.0f} s, seed {seed}: {len(problems)} problems")
    for line in problems[:200]:
        show(line)
    return problems


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", type=int, nargs="*")
    given = options.parse_args()
    sys.exit(bool(fuzz(given.cases, given.seed, given.only)))
