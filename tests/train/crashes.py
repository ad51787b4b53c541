"""Runs that are killed at chosen places, resumed, and described on standard output as JSON, one object for each.

PyTorch is imported once; every run is a fork, made before any tensor was touched, so that a kill is a real kill of a real process.
The places are patched in here: the library has no idea that it is being killed.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # optimisers import it when they are made: once here instead of in every fork
from tiny import FAST, Net, Tiny

from regard.data import Tokenizer, Tokenizers
from regard.errors import Interrupted
from regard.interop import export
from regard.models import build
from regard.tasks import TextProcessor, make_run
from regard.train import TrainOptions, checkpoint, fit, launcher, loop
from regard.train.log import Log, read_metrics

CONFIG = TrainOptions(
    **FAST | {"average": 2},
    epochs=3,
    log_every=2,
    evaluate_every=5,
    save_every=3,
    accumulate=1,
    ema=0.9,
    outlier=50.0,
)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def ask(number):
    """A signal that can be caught, to oneself."""
    return lambda *_: os.kill(os.getpid(), number)


def at(count, action=die):
    """A function that acts when it is called for the so-manyth time."""
    calls = [0]

    def called(*args, **kwargs):
        calls[0] += 1
        if calls[0] == count:
            action(*args, **kwargs)

    return called


def before(owner, name, hook):
    """The hook runs first, then what was there."""
    original = getattr(owner, name)

    def wrapped(*args, **kwargs):
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner, name, hook):
    original = getattr(owner, name)

    def wrapped(*args, **kwargs):
        result = original(*args, **kwargs)
        hook(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def half_a_file(tensors, path):
    checkpoint.save_file.__wrapped__(tensors, path)
    os.truncate(path, path.stat().st_size // 2)
    die()


def half_a_line(log, event, values):
    log._file.write(b'{"event": "train", "st')
    die()


def half_removed(path, *args):
    next(iter(sorted(Path(path).iterdir()))).unlink()
    die()


def saving(count, hook):
    """Act inside the so-manyth save of a checkpoint only."""
    state = {"saves": 0}
    before(checkpoint, "save", lambda *_: state.update(saves=state["saves"] + 1))

    def guarded(*args):
        if state["saves"] == count:
            hook(*args)

    return guarded


def only(word, hook):
    """Act if the last path of the call has this word in its name."""
    return lambda *args: hook(*args) if word in Path(args[-1]).name else None


def file_hook(count, hook):
    original = checkpoint.save_file
    guarded = saving(count, hook)

    def wrapped(tensors, path):
        guarded(tensors, path)
        return original(tensors, path)

    wrapped.__wrapped__ = original
    checkpoint.save_file = wrapped


CALLS = [(os, "fsync"), (os, "replace"), (os, "rename"), (os, "link"), (os, "unlink"), (os, "mkdir"), (os, "ftruncate")]


def counting(act, after):
    """`act(n)` is called at every call that changes the disk, before it or after it."""
    number = [0]
    for owner, name in CALLS:
        original = getattr(owner, name)

        def called(*args, original=original, **kwargs):
            number[0] += 1
            mine = number[0]
            if not after:
                act(mine)
            result = original(*args, **kwargs)
            if after:
                act(mine)
            return result

        setattr(owner, name, called)


KILLS = {
    "in the first step": lambda: before(Tiny, "loss", at(1)),
    "in the middle of a step": lambda: before(Tiny, "loss", at(8)),
    "between backward and step": lambda: before(torch.optim.AdamW, "step", at(11)),
    "after the step of the optimizer": lambda: after(torch.optim.AdamW, "step", at(12)),
    "in the first save, before its name": lambda: before(os, "rename", saving(1, only("step-", die_at_name))),
    "in a save, between two files": lambda: file_hook(4, at(2)),
    "in a save, in the middle of a file": lambda: file_hook(4, at(3, half_a_file)),
    "in a save, before its name": lambda: before(os, "rename", saving(5, only("step-", die_at_name))),
    "in a save, after its name, before latest": lambda: before(checkpoint, "write", saving(5, die)),
    "in a save, latest written and not moved": lambda: before(os, "replace", saving(5, only("latest", die))),
    "in a save, after latest": lambda: after(checkpoint, "write", saving(5, die)),
    "in a save, while an old one is removed": lambda: before(shutil, "rmtree", saving(5, only("leaving-", half_removed))),
    "at the edge of an epoch": lambda: before(Tiny, "batches", lambda task, epoch: die() if epoch == 1 else None),
    "at the last edge": lambda: before(loop._Loop, "_finish", die),
    "in an evaluation": lambda: before(Tiny, "evaluate", at(2)),
    "after an evaluation": lambda: after(Tiny, "evaluate", at(3)),
    "in the middle of a line of the log": lambda: before(Log, "write", at(6, half_a_line)),
    "before the weights get their name": lambda: before(os, "replace", only("model.safetensors", die)),
    "when all is done": lambda: after(loop._Loop, "_finish", die),
}
ONE_RUN = [  # each lets the run come three steps further, to its next checkpoint, and then kills it
    lambda: before(Tiny, "loss", at(5)),
    lambda: before(os, "rename", saving(2, only("step-", die_at_name))),
    lambda: before(checkpoint, "write", saving(2, die)),
    lambda: after(torch.optim.AdamW, "step", at(4)),
    lambda: before(Tiny, "evaluate", at(2)),
]
STOPS = {
    "SIGTERM": lambda: before(Tiny, "loss", at(8, ask(signal.SIGTERM))),
    "SIGHUP": lambda: before(Tiny, "loss", at(8, ask(signal.SIGHUP))),
    "SIGINT": lambda: before(Tiny, "loss", at(8, ask(signal.SIGINT))),
    "SIGINT twice at once": lambda: before(Tiny, "loss", at(8, lambda *_: (ask(signal.SIGINT)(), ask(signal.SIGINT)()))),
    "SIGTERM twice": lambda: (
        setattr(launcher, "REPEAT", 0.0),
        before(Tiny, "loss", at(8, lambda *_: (ask(signal.SIGTERM)(), time.sleep(0.01), ask(signal.SIGTERM)()))),
    ),
}


def die_at_name(source, target):
    if Path(target).name.startswith("step-"):
        die()


def fork(out, patch, resume):
    """One run in a process of its own; how that process ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        patch()
        fit(Net(), Tiny(), CONFIG, out, resume=resume, progress=False)
        os._exit(0)
    except Interrupted as stop:
        os._exit(stop.code)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(99)


