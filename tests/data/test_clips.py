"""Clips: three kinds of files hold the same frames, lengths that do not fit, damaged files, and moving digits that no single frame gives away."""

import numpy as np
import pytest
from PIL import Image

from regard.data import Skipped
from regard.data.clips import (
    FRAMES,
    SIDE,
    VideoClip,
    choose_frames,
    clip_shape,
    common_shape,
    load_clips,
    moving_digits,
    read_clip,
    read_labelled_clips,
)
from regard.errors import BadFile, MissingFile, NotSupported


def frames(count=5, size=(6, 7)):
    """Few grey levels, so that a GIF's palette holds them exactly."""
    return np.random.default_rng(0).integers(0, 4, (count, *size)).astype(np.uint8) * 85


def write(folder, clip, name="clip"):
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", clip)
    images = [Image.fromarray(frame) for frame in clip]
    images[0].save(folder / f"{name}.gif", save_all=True, append_images=images[1:])
    (folder / name).mkdir()
    for n, image in enumerate(images):
        image.save(folder / name / f"{n:03d}.png")


def test_files_of_three_kinds_hold_the_same_frames(tmp_path):
    write(tmp_path, frames())
    for name in ("clip.npy", "clip.gif", "clip"):
        assert np.array_equal(read_clip(tmp_path / name, 1, 5), frames()), name
        assert read_clip(tmp_path / name, 3, 5).shape == (5, 6, 7, 3)
        assert np.array_equal(read_clip(tmp_path / name, 1, 3), frames()[[0, 2, 4]])


def test_which_frames_are_read():
    assert choose_frames(4, 4) == [0, 1, 2, 3]
    assert choose_frames(9, 3) == [0, 4, 8] and choose_frames(300, 5) == [0, 75, 150, 224, 299]
    assert choose_frames(2, 5) == [0, 1, 1, 1, 1] and choose_frames(1, 3) == [0, 0, 0]
    assert choose_frames(7, 1) == [0]


def test_a_folder_per_class_in_three_parts(tmp_path):
    for label in ("jump", "wave"):
        for n in range(30):
            (tmp_path / label).mkdir(exist_ok=True)
            np.save(tmp_path / label / f"{n}.npy", np.roll(frames(), n, 1) + np.uint8(n))
    found = read_labelled_clips(str(tmp_path), shares=(0.1, 0.1))
    parts = [{clip.path for clip in part} for part in (found.train, found.valid, found.test)]
    assert sum(map(len, parts)) == 60 == len(set.union(*parts)) and all(parts)
    assert read_labelled_clips(str(tmp_path), shares=(0.1, 0.1)) == found
    assert len(read_labelled_clips(str(tmp_path), shares=(0.0, 0.0)).train) == 60
    for part in ("train", "val"):
        (tmp_path / "split" / part / "jump").mkdir(parents=True)
        np.save(tmp_path / "split" / part / "jump" / "one.npy", frames())
    assert [len(part) for part in read_labelled_clips(str(tmp_path / "split")).parts] == [1, 1, 0]


def test_what_is_damaged(tmp_path):
    (tmp_path / "a").mkdir()
    good, bad = tmp_path / "a" / "good.npy", tmp_path / "a" / "text.gif"
    np.save(good, frames())
    bad.write_text("no image")
    clips = read_labelled_clips(str(tmp_path), shares=(0.0, 0.0)).train
    with pytest.raises(BadFile, match=r"text\.gif: not an image"):
        load_clips(clips, 1, 4, lambda x: x, (6, 7), Skipped())
    pixels, labels = load_clips(clips, 1, 4, lambda x: x, (6, 7), skipped := Skipped(on_error="skip"))
    assert pixels.shape == (1, 4, 6, 7) and labels == ["a"] and len(skipped) == 1 and "text.gif" in str(skipped)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadFile, match=r"objects\.npy: pickled"):
        read_clip(tmp_path / "objects.npy", 1, 2)
    np.save(tmp_path / "flat.npy", np.zeros(7))
    np.save(tmp_path / "none.npy", np.zeros((0, 4, 4), dtype=np.uint8))
    (tmp_path / "empty").mkdir()
    for name, says in (("flat.npy", "expected images"), ("none.npy", "no frames"), ("empty", "no frames in it")):
        with pytest.raises(BadFile, match=f"{name}: .*{says}"):
            read_clip(tmp_path / name, 1, 2)
    with pytest.raises(NotSupported, match="GiB of memory"):
        load_clips(clips * 100_000, 3, 64, lambda x: x, (512, 512), Skipped())


