"""Checkpoints: whole or not there; what was torn or touched is passed over by name; a bad disk is loud."""

import errno
import json
import os
import random
import resource
import shutil

import numpy as np
import pytest
import torch

from regard.errors import BadFile, CannotSave, RegardError
from regard.train import checkpoint as module
from regard.train.checkpoint import Checkpoint, load_latest, save, save_parameters
from regard.train.state import rng_state, seed_all, set_rng_state


def made(step):
    tensors = {
        "model": {"a.weight": torch.full((3, 5), float(step)), "n": torch.tensor(step)},
        "optimizer": {"step:a.weight": torch.tensor(1.5)},
    }
    return Checkpoint(step, tensors, {"loop": {"step": step, "best": None, "tiny": 5e-324}})


def same(found, step):
    assert found is not None and found.step == step and found.values == made(step).values
    for name, tensors in made(step).tensors.items():
        assert tensors.keys() == found.tensors[name].keys()
        assert all(
            torch.equal(tensor, found.tensors[name][key]) and tensor.dtype == found.tensors[name][key].dtype
            for key, tensor in tensors.items()
        )


def test_there_and_back(tmp_path):
    assert load_latest(tmp_path / "state") is None
    path = save(tmp_path / "state", made(7))
    same(load_latest(tmp_path / "state"), 7)
    assert sorted(os.listdir(path)) == ["loop.json", "manifest.json", "model.safetensors", "optimizer.safetensors"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"]["size"] == (path / "model.safetensors").stat().st_size


def test_only_the_last_ones_are_kept(tmp_path):
    for step in (1, 2, 10, 3, 11):  # 3 after 10: a run that went back
        save(tmp_path, made(step), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000010", "step-00000011"]
    save(tmp_path, made(4), keep=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000004"]
    same(load_latest(tmp_path), 4)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit flipped in the weights": lambda p: flip(p / "model.safetensors"),
    "a bit flipped in the values": lambda p: flip(p / "loop.json"),
    "cut short": lambda p: os.truncate(p / "optimizer.safetensors", 20),
    "emptied": lambda p: os.truncate(p / "model.safetensors", 0),
    "a file gone": lambda p: (p / "model.safetensors").unlink(),
    "the manifest gone": lambda p: (p / "manifest.json").unlink(),
    "the manifest cut": lambda p: os.truncate(p / "manifest.json", 30),
    "the manifest of another": lambda p: shutil.copy(p.parent / "step-00000001" / "manifest.json", p / "manifest.json"),
    "the manifest not ours": lambda p: (p / "manifest.json").write_text('{"format": "x", "format_version": 1, "step": 2, "files": {}}'),
    "the manifest points outside": lambda p: (p / "manifest.json").write_text(
        '{"format": "regard.checkpoint", "format_version": 1, "step": 2, "files": {"../latest": {"size": 1, "sha256": ""}}}'
    ),
}


@pytest.mark.parametrize("pointer", [True, False], ids=["latest there", "latest gone"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_damaged_is_passed_over_by_name(tmp_path, damage, pointer):
    save(tmp_path, made(1))
    DAMAGE[damage](save(tmp_path, made(2)))
    if not pointer:
        (tmp_path / "latest").unlink()
    found = load_latest(tmp_path)
    same(found, 1)
    assert len(found.skipped) == 1 and "step-00000002" in found.skipped[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "step-00000009", "manifest": ""}', '{"name": "../elsewhere", "manifest": ""}'])
def test_a_bad_pointer_is_passed_over(tmp_path, text):
    save(tmp_path, made(1))
    save(tmp_path, made(2))
    (tmp_path / "latest").write_text(text)
    found = load_latest(tmp_path)
    same(found, 2)
    assert "latest" in found.skipped[0]


def test_if_none_is_whole_that_is_an_error(tmp_path):
    flip(save(tmp_path, made(1)) / "loop.json")
    flip(save(tmp_path, made(2)) / "loop.json")
    with pytest.raises(BadFile, match=r"step-00000002.*step-00000001"):
        load_latest(tmp_path)


def test_leftovers_do_not_count_and_go_away(tmp_path):
    save(tmp_path, made(1))
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "writing-step-00000002")
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "leaving-step-00000000")
    same(load_latest(tmp_path), 1)
    save(tmp_path, made(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000001", "step-00000002"]


def test_a_step_saved_but_not_pointed_to_is_saved_again(tmp_path, monkeypatch):
    save(tmp_path, made(1))
    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_text", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, made(2))
    same(load_latest(tmp_path), 1)
    save(tmp_path, made(2))
    same(load_latest(tmp_path), 2)


# -- a disk that does not do as it is told -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["save_file", "_sync", "replace_text"])
def test_errors_of_the_disk_are_loud_and_harmless(tmp_path, monkeypatch, where, number):
    save(tmp_path, made(1))

    def fails(*args):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module, where, fails)
        with pytest.raises(CannotSave, match="step-00000002") as caught:
            save(tmp_path, made(2))
    assert isinstance(caught.value, OSError) and isinstance(caught.value, RegardError)
    assert ("full" in str(caught.value)) == (number == errno.ENOSPC)
    same(load_latest(tmp_path), 1)
    save(tmp_path, made(2))
    same(load_latest(tmp_path), 2)


def test_a_file_that_may_not_grow(tmp_path):
    """A real refusal of the operating system, not a pretended one."""
    save(tmp_path, made(1))
    big = Checkpoint(2, {"model": {"w": torch.zeros(200_000)}})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CannotSave, match="untouched"):
            save(tmp_path, big)
        with pytest.raises(CannotSave):
            save_parameters(tmp_path / "model.safetensors", big.tensors["model"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "model.safetensors").exists()
    same(load_latest(tmp_path), 1)


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(CannotSave):
        save(tmp_path / "state", made(1))


# -- chance ------------------------------------------------------------------------------------------------------------


def draw():
    return torch.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(2).tolist(), np.random.randn()


def test_random_states_survive_json():
    seed_all(1, "x")
    draw()  # leaves a Gaussian in store
    state = json.loads(json.dumps(rng_state()))
    expected = draw()
    seed_all(2)
    set_rng_state(state)
    assert draw() == expected


def test_near_keys_give_unrelated_numbers():
    draws = []
    for key in [(0, 0, 1), (0, 1, 0), (0, 0, 1), (1, 0, 0), (0, 11), (0, 1, 1)]:
        seed_all(*key)
        draws.append(draw())
    assert draws[0] == draws[2]
    assert len({str(d) for d in draws}) == 5
