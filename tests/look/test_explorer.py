"""What the explorer reads: tiles, exact rows, statistics, deferred maps, and the bundle of its scripts."""

import json
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from tests.look.conftest import THREE, Stack, make_map

from regard.attention import Attention, LSHAttention, SoftmaxAttention
from regard.errors import CaptureNotSupported, NotSupported, RegardError
from regard.look import Graph, Maps, capture, keep_inputs
from regard.look.explorer import Recording, record
from regard.look.html import STATIC, bundle, pack, page, static_names
from regard.look.tiles import TILE, TileReader
from regard.models import build
from regard.patterns import causal


def decode(tile: bytes, rows: int, columns: int) -> torch.Tensor:
    """By the format's own words, not by the code that wrote it."""
    low, high = struct.unpack("<ff", tile[:8])
    cells = np.frombuffer(tile, np.uint8, offset=8).reshape(rows, columns)
    return torch.tensor(low + cells / 255 * (high - low))


def slow_pool(matrix: torch.Tensor, block: int) -> torch.Tensor:
    """The weight of largest magnitude per block, one block at a time."""
    if block == 1:
        return matrix
    rows, columns = (-(-n // block) for n in matrix.shape)
    blocks = [[matrix[i * block : (i + 1) * block, j * block : (j + 1) * block] for j in range(columns)] for i in range(rows)]
    return torch.tensor([[float(part.flatten()[part.abs().argmax()]) for part in row] for row in blocks])


@pytest.mark.parametrize("signed", [False, True])
def test_tiles_of_every_level_are_the_weights_within_half_a_step(signed):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 2, 530, 300, generator=generator) - 0.5 * signed  # 3 × 2 tiles at level 0, and no multiple of anything
    reader = TileReader(make_map(weights.tolist()))
    assert (reader.levels, reader.heads) == (3, 3)
    for head, matrix in enumerate([*weights[0], weights[0].mean(0)]):
        for level in range(reader.levels):
            expected = slow_pool(matrix, 2**level)
            for i, band in enumerate(expected.split(TILE)):
                for j, part in enumerate(band.split(TILE, 1)):
                    found = decode(reader.tile(head, level, i, j), *part.shape)
                    span = part.abs().max() * (2 if signed else 1)
                    assert float((found - part).abs().max()) <= span / 510 + 1e-6


def test_exact_pieces_and_statistics(model, x):
    with torch.no_grad(), capture(model) as maps:
        model(x)
    m, reader = maps.view("blocks.1.attention"), Recording(maps, batch=1).readers[1]
    assert torch.equal(reader.values(2, 3, 5), m.weights_BHLM[1, 2, 3:5])
    assert torch.equal(reader.column(2, 3), m.weights_BHLM[1, 2, :, 3])
    torch.testing.assert_close(reader.maxima(0), m.weights_BHLM[1, 0].amax(-1))
    found = reader.statistics()
    torch.testing.assert_close(torch.tensor(found["entropy"][:3]), m.entropy()[1])
    torch.testing.assert_close(torch.tensor(found["distance"][:3]), m.distance()[1])
    torch.testing.assert_close(torch.tensor(found["sink"][:3]), m.weights_BHLM[1, :, 1:, 0].mean(-1))  # the first query has no choice
    allowed = decode(reader.allowed(0, 0, 0, 0), 7, 7)
    assert torch.equal(allowed.bool(), causal.mask(7, 7)[0, 0])


def test_unknown_pieces_are_one_clear_error():
    recording = Recording(Maps([make_map(THREE)]))
    for key in (
        "tile/0/0/0/0/9",
        "tile/0/0/9/0/0",
        "tile/9/0/0/0/0",
        "tile/0/0",
        "values/0/0/2/1",
        "values/0/5/0/1",
        "../etc",
        "tile/0/-1/0/0/0",
        "x",
        "",
    ):
        with pytest.raises(RegardError):
            recording.piece(key)
    with pytest.raises(CaptureNotSupported, match="nothing was captured"):
        record(Maps())


@pytest.mark.parametrize("mechanism", [SoftmaxAttention, LSHAttention], ids=lambda m: m.facts.name)
def test_deferred_maps_are_the_same_without_keeping_them(mechanism: type[Attention], x):
    torch.manual_seed(0)
    model = Stack(make=mechanism).eval()
    with torch.no_grad(), capture(model) as exact:
        torch.manual_seed(1)
        model(x)
    with torch.no_grad(), keep_inputs(above=0), capture(model) as kept:
        torch.manual_seed(1)
        model(x)
    for a, b in zip(exact.all, kept.all, strict=True):
        assert b.deferred == (mechanism is SoftmaxAttention)  # rows of the other are not cheaper than all of it
        assert (a.normalised, a.query_labels) == (b.normalised, b.query_labels)
        torch.testing.assert_close(b.read(2, 6, batch=1), a.weights_BHLM[1, :, 2:6])
    if mechanism is SoftmaxAttention:
        with pytest.raises(CaptureNotSupported, match="without keep_inputs"):
            kept.save("maps.npz")


def test_why_has_the_vectors_that_gave_the_weights():
    torch.manual_seed(0)
    model = build("gpt2", {"vocab_size": 50, "context_length": 16, "width": 24, "heads": 3, "depth": 2}).eval()
    ids = torch.randint(50, (1, 9))
    with torch.no_grad(), keep_inputs(), capture(model) as maps:
        model.features(ids)
    recording = Recording(maps)
    header = recording.header()["maps"][1]
    assert header["dimensions"] == 8 and header["scale"] == pytest.approx(8**-0.5, rel=1e-3)
    q, k = (torch.frombuffer(bytearray(recording.piece(f"{kind}/1/2")), dtype=torch.float32).view(9, 8) for kind in ("queries", "keys"))
    scores = (q @ k.T * 8**-0.5).masked_fill(~causal.mask(9, 9)[0, 0], -torch.inf)
    torch.testing.assert_close(scores.softmax(-1), maps.all[1].weights_BHLM[0, 2])
    norms = torch.frombuffer(bytearray(recording.piece("norms/1/2")), dtype=torch.float32)
    part = model.get_submodule("blocks.1.mixer")
    seen = []
    handle = part.attention.register_forward_pre_hook(lambda module, args: seen.append(args[2]))
    model.features(ids)
    handle.remove()
    torch.testing.assert_close(norms, (seen[0][0, :, 2] @ part.out.weight[:, 16:24].T).norm(dim=-1))


def test_rollouts_are_maps_of_their_own(model, x):
    with torch.no_grad(), capture(model) as maps:
        model(x)
    recording = Recording(maps)
    assert [m["name"] for m in recording.header()["maps"] if m["derived"]] == ["rollout of blocks"]
    torch.testing.assert_close(recording.maps[-1].weights_BHLM[:, 0], maps.rollout())


def test_a_packed_file_has_every_piece_the_page_may_ask_for():
    graph = make_map(THREE, layout=Graph([(0, 1), (2, 2)]))
    (header_size,) = struct.unpack("<I", (raw := zlib.decompress(pack(record(Maps([graph]), "one", others={"two": Maps([graph])}))))[:4])
    header = json.loads(raw[4 : 4 + header_size])
    assert (header["format"], header["format_version"], header["exact"]) == ("regard.explorer", 1, True)
    assert [c["title"] for c in header["captures"]] == ["one", "two"]
    assert len(header["captures"][0]["maps"][0]["layout"]["points"]) == 3
    start, size = header["index"]["1/values/0/0"]
    values = np.frombuffer(raw, "<f4", count=size // 4, offset=4 + header_size + start)
    assert values.reshape(3, 3).tolist() == torch.tensor(THREE).tolist()


def test_a_page_that_would_be_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("regard.look.html.LARGEST", 20)
    with pytest.raises(NotSupported, match="fewer layers"):
        pack(record(Maps([make_map(THREE)])))


@pytest.mark.parametrize("entry", ["file.js", "widget.js", "lineage.js"])
def test_the_bundle_is_one_script_in_which_no_name_is_declared_twice(entry):
    script = bundle(entry)
    assert not re.findall(r"^import |^export (?!default)", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert sorted(set(names)) == sorted(names)


def test_scripts_never_make_markup_of_text():
    for name in static_names():
        text = STATIC.joinpath(name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name


def test_the_page_forbids_every_request():
    text = page(record(Maps([make_map(THREE, key_labels=(("</script><script>alert(1)</script>", "b", "c"),))])))
    assert "default-src 'none'" in text and "unsafe" not in text
    assert "alert(1)" not in text  # labels are in the compressed block
