"""Nothing is lost: whatever refuses, fails or holds a run, its files stay as they were, and the next start works."""

import builtins
import errno
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from regard import files, machine
from regard.cli import main
from regard.errors import BadFile, CannotSave, OutOfMemory, RegardError, RunInUse
from regard.interop import checkpoints, export
from regard.models import build
from regard.runs import read_config
from regard.tasks import LanguageOptions, TrainResult, load_run, train
from regard.train import TrainOptions, checkpoint, loop, read_metrics
from regard.train.launcher import Signals
from regard.train.lock import holder, locked

SIZES = {"width": 8, "heads": 2, "depth": 1}
TRAINING = TrainOptions(steps=4, save_every=2, evaluate_every=2, log_every=1, average=0, schedule="constant", warmup_steps=0)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("the cat sat on the mat. " * 30)
    return path


def begin(text: Path, out: Path, training: TrainOptions = TRAINING, **more) -> TrainResult:
    options = LanguageOptions(data=str(text), tokenizer="char", context_length=8, batch_size=2, shares=(0.1, 0.1))
    return train("language", options, training, out, settings=SIZES, progress=False, **more)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    begin(text, out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- refusals ----------------------------------------------------------------------------------------------------------

CHANGED = {  # every option that may not change, by the type of its value
    name: value
    for name, value in {
        **{"--optimizer": "adam", "--schedule": "cosine", "--warmup-steps": "3", "--weight-decay": "0.5", "--betas": "0.5 0.6"},
        **{"--accumulate": "2", "--clip": "0.5", "--outlier": "9", "--ema": "0.9", "--average": "3", "--seed": "7"},
        **{"--precision": "bfloat16", "--deterministic": "", "--seeds": "1 2", "--steps": "3", "--model": "gpt", "--set": "width=16"},
        **{"--tokenizer": "byte", "--vocab-size": "300", "--context-length": "16", "--batch-size": "4", "--shares": "0.2 0.2"},
        **{"--data": "other.txt", "--valid": "other.txt", "--test": "other.txt", "--separator": "x", "--init-from": "elsewhere"},
        **{"--on-error": "skip", "--field": "body", "--suffixes": ".md", "--stride": "4"},
    }.items()
}


@pytest.mark.parametrize("flag", CHANGED)
def test_a_refused_resume_changes_no_byte_and_names_both_values(flag, run, capsys):
    before = content(run)
    assert main(["train", "--out", str(run), "--resume", "--quiet", flag, *CHANGED[flag].split()]) == 2
    error = capsys.readouterr().err
    assert flag in error and error.count("\n") == 1
    assert " was started with" in error or "Unrecognized" in error
    assert content(run) == before


DAMAGES = {
    "a model that does not fit": lambda run: (run / "config.json").write_text(
        (run / "config.json").read_text().replace('"width": 8', '"width": 16')
    ),
    "no checkpoint is whole": lambda run: [path.write_bytes(b"x") for path in run.glob("state/step-*/model.safetensors")],
    "no tokenizer": lambda run: (run / "tokenizer.json").unlink(),
    "a tokenizer of another kind": lambda run: (run / "tokenizer.json").write_text("{}"),
    "a config that is no JSON": lambda run: (run / "config.json").write_text("{"),
    "other data": lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace('"digest": "', '"digest": "0')),
    "a FIFO": lambda run: ((run / "config.json").unlink(), os.mkfifo(run / "config.json")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_resume_that_fails_changes_no_byte(damage, run, capsys):
    DAMAGES[damage](run)
    before = {name: data for name, data in content(run).items()}
    assert main(["train", "language", "--out", str(run), "--resume", "--steps", "9", "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert content(run) == before


def test_a_refused_start_leaves_nothing(text, tmp_path, capsys):
    for more in (["--set", "heads=3"], ["--init-from", str(tmp_path / "no")], ["--attention", "nothing"]):
        argv = ["train", "language", "--data", str(text), "--tokenizer", "char", "--set", "width=8", "--quiet"]
        assert main([*argv, *more, "--out", str(tmp_path / "deep" / "run")]) == 2
        assert not (tmp_path / "deep").exists(), more
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert main([*argv, "--set", "heads=3", "--out", str(tmp_path / "mine")]) == 2
    assert content(tmp_path / "mine") == {"notes.txt": b"mine"}


def test_the_same_command_starts_and_continues(text, tmp_path, monkeypatch, capsys):
    """Started again by torchrun or Slurm with the same words, a run goes on; a finished one stays as it is."""
    out, step, calls = tmp_path / "run", loop._Loop._step, []

    def stop(self, size, batches):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(1)
        step(self, size, batches)

    sizes = [word for name, value in SIZES.items() for word in ("--set", f"{name}={value}")]
    argv = ["train", "language", "--data", str(text), "--tokenizer", "char", "--context-length", "8", "--batch-size", "2", *sizes]
    argv += ["--steps", "4", "--save-every", "2", "--quiet", "--resume", "auto", "--out", str(out)]
    monkeypatch.setattr(loop._Loop, "_step", stop)
    assert main(argv) == 130
    monkeypatch.undo()
    assert main(argv) == 0
    assert "resuming from step 2" in capsys.readouterr().err and len(read_metrics(out, "resume")) == 1
    before = content(out)
    assert main([*argv[:-4], "--resume=auto", *argv[-2:]]) == 0
    assert content(out) == before


def test_what_may_change_is_recorded(run):
    config = read_config(run)
    assert main(["train", "--out", str(run), "--resume", "--steps", "6", "--lr", "0.5", "--save-every", "3", "--quiet"]) == 0
    assert read_metrics(run, "resume")[-1]["changed"] == {"steps": [4, 6], "lr": [config.train["lr"], 0.5], "save_every": [2, 3]}
    assert read_config(run).train == config.train | {"steps": 6, "lr": 0.5, "save_every": 3}
    before = content(run)
    assert main(["train", "--out", str(run), "--resume", "--quiet"]) == 0  # nothing is left to do
    assert content(run) == before


# -- usable at any moment ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_run_that_was_stopped_can_be_used_and_says_so(steps, text, tmp_path, monkeypatch, capsys):
    out, calls = tmp_path / "run", []

    def stop(self, size, batches, step=loop._Loop._step):
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        step(self, size, batches)

    monkeypatch.setattr(loop._Loop, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        begin(text, out)
    monkeypatch.undo()
    for argv in (
        ["predict", str(out), "the"],
        ["evaluate", str(out)],
        ["look", str(out), "the cat"],
        ["complete", str(out), "the", "--max-tokens", "2"],
    ):
        assert main(argv) == 0
        assert "has not finished" in capsys.readouterr().err
    best = checkpoint.load_latest(out / "state").tensors.get("best")
    model = load_run(out).model.state_dict()
    assert steps < 2 or all(model[name].equal(best[name]) for name in best)
    assert main(["train", "--out", str(out), "--resume", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["predict", str(out), "the"]) == 0 and capsys.readouterr().err == ""


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_run_in_use_is_refused_by_name(run, capsys):
    code = "import sys, time; from pathlib import Path; from regard.train.lock import locked\nwith locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "src"})
    try:
        assert other.stdout.readline() == b"held\n"
        before = content(run)
        assert main(["train", "--out", str(run), "--resume", "--steps", "9"]) == 2
        assert f"in use by process {other.pid} on" in capsys.readouterr().err
        assert content(run) == before and str(other.pid) in holder(run)
        assert load_run(run)  # reading needs no lock
    finally:
        other.kill()
        other.communicate()
    assert (run / "lock").exists() and holder(run) is None  # the process died; the file alone locks nothing
    assert main(["train", "--out", str(run), "--resume", "--steps", "5", "--quiet"]) == 0
    assert not (run / "lock").exists()


def test_drafts_of_killed_processes_are_removed(tmp_path):
    for name in ("config.json.writing-123", "model.safetensors.writing", "notes.writing.txt", "config.json"):
        (tmp_path / name).touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {"lock", "notes.writing.txt", "config.json"}


def test_the_lock_may_be_taken_twice_by_one_thread_only(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    def other():
        with locked(tmp_path):
            return True

    with locked(tmp_path), locked(tmp_path), ThreadPoolExecutor(1) as pool, pytest.raises(RunInUse):
        pool.submit(other).result()
    assert other() and not list(tmp_path.iterdir())


def test_names_that_are_not_utf8_are_refused_at_the_start(text, tmp_path, monkeypatch, capsys):
    """config.json could not hold them, and safetensors does not open them: training would end, and nothing could use the run."""
    odd = os.fsdecode(b"b\xffd")
    argv = ["train", "language", "--tokenizer", "char", "--context-length", "8", "--steps", "1", "--quiet"]
    for more in (
        ["--data", str(text), "--out", odd],
        ["--data", odd, "--out", "run"],
        ["--data", str(text), "--out", "run", "--init-from", odd],
    ):
        assert main([*argv, *more]) == 2
        assert "not UTF-8; rename" in capsys.readouterr().err
    (tmp_path / odd).mkdir()
    monkeypatch.chdir(tmp_path / odd)
    shutil.copy(text, "text.txt")
    assert main([*argv, "--data", "text.txt", "--out", "run"]) == 2  # its whole name is recorded
    assert "data is" in (said := capsys.readouterr().err) and "not UTF-8" in said and "\n" not in said.strip()
    for call in (lambda: begin(text, Path(odd)), lambda: export(small_model(), Path(odd))):
        with pytest.raises(RegardError, match="not UTF-8"):
            call()
    assert [path.name for path in (tmp_path / odd).iterdir()] == ["text.txt"]


def small_model():
    return build("gpt2", {"vocab_size": 9, "context_length": 8, **SIZES})


# -- a terminal that goes ----------------------------------------------------------------------------------------------


def test_a_closed_terminal_saves(text, tmp_path):
    """The window is closed, or ssh drops: the step is finished and saved, though every word to the terminal is now an error."""
    out = tmp_path / "run"
    argv = [
        "train",
        "language",
        "--data",
        str(text),
        "--tokenizer",
        "char",
        "--context-length",
        "8",
        "--batch-size",
        "2",
        "--out",
        str(out),
    ]
    sizes = [part for name, value in SIZES.items() for part in ("--set", f"{name}={value}")]
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-m", "regard", *argv, *sizes, "--steps", "100000000", "--log-every", "10"])
    deadline = time.monotonic() + 120
    while not any(line["event"] == "train" for line in read_metrics(out / "metrics.jsonl")) if (out / "metrics.jsonl").exists() else True:
        assert time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0)
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 65536)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
    assert checkpoint.load_latest(out / "state").step > 0


def test_what_was_told_to_ignore_a_closed_terminal_ignores_it(monkeypatch):
    """As nohup tells it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.asked is None and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# -- a disk that fails -------------------------------------------------------------------------------------------------


class Disk:
    """Notes the places in the program that change the disk, and lets the n-th call of one of them fail."""

    def __init__(self, monkeypatch, place: str = "", n: int = 0, number: int = 0):
        self.calls = Counter()
        self.fails = place, n, number
        for owner, name in (
            (os, "fsync"),
            (os, "replace"),
            (os, "rename"),
            (os, "link"),
            (os, "mkdir"),
            (checkpoint, "save_file"),
            (checkpoints, "save_file"),
        ):
            monkeypatch.setattr(owner, name, self._noted(name, getattr(owner, name)))
        monkeypatch.setattr("io.open", self._noted("open", builtins.open, lambda args: bool(set(str(args[1:2])) & set("wax+"))))

    def failed(self, action) -> bool:
        """Whether it failed, in one line: some calls are not made where a folder exists."""
        try:
            action()
        except CannotSave as error:
            assert "the disk is full" in str(error) and "\n" not in str(error)
            return True
        return False

    def _noted(self, name, original, counts=lambda args: True):
        def called(*args, **kwargs):
            if counts(args):
                frames = [frame for frame in traceback.extract_stack() if "/regard/" in frame.filename][-4:]
                place = f"{name} in {' > '.join(frame.name for frame in frames)}"
                self.calls[place] += 1
                if (place, self.calls[place]) == self.fails[:2]:
                    raise OSError(self.fails[2], os.strerror(self.fails[2]))
            return original(*args, **kwargs)

        return called


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files of the token cache that nobody closes after an error
def test_a_failing_disk_at_any_moment(text, tmp_path, finished):
    """Every place in the program that changes the disk fails the first time and the last: one line, and the next start ends as if not."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        begin(text, tmp_path / "counted")
    expected = load_run(finished).model.state_dict()
    cases = sorted({(place, n) for place, count in disk.calls.items() for n in (1, count)})
    assert len(cases) > 30
    for case, (place, n) in enumerate(cases):
        out, number = tmp_path / str(case), (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)[case % 4]
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, place, n, number)
            with pytest.raises(CannotSave, match=r"disk|read-only|permission|choose another folder") as caught:
                begin(text, out)
        assert "\n" not in str(caught.value), place
        assert not out.exists() or (out / "config.json").exists(), place
        begin(text, out, resume=out.exists())
        model = load_run(out).model.state_dict()
        assert all(model[name].equal(expected[name]) for name in expected), place
        assert not [path for path in out.rglob("*writing*") if path.is_file()], place
        shutil.rmtree(out)


@pytest.mark.parametrize("exists", [False, True])
def test_an_export_to_a_failing_disk_leaves_nothing(exists, finished, tmp_path):
    run = load_run(finished)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        export(run, tmp_path / "counted")
    expected = content(tmp_path / "counted")
    cases = sorted({(place, n) for place, count in disk.calls.items() for n in (1, count)})
    assert len(cases) > 8
    for case, (place, n) in enumerate(cases):
        out = tmp_path / str(case)
        if exists:
            out.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            failing = Disk(patch, place, n, errno.ENOSPC)
            if failing.failed(lambda out=out: export(run, out)):
                assert not (out / "config.json").exists() and not list(tmp_path.rglob("*.writing*")), place
                assert exists or not out.exists(), place
                export(run, out)
        assert content(out) == expected


def test_a_full_disk_is_named_whoever_finds_it(tmp_path):
    """safetensors writes by itself, and says what the system said in words of its own."""
    found = SafetensorError('Error while serializing: I/O error: No space left on device (os error 28), path: "x"')
    assert "the disk is full: free some space" in str(files.cannot(tmp_path / "model.safetensors", found))


def test_an_unreadable_file_of_parameters_is_named_as_that(tmp_path, monkeypatch):
    """Whoever runs the tests may be root, to whom every file is readable."""
    export(small_model(), tmp_path / "hf")

    def fails(path, *args, original=os.open, **kwargs):
        if Path(path).name == "model.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(BadFile, match=r"model\.safetensors: cannot be read: Permission denied"):
        checkpoints.load_run(tmp_path / "hf")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "loop.json", "latest"])
def test_an_unreadable_checkpoint_falls_back(name, number, run, monkeypatch):
    newest = run / "state" / "step-00000004"

    def fails(path, *args, original=os.open, **kwargs):
        if Path(path).name == name and (Path(path).parent == newest or name == "latest"):
            raise OSError(number, os.strerror(number))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fails)
    found = checkpoint.load_latest(run / "state")
    assert found.step == (4 if name == "latest" else 2)
    assert len(found.skipped) == 1 and os.strerror(number) in found.skipped[0]


# -- hostile files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"width": 2**40},
        {"depth": 10**9},
        {"vocab_size": 2**33},
        {"context_length": 2**40},
        {"heads": 2**62},
        {"width": 2**63},
        {"depth": -1},
    ],
    ids=str,
)
def test_a_config_far_larger_than_its_file_is_refused_before_memory_is_taken(change, run):
    plain = json.loads((run / "config.json").read_text())
    plain["model"]["config"] |= change
    (run / "config.json").write_text(json.dumps(plain))
    with pytest.raises(RegardError) as caught:
        load_run(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "state/latest"])
