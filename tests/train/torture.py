"""Runs killed with SIGKILL at chosen and at random moments, resumed, and compared by hash with runs that were left alone.

    python tests/train/torture.py --kills 200 --seed 0          or: make torture

One process, two processes, and two that hold a shard each; then whole tasks, exports and the launcher (torture_tasks.py). A kill counts only if the
process really died of it. The table says for every place how many kills there were and whether all runs ended with the same parameters,
optimizer, averages, counters and log.
"""

import argparse
import dataclasses
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import crashes
import torch
import torch.distributed.fsdp
import torch.distributed.tensor  # once here instead of in every fork
import torture_tasks
from tiny import Net, Tiny

from regard.train import fit

TWO = dataclasses.replace(crashes.CONFIG, accumulate=2)
WAYS = {"one process": (1, crashes.CONFIG), "two processes": (2, TWO), "two with shards": (2, dataclasses.replace(TWO, sharding="full"))}
ANYWHERE = [  # the other places are in the first process only: it evaluates and writes
    "in the first step", "in the middle of a step", "between backward and step", "after the step of the optimizer",
    "at the edge of an epoch", "at the last edge", "when all is done",
]  # fmt: skip
CLOCK = "at a random moment"
PATIENCE = 600.0  # seconds until a run that hangs is a failure


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(way, out, patch=None, victim=0):
    """The processes of one run, which goes on if it was begun; the victim is patched."""
    processes, config = WAYS[way]
    port, pids = free_port(), []
    for rank in range(processes):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        code = 99
        try:
            with (out.parent / "said.txt").open("a") as said:
                os.dup2(said.fileno(), 2)
            if processes > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            if patch and rank == victim:
                patch()
            fit(Net(), Tiny(), config, out, resume=True, progress=False)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return pids


def wait(pid):
    """How the process ended, or None if it hangs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def end(pids):
    """Those that are left, once another of them is dead: alone they would wait for ever."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # one that has ended by itself is still there to be waited for
        os.waitpid(pid, 0)


def whole(way, out):
    """To the end, without a kill."""
    for pid in (pids := start(way, out)):
        if (code := wait(pid)) != 0:
            end(pids[pids.index(pid) + (code is not None) :])
            sys.exit(f"{way}: a run that was let alone ended with {code}; see {out.parent / 'said.txt'}")
    return {"sums": crashes.sums(out), "lines": crashes.lines(out)}


def killed(way, out, patch=None, victim=0, after=None):
    """Whether the victim died of a SIGKILL: its own at the patched place, or ours after so many seconds."""
    pids = start(way, out, patch, victim)
    if after is not None:
        time.sleep(after)
        os.kill(pids[victim], signal.SIGKILL)
    code = wait(pids[victim])
    end([pid for pid in pids if code is None or pid != pids[victim]])
    return code == -signal.SIGKILL


def main(all_kills, seed, folder):
    torch.set_num_threads(1)
    of_launcher, of_exports, of_tasks = all_kills // 20, all_kills // 10, all_kills * 3 // 10
    kills = all_kills - of_launcher - of_exports - of_tasks
    os.fsync = lambda _: None  # a killed process loses nothing that it has written; forcing it to the disk guards against loss of power
    dice, began = random.Random(seed), time.monotonic()
    alone, seconds = {}, {}
    for way in WAYS:
        started = time.monotonic()
        alone[way] = whole(way, folder / way)
        seconds[way] = time.monotonic() - started
    places = {"one process": [(0, place) for place in crashes.KILLS]}
    for way in ("two processes", "two with shards"):
        places[way] = [*places["one process"], *((1, place) for place in ANYWHERE)]
    chosen = [(way, victim, place) for way in WAYS for victim, place in places[way]]
    dice.shuffle(chosen)
    chosen = chosen[: kills - kills // 3]  # the rest is left to the clock
    happened, same, missed, wrong = Counter(), Counter(), [], []

    def compare(way, place, out, hits=1):
        happened[way, place] += hits
        if whole(way, out) == alone[way]:
            same[way, place] += hits
        else:
            wrong.append(f"{way}, {place}: {out.name}")

    for number, (way, victim, place) in enumerate(chosen):
        out = folder / f"{number:03d}"
        if killed(way, out, crashes.KILLS[place], victim):
            compare(way, place, out)
        else:
            missed.append(f"{way}, process {victim}, {place}")
    number, left = len(chosen), kills - len(chosen)
    while left > 0:  # one run after the other, each killed up to three times
        way, out = list(WAYS)[number % len(WAYS)], folder / f"{number:03d}"
        number += 1
        hits = 0
        while left > 0 and hits < 3 and killed(way, out, victim=dice.randrange(WAYS[way][0]), after=dice.uniform(0, seconds[way])):
            hits, left = hits + 1, left - 1
        if hits:
            compare(way, CLOCK, out, hits)

    def note(way, place, ended_the_same, hit):
        if not hit:
            missed.append(f"{way}, {place}")
            return
        place = place.partition(" call ")[0] + " a call to the disk" if " call " in place else place
        happened[way, place] += 1
        same[way, place] += ended_the_same
        if not ended_the_same:
            wrong.append(f"{way}, {place}")

    for part, count in ((torture_tasks.boundaries, of_tasks), (torture_tasks.exports, of_exports), (torture_tasks.launched, of_launcher)):
        inside = folder / part.__name__
        inside.mkdir()
        part(count, dice, inside, note)
    rows = [*WAYS, "a task", "an export", "launched"]

    print(f"{'way':17}{'killed':44}{'kills':>6}{'same end':>10}")
    for (way, place), count in sorted(happened.items(), key=lambda row: (rows.index(row[0][0]), row[0][1])):
        print(f"{way:17}{place:44}{count:6}{'yes' if same[way, place] == count else 'NO':>10}")
    total = sum(happened.values())
    print(f"{total} kills, each seen in the exit code, in {time.monotonic() - began:.0f} s; seed {seed}; {len(wrong)} runs ended otherwise")
    for line in (*(f"no kill happened: {each}" for each in missed), *(f"ended otherwise: {each}" for each in wrong)):
        print(line)
    return int(bool(missed or wrong or total < all_kills))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        code = main(given.kills, given.seed, Path(folder))
    sys.exit(code)