def test_a_gif_cut_off(tmp_path):
    """In a later frame, and before the first."""
    write(tmp_path, frames(8, (40, 40)))
    whole = (tmp_path / "clip.gif").read_bytes()
    for kept, says in ((len(whole) // 2, "a damaged image: .*truncated"), (20, "not an image that can be read")):
        (tmp_path / "cut.gif").write_bytes(whole[:kept])
        with pytest.raises(BadFile, match=rf"cut\.gif: {says}") as error:
            read_clip(tmp_path / "cut.gif", 1, 4)
        assert "\n" not in str(error.value)


def test_pixels_that_are_no_numbers(tmp_path):
    np.save(tmp_path / "nan.npy", np.where(np.arange(7) == 3, np.nan, frames() / 255))
    with pytest.raises(BadFile, match=r"nan\.npy: values from nan to nan; expected pixels"):
        read_clip(tmp_path / "nan.npy", 1, 2)


def test_clips_of_different_sizes_are_resized(tmp_path):
    """Clips among each other, and the frames of one folder."""
    for n, size in enumerate(((6, 7), (9, 4))):
        np.save(tmp_path / f"{n}.npy", frames(3, size))
        (tmp_path / "mixed").mkdir(exist_ok=True)
        Image.fromarray(frames(1, size)[0]).save(tmp_path / "mixed" / f"{n}.png")
    clips = [VideoClip(tmp_path / name, "a") for name in ("0.npy", "1.npy", "mixed")]
    size = common_shape(clips)[:2]
    pixels, _ = load_clips(clips, 1, 3, lambda image: np.asarray(Image.fromarray(image).resize(size[::-1])), size, Skipped())
    assert size == (6, 7) and pixels.shape == (3, 3, 6, 7) and (pixels[0] == frames(3)).all()


def test_the_shape_of_clips(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    for name, clip in (("grey", frames()), ("grey-rgb", np.repeat(frames()[..., None], 3, -1)), ("colours", colours)):
        np.save(tmp_path / f"{name}.npy", clip)
    (tmp_path / "text.gif").write_text("no image")
    broken, *clips = (VideoClip(tmp_path / name, "a") for name in ("text.gif", "grey.npy", "grey-rgb.npy", "colours.npy"))
    assert (
        common_shape(clips[:2]) == (6, 7, 1)
        and common_shape(clips) == (6, 7, 3)
        and common_shape([broken, *clips[:1]], "skip") == (6, 7, 1)
    )
    with pytest.raises(BadFile, match=r"text\.gif"):
        common_shape([broken])
    with pytest.raises(NotSupported, match="none of 1 clips"):
        common_shape([broken], "skip")


def test_what_is_missing(tmp_path):
    with pytest.raises(MissingFile, match="nowhere: no such folder"):
        read_labelled_clips(str(tmp_path / "nowhere"))
    with pytest.raises(BadFile, match="no folders in it"):
        read_labelled_clips(str(tmp_path))
    (tmp_path / "jump").mkdir()
    with pytest.raises(BadFile, match="jump: no clips of this class"):
        read_labelled_clips(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(BadFile, match="a folder of clips per class"):
        read_labelled_clips(str(tmp_path / "file"))


def test_moving_digits():
    clips = moving_digits()
    assert {clip.label for clip in clips.train} == {
        f"{way} {speed}" for way in ("left", "right", "up", "down") for speed in ("slow", "fast")
    }
    assert clip_shape(clips.train[0]) == (SIDE, SIDE, 1) and len(clips.train[0].pixels) == FRAMES
    for clip in clips.train[:16]:
        way, speed = clip.label.split()
        step, axis = (1 if speed == "slow" else 2) * (1 if way in ("right", "down") else -1), 1 if way in ("left", "right") else 0
        assert all(np.array_equal(b, np.roll(a, step, axis)) for a, b in zip(clip.pixels[:-1], clip.pixels[1:], strict=True))
    assert np.array_equal(moving_digits().test[7].pixels, clips.test[7].pixels)


@pytest.mark.parametrize("frame", [0, FRAMES // 2, FRAMES - 1])
def test_a_single_frame_says_nothing_about_the_label(frame):
    """Linear regression from the pixels of one frame, and of the sum of all frames for comparison: that one shows the axis of motion."""
    clips = moving_digits()
    names = sorted({clip.label for clip in clips.train})

    def accuracy(feature):
        x, y = (np.stack([feature(clip.pixels) for clip in part]).reshape(len(part), -1) / 255.0 for part in (clips.train, clips.test))
        target = np.eye(len(names))[[names.index(clip.label) for clip in clips.train]]
        solved = np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ target)
        return np.mean((y @ solved).argmax(1) == [names.index(clip.label) for clip in clips.test])

    assert accuracy(lambda pixels: pixels[frame]) < 1 / 8 + 0.05
    assert accuracy(lambda pixels: np.abs(np.diff(pixels.astype(float), axis=0)).sum(0)) > 1 / 8 + 0.05
