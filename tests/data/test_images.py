"""The policy of `regard.data.images`, file by file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from regard.data.images import read_frames, read_image, resize
from regard.errors import BadFile, MissingFile

RED = (255, 0, 0)


def saved(tmp_path, image, name="image.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_modes_become_rgb_or_grey(tmp_path):
    for mode in ("RGB", "L", "P", "1", "RGBA"):
        path = saved(tmp_path, Image.new("RGB", (3, 2), "white").convert(mode))
        assert (read_image(path) == 255).all() and read_image(path).shape == (2, 3, 3)
        assert (read_image(path, 1) == 255).all() and read_image(path, 1).shape == (2, 3)
    cmyk = saved(tmp_path, Image.new("CMYK", (3, 2), (0, 255, 255, 0)), "image.jpg", quality=100)
    assert abs(read_image(cmyk).astype(int) - RED).max() <= 3


def test_16_bits_are_scaled_to_8(tmp_path):
    wide = np.array([[0, 257 * 10, 257 * 128, 65535]], dtype=np.uint16)
    path = saved(tmp_path, Image.fromarray(wide))
    assert read_image(path, 1).tolist() == [[0, 10, 128, 255]]


def test_transparency_lies_over_white(tmp_path):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (*RED, 255))
    assert read_image(saved(tmp_path, image)).tolist() == [[[255, 255, 255], [255, 0, 0]]]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.putpixel((1, 0), 1)
    assert read_image(saved(tmp_path, palette, transparency=0)).tolist() == [[[255, 255, 255], [255, 0, 0]]]


def test_exif_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (4, 2))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90°
    assert read_image(saved(tmp_path, image, "image.jpg", exif=exif)).shape == (4, 2, 3)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_bad_files_are_named_in_one_line(tmp_path):
    good = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(good, "PNG")
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)) + chunk(b"IEND", b"")
    for content, says in (
        (b"", "not an image"),
        (b"just a text", "not an image"),
        (good.getvalue()[:300], "damaged"),
        (bomb, "pixels"),
    ):
        path = tmp_path / "bad.png"
        path.write_bytes(content)
        with pytest.raises(BadFile, match=says) as caught:
            read_image(path)
        assert "bad.png" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(MissingFile, match="no such file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(BadFile, match="a folder, pipe or device; expected a file"):
        read_image(tmp_path)


def test_every_truncation_is_refused_or_whole(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(file, "PNG")
    path, content = tmp_path / "cut.png", file.getvalue()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at])
        try:
            assert read_image(path).shape == (9, 9, 3)
        except BadFile as wrong:
            assert "cut.png" in str(wrong)


def test_frames_and_sizes(tmp_path):
    frames = [Image.new("L", (4, 3), shade) for shade in (0, 100, 200)]
    path = saved(tmp_path, frames[0], "clip.gif", save_all=True, append_images=frames[1:])
    clip = read_frames(path, 1)
    assert clip.shape == (3, 3, 4) and clip[:, 0, 0].tolist() == [0, 100, 200]
    assert read_frames(saved(tmp_path, frames[1]), 3).shape == (1, 3, 4, 3)
    assert resize(clip[1], 6, 8).shape == (6, 8) and (resize(clip[1], 6, 8) == 100).all()