# -- exports -----------------------------------------------------------------------------------------------------------


def export_model(out, patch):
    """An export in a process of its own; how that process ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        torch.manual_seed(0)
        model = build("gpt2", {"vocab_size": 260, "context_length": 16, "width": 8, "heads": 2, "depth": 1})
        run = make_run("language", model, TextProcessor(Tokenizers(Tokenizer.train([], "byte", 260))))
        patch()
        export(run, out)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def export_calls(folder):
    """How many calls of an export change the disk."""
    counted = folder / "calls"
    folder.mkdir(exist_ok=True)
    assert export_model(folder / "counted", lambda: counting(lambda n: counted.write_text(str(n)), True)) == 0
    return int(counted.read_text())


EXPORTED = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def is_there(out):
    """nothing, all, or the names of what is there of an export; without config.json nobody takes it for a model."""
    names = sorted(path.name for path in out.iterdir() if path.name != ".writing") if out.exists() else []
    return "nothing" if "config.json" not in names else "all" if names == EXPORTED else ", ".join(names)


def killed_export(out, n, after, exists):
    """An export that is killed at its n-th call to the disk, and then started again."""
    if exists:
        out.mkdir(parents=True)
    code = export_model(out, lambda: counting(lambda mine: die() if mine == n else None, after))
    case = {"code": code, "found": is_there(out)}
    if case["found"] == "nothing":
        assert export_model(out, lambda: None) == 0
    return {**case, "again": is_there(out), "left": [path.name for path in (out.parent, out) for path in path.glob("*.writing*")]}


# -- what came of it ---------------------------------------------------------------------------------------------------


def sums(out):
    """Of everything that must be the same: weights, and in the last checkpoint weights, optimizer, averages, counters but for time."""
    state = out / "state" / json.loads((out / "state" / "latest").read_text())["name"]
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [out / "model.safetensors", *sorted(state.glob("*.safetensors"))]
    }
    counters = json.loads((state / "loop.json").read_text())
    counters.pop("seconds")
    counters["window"].pop("seconds")
    return {**found, "loop": counters}


def lines(out):
    """All but what was resumed, and how fast it was."""
    events = (line for line in read_metrics(out / "metrics.jsonl") if line["event"] != "resume")
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in events]


def steps(out):
    return sorted(int(path.name[5:]) for path in (out / "state").glob("step-*"))


def main(folder):
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # a killed process loses nothing that it has written; forcing it to the disk guards against loss of power
    nothing = lambda: None  # noqa: E731
    left_alone = folder / "left alone"
    assert fork(left_alone, nothing, False) == 0
    print(json.dumps({"name": "left alone", "sums": sums(left_alone), "lines": lines(left_alone)}))
    for name, patch in {**KILLS, **STOPS}.items():
        out = folder / name
        code = fork(out, patch, True)
        found = {"name": name, "code": code, "kept": steps(out)}
        found["again"] = fork(out, nothing, True)
        print(json.dumps({**found, "sums": sums(out), "lines": lines(out)}), flush=True)
    out, codes = folder / "one run, killed and killed again", []
    for patch in ONE_RUN:
        codes.append(fork(out, patch, True))
    print(json.dumps({"name": out.name, "codes": codes, "again": fork(out, nothing, True), "sums": sums(out), "lines": lines(out)}))
    calls = export_calls(folder / "exports")
    cases = [(exists, n, after) for exists in (False, True) for n in range(1, calls + 1) for after in (False, True)]
    found = [killed_export(folder / "exports" / f"{number}", n, after, exists) for number, (exists, n, after) in enumerate(cases)]
    print(json.dumps({"name": "exports", "calls": calls, "cases": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