def test_pipes_and_devices_do_not_hang(name, run):
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name), Path.mkdir):
        (run / name).unlink() if not (run / name).is_dir() else (run / name).rmdir()
        make(run / name)
        for use in (lambda: load_run(run), lambda: train("language", out=run, resume=True, progress=False)):
            try:
                use()
            except RegardError as error:
                assert "\n" not in str(error)
        if (run / name).is_dir():
            break


def test_a_token_id_of_two_to_the_32(tmp_path):
    from regard.data import Tokenizer
    from regard.data.hf_tokenizer import HFTokenizer

    described = HFTokenizer.from_tokenizer(Tokenizer.train(["a b c"], "bpe", 270)).to_json()
    for large in (2**31, 2**32 - 1, 2**32, -1):
        described["native"]["model"]["vocab"]["Ġx"] = large
        with pytest.raises(BadFile):
            Tokenizer.from_json(described)


# -- memory, threads, determinism --------------------------------------------------------------------------------------


def test_running_out_of_memory_names_what_helps(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    begin(text, tmp_path / "warned")
    assert "1000" not in (said := capsys.readouterr().err) and "0.0 GiB is available: take smaller batches (--batch-size" in said

    def fails(*args):
        torch.empty(2**50)

    monkeypatch.setattr(loop._Loop, "_step", fails)
    with pytest.raises(OutOfMemory, match=r"out of memory while training: .*--batch-size"):
        begin(text, tmp_path / "run")


def test_what_decides_the_last_bits_is_recorded(text, tmp_path):
    before = torch.are_deterministic_algorithms_enabled()
    begin(text, tmp_path / "run", TRAINING.replace(deterministic=True))
    first = read_metrics(tmp_path / "run")[0]
    assert first["event"] == "start" and first["threads"] == torch.get_num_threads() and first["deterministic"] is True
    assert first["torch"] == torch.__version__ and torch.are_deterministic_algorithms_enabled() == before


def test_a_step_that_is_not_finite_names_its_batches(text, tmp_path, monkeypatch):
    monkeypatch.setattr(loop._Loop, "_skip_reason", lambda self, total, count, norm: "not finite" if self.state.position.step == 3 else "")
    begin(text, tmp_path / "run", TRAINING.replace(accumulate=2))
    (line,) = read_metrics(tmp_path / "run", "skip")
    assert (line["step"], line["epoch"], line["batches"]) == (3, 0, [4, 5])
