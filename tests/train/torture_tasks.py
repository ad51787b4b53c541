"""The rest of `make torture`: whole runs of a task, killed at every boundary of the disk, and started by the launcher and the command line.

exports      export in a process that is killed likewise: what is there must be nothing, or all
boundaries   tasks.train in a process that is killed just before or just after the n-th call that syncs, renames, links or makes something:
             so in the writing of tokenizer.json, config.json, metrics.jsonl, model.safetensors, the lock, the token cache and checkpoints
launched     `regard train --nproc-per-node 2`: the launcher killed (no process may outlive it), its group interrupted, terminated or hung
             up on (saved once, exit code 130, 143 or 129), or one of its processes killed

Each run is then started again as a user would, and must end with the same parameters, config, tokenizer and log as one left alone.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import crashes

from regard.tasks import LanguageOptions, train
from regard.train import TrainOptions

SIZES = {"width": 8, "heads": 2, "depth": 1}
STEPS = 60
PATIENCE = 300.0  # seconds until a run that hangs is a failure


def write_text(folder):
    path = folder / "text.txt"
    path.write_text("the cat sat on the mat, and the dog on the log. " * 60)
    return path


def options_of(text):
    return LanguageOptions(data=str(text), tokenizer="char", context_length=8, batch_size=2, shares=(0.1, 0.1))


def found(out):
    """Of everything that must be the same."""
    kept = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("config.json", "tokenizer.json", "model.safetensors")}
    assert not (out / "lock").exists() and not list(out.rglob("*.writing*")), sorted(out.rglob("*"))
    return {**kept, "lines": crashes.lines(out), "sums": crashes.sums(out)}


# -- boundaries --------------------------------------------------------------------------------------------------------


def whole_run(text, out, patch=lambda: None):
    """One process; how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        with (out.parent / "said.txt").open("a") as said:
            os.dup2(said.fileno(), 2)
        patch()
        training = TrainOptions(steps=9, save_every=3, evaluate_every=2, log_every=1, average=2, warmup_steps=2)
        train("language", options_of(text), training, out, settings=SIZES, resume=(out / "config.json").exists(), progress=False)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def boundaries(kills, dice, folder, compare):
    """Calls `compare(place, out, expected, found)` after each."""
    text = write_text(folder)
    assert whole_run(text, folder / "alone") == 0, (folder / "said.txt").read_text()
    expected, counted = found(folder / "alone"), folder / "count"
    assert whole_run(text, folder / "counted", lambda: crashes.counting(lambda n: counted.write_text(str(n)), True)) == 0
    total = int(counted.read_text())
    every = [(n, after) for n in range(1, total + 1) for after in (False, True)]
    done = 0
    for number, (n, after) in enumerate(dice.sample(every, len(every))):
        if done == kills:
            break
        out = folder / f"{number:03d}"
        code = whole_run(text, out, lambda n=n, after=after: crashes.counting(lambda mine: crashes.die() if mine == n else None, after))
        place = f"{'after' if after else 'before'} call {n} of {total} to the disk"
        if code == 0 and after:
            continue  # this call raised an error, as for a file that need not be there: nothing comes after it
        done += 1
        again = whole_run(text, out) if code == -signal.SIGKILL else None
        compare("a task", place, again == 0 and found(out) == expected, code == -signal.SIGKILL)


# -- exports -----------------------------------------------------------------------------------------------------------


def exports(kills, dice, folder, compare):
    """`regard.interop.export` killed at every call that changes the disk, into a new folder and into one that exists."""
    calls = crashes.export_calls(folder)
    every = [(exists, n, after) for exists in (False, True) for n in range(1, calls + 1) for after in (False, True)]
    done = 0
    for number, (exists, n, after) in enumerate(dice.sample(every, len(every))):
        if done == kills:
            break
        case = crashes.killed_export(folder / str(number), n, after, exists)
        if case["code"] == 0 and after:
            continue  # this call raised an error: nothing comes after it
        done += 1
        place = f"{'after' if after else 'before'} call {n} to the disk"
        compare("an export", place, case["found"] in ("nothing", "all") and case["again"] == "all", case["code"] == -signal.SIGKILL)


# -- launched ----------------------------------------------------------------------------------------------------------


def command(text, out, resume):
    argv = [sys.executable, "-m", "regard", "train", "language", "--out", str(out), "--quiet", "--nproc-per-node", "2"]
    sizes = [part for name, value in SIZES.items() for part in ("--set", f"{name}={value}")]
    told = ["--data", str(text), "--tokenizer", "char", "--context-length", "8", "--batch-size", "2", "--steps", str(STEPS), *sizes]
    return [*argv, *(["--resume"] if resume else [*told, "--save-every", "5", "--evaluate-every", "20", "--log-every", "5"])]


def start(text, out):
    with (out.parent / "said.txt").open("a") as said:
        return subprocess.Popen(
            command(text, out, (out / "config.json").exists()),
            stdout=said,
            stderr=said,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def ranks(launcher):
    """The processes of a launcher, by the system's list."""
    return [int(pid) for path in Path(f"/proc/{launcher}/task").glob("*/children") for pid in path.read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WAYS = {  # who gets which signal, and the exit code of the launcher
    "the launcher is killed": (lambda process, dice: os.kill(process.pid, signal.SIGKILL), -signal.SIGKILL),
    "the group gets Ctrl-C": (lambda process, dice: os.killpg(process.pid, signal.SIGINT), 130),
    "the group is terminated": (lambda process, dice: os.killpg(process.pid, signal.SIGTERM), 143),
    "the terminal is closed": (lambda process, dice: os.killpg(process.pid, signal.SIGHUP), 129),
    "a process is killed": (lambda process, dice: os.kill(dice.choice(ranks(process.pid)), signal.SIGKILL), 137),
}


def launched(kills, dice, folder, compare):
    text = write_text(folder)
    assert start(text, folder / "alone").wait(PATIENCE) == 0, (folder / "said.txt").read_text()
    expected = found(folder / "alone")
    for number in range(kills):
        way, out = list(WAYS)[number % len(WAYS)], folder / f"{number:03d}"
        process, deadline = start(text, out), time.monotonic() + PATIENCE
        while not (out / "state" / "latest").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.5))
        inside = ranks(process.pid)
        act, expected_code = WAYS[way]
        happened = len(inside) == 2
        if happened:
            act(process, dice)
        code = process.wait(PATIENCE)
        while any(map(alive, inside)) and time.monotonic() < deadline:
            time.sleep(0.05)
        orphans = [pid for pid in inside if alive(pid)]
        again = start(text, out).wait(PATIENCE)
        compare("launched", way, again == 0 and not orphans and found(out) == expected, happened and code == expected_code)
