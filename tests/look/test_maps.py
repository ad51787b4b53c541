"""Maps: numbers worked by hand, labels, words out of sub-words, and files that are what they say."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.look.conftest import THREE, B, L, Stack, make_map

from regard.attention import SoftmaxAttention
from regard.errors import BadFile, CaptureNotSupported, ShapeError, UnknownName
from regard.look import Graph, Grid, Maps, Sequence, Tree, capture, word_numbers
from regard.look.explorer import Recording
from regard.look.map import Values
from regard.look.pictures import draw
from regard.look.terminal import to_text
from regard.patterns import full


def test_entropy_distance_and_argmax_by_hand():
    m = make_map(THREE)
    entropies = [0, math.log(2), -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))]
    assert m.entropy().tolist() == [[pytest.approx(sum(entropies) / 3)]]
    assert m.distance().tolist() == [[pytest.approx((0 + 0.5 + (0.4 + 0.3)) / 3)]]
    assert m.argmax().tolist() == [[[0, 0, 2]]]
    assert make_map(THREE[2:], queries=1).distance().tolist() == [[pytest.approx(0.7)]]  # one query at the end of three keys
    assert make_map([[0.0, 0.0], [0.0, 4.0]]).argmax().tolist() == [[[-1, 1]]]
    assert make_map([[0.0, 0.0], [0.25, 0.25]]).entropy().tolist() == [[pytest.approx(math.log(2))]]  # blind rows do not count


def test_heads():
    m = make_map([THREE, torch.eye(3).tolist()])
    assert m.head(1).heads == (1,) and m.head(1).weights_BHLM.tolist() == [[torch.eye(3).tolist()]]
    torch.testing.assert_close(m.head().weights_BHLM[0, 0], (torch.tensor(THREE) + torch.eye(3)) / 2)
    with pytest.raises(UnknownName, match="head of layer"):
        m.head(2)


def test_words_of_sub_words_by_hand():
    #       un   ##do  it
    m = make_map([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.0, 0.5]]).label(["un", "##do", "it"], ["un", "##do", "it"])
    words = m.merge_words([0, 0, 1])
    torch.testing.assert_close(words.weights_BHLM[0, 0], torch.tensor([[(0.3 + 0.6) / 2, (0.7 + 0.4) / 2], [0.5, 0.5]]))
    assert words.labels() == (["undo", "it"], ["undo", "it"]) and words.square
    some = make_map([[0.1, 0.2, 0.7]], rows=(1,), queries=3).merge_words([0, 0, 1])
    assert some.rows == (0,) and some.weights_BHLM.tolist() == [[[[pytest.approx(0.3), pytest.approx(0.7)]]]]
    cross = make_map([[0.1, 0.2, 0.7]]).merge_words([0], [0, 1, 1])
    assert cross.weights_BHLM.tolist() == [[[[pytest.approx(0.1), pytest.approx(0.9)]]]]
    with pytest.raises(ShapeError, match="2 word numbers; expected one for each of 3"):
        m.merge_words([0, 0])
    assert Maps([m]).merge_words([0, 0, 1]).all[0].rows == (0, 1)


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (["[CLS]", "un", "##do", "it", "[SEP]"], [0, 1, 1, 2, 3]),
        (["▁un", "do", "▁it", "</s>"], [0, 0, 1, 2]),
        (["un", "do", "Ġit"], [0, 0, 1]),
        (["un@@", "do", "it"], [0, 0, 1]),
        (["a", "b"], [0, 1]),
        ([], []),
    ],
)
def test_which_pieces_make_a_word(pieces, numbers):
    assert word_numbers(pieces) == numbers


def test_rollout_is_the_product(model, x):
    with capture(model) as maps:
        model(x, pattern=full)
        model(x + 1, pattern=full)
    expected = torch.eye(L).expand(B, L, L)
    for layer in maps.layers:
        mixed = 0.5 * (maps[layer][0].weights_BHLM.mean(1) + torch.eye(L))
        expected = torch.einsum("bij,bjk->bik", mixed / mixed.sum(2, keepdim=True), expected)
    rollout = maps.rollout(run=0)
    torch.testing.assert_close(rollout, expected)
    torch.testing.assert_close(rollout.sum(-1), torch.ones(B, L))
    assert not torch.allclose(maps.rollout(), rollout)
    assert maps.rollout(maps.layers[:1]).shape == (B, L, L)
    with pytest.raises(UnknownName, match="run"):
        maps.rollout(run=5)
    with capture(model, rows=[0, 1]) as some:
        model(x)
    with pytest.raises(ShapeError, match="2 of 7 queries"):
        some.rollout()
    with pytest.raises(CaptureNotSupported):
        Maps().rollout()


def test_labels_and_layouts():
    m = make_map(THREE)
    assert m.labels() == (["0", "1", "2"], ["0", "1", "2"]) and m.layout == Sequence()
    maps = Maps([m, make_map(THREE, layer="other")]).label(
        queries="xyz", keys=[["a", "b"], ["c", "d", "e"]][1:], layout=Grid(1, 3), layer="layer"
    )
    assert maps["layer"][0].labels() == (["x", "y", "z"], ["c", "d", "e"]) and maps["layer"][0].layout == Grid(1, 3)
    assert not maps["other"][0].key_labels
    for wrong in (Grid(2, 2), Grid(1, 3, prefix_tokens=1), Tree([(0, 2)]), Tree([(0, 2), (1, 3)]), Graph([(0, 3)])):
        with pytest.raises(ShapeError):
            m.label(layout=wrong)
    assert m.label(layout=Tree([(0, 1), (1, 3)])).layout == Tree([(0, 1), (1, 3)])
    with pytest.raises(ShapeError, match="expected 3, one per position"):
        m.label(keys=["a"])
    with pytest.raises(ShapeError, match=r"expected \(batch, 2, 3, 3\)"):
        make_map(THREE, heads=(0, 1))
    with pytest.raises(UnknownName):
        maps.label(keys="abc", layer="nobody")


def test_views():
    maps = Maps([make_map(THREE), make_map(THREE, call=1), make_map([[1.0, 0.0]], layer="cross", call=0)])
    assert maps.view().layer == "cross" and maps.view("layer").call == 1 and maps.view("layer", 0).call == 0
    with pytest.raises(UnknownName, match="call of layer"):
        maps.view("layer", 9)
    with pytest.raises(CaptureNotSupported, match="nothing was captured"):
        Maps().view()
    with pytest.raises(ShapeError, match="differ in batch"):
        Maps([make_map(THREE), make_map([THREE, THREE])]).join_calls("layer")
    with pytest.raises(ShapeError, match="different keys"):
        Maps([make_map([[1.0]]), make_map([[0.5, 0.5]])]).join_calls("layer")


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def maps(x):
    torch.manual_seed(0)
    model = Stack(make=lambda: SoftmaxAttention(sinks=3))
    states = [block.attention.start(B) for block in model.blocks]
    with capture(model, heads=[0, 2], tokens=list("abcdefg")) as maps:
        model(x, states=states)
    with capture(model, rows=[1, 5], dtype=torch.float16) as more:
        model(x)
    graph = more.label(keys=["é", "<b>", "$x$", "中", "\n", "", "q"], layout=Graph([(1, 0), (5, 6)]))
    return Maps([*maps.all, *graph.all, make_map(THREE, layout=Tree([(0, 3)])), make_map([[0.5, 0.5, 0.0, 0.0]], layout=Grid(1, 3, 1))])


@pytest.mark.parametrize("name", ["maps.npz", "maps.safetensors"])
def test_round_trip(maps, tmp_path, name):
    back = Maps.load(maps.save(tmp_path / name))
    assert back.layers == maps.layers and len(back.all) == len(maps.all)
    for a, b in zip(maps.all, back.all, strict=True):
        assert torch.equal(a.weights_BHLM, b.weights_BHLM) and a.weights_BHLM.dtype == b.weights_BHLM.dtype
        plain = [{key: value for key, value in vars(m).items() if key != "weights_BHLM"} for m in (a, b)]
        assert plain[0] == plain[1]
    assert Maps.load(Maps().save(tmp_path / f"empty-{name}")).all == []


@pytest.mark.parametrize("name", ["maps.npz", "maps.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_truncated_files_are_refused(maps, tmp_path, name, share):
    path = maps.save(tmp_path / name)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadFile, match=name):
        Maps.load(path)


def change(entry, **new):
    return json.dumps({"format": "regard.maps", "format_version": 1, "maps": [entry | new]})


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lambda d: "{", "not JSON"),
        (lambda d: "[]", "regard.maps"),
        (lambda d: json.dumps(d | {"format": "else"}), "regard.maps"),
        (lambda d: json.dumps(d | {"format_version": 2}), "format_version 2; this regard reads 1"),
        (lambda d: json.dumps(d | {"maps": [1]}), r"map 0: Expected `object`, got `int`"),
        (lambda d: change(d["maps"][0], heads=[0]), r"expected \(batch, 1, 7, 7\)"),
        (lambda d: change(d["maps"][0], heads="01"), r"Expected `array`, got `str` - at `\$\.heads`"),
        (lambda d: change(d["maps"][0], rows=[True] * 7), r"Expected `int`, got `bool` - at `\$\.rows\[0\]`"),
        (lambda d: change(d["maps"][0], rows=[*range(6), 99]), "rows below queries"),
        (lambda d: change(d["maps"][0], call="0"), r"Expected `int`, got `str` - at `\$\.call`"),
        (lambda d: change(d["maps"][0], normalised=1), r"Expected `bool`, got `int` - at `\$\.normalised`"),
        (lambda d: change(d["maps"][0], stream="x"), r"Expected `int \| null`, got `str` - at `\$\.stream`"),
        (lambda d: change(d["maps"][0], tensor="77"), "'77' is not in the file"),
        (lambda d: change(d["maps"][0], key_labels=[["a"]]), "key labels must be"),
        (lambda d: change(d["maps"][0], key_labels=[[1]]), r"Expected `str`, got `int` - at `\$\.key_labels"),
        (lambda d: change(d["maps"][0], layout={"kind": "spiral"}), "not a layout"),
        (lambda d: change(d["maps"][0], layout={"kind": "grid", "rows": "7", "columns": 1}), "not a layout"),
        (lambda d: change(d["maps"][0], layout={"kind": "grid", "rows": 2, "columns": 2}), "2 × 2"),
        (lambda d: change(d["maps"][0], layout=None), r"Expected `object`, got `null` - at `\$\.layout`"),
    ],
)
def test_tampered_descriptions_are_refused(maps, tmp_path, tamper, says):
    path = maps.save(tmp_path / "maps.safetensors")
    beside = path.with_suffix(".json")
    beside.write_text(tamper(json.loads(beside.read_text("utf-8"))), encoding="utf-8")
    with pytest.raises(BadFile, match=says):
        Maps.load(path)


def test_other_files_are_refused(maps, tmp_path):
    with pytest.raises(BadFile, match="must end with"):
        maps.save(tmp_path / "maps.pt")
    with pytest.raises(FileNotFoundError):
        Maps.load(tmp_path / "none.npz")
    path = maps.save(tmp_path / "maps.safetensors")
    path.with_suffix(".json").unlink()
    with pytest.raises(BadFile, match=r"maps\.json.*not beside it"):
        Maps.load(path)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(BadFile, match="no array called json"):
        Maps.load(tmp_path / "other.npz")
    np.savez(tmp_path / "pickled.npz", json=np.array([{"a": 1}], dtype=object))
    with pytest.raises(BadFile, match=r"allow_pickle|pickle"):
        Maps.load(tmp_path / "pickled.npz")
    path = maps.save(tmp_path / "whole.npz")
    with np.load(path) as inside:
        arrays = dict(inside)
    np.savez(path, **(arrays | {"0": arrays["0"].astype(np.int32)}))
    with pytest.raises(BadFile, match="float16, float32 or float64"):
        Maps.load(path)


def test_values_of_queries_and_keys(tmp_path):
    m = make_map([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    m = replace(
        m.label(["Zoe", "met"], ["a", "b", "c"]), query_values=Values("p_gen", (0.25, 1.0)), key_values=Values("coverage", (1.1, 0.4, 0.5))
    )
    text = to_text(m, columns=80)
    assert "p_gen 0.25 ← a" in text and "p_gen 1.00 ← c" in text and "coverage" in text and text.count("1.1") == 1
    draw(m)
    again = Maps.load(Maps([m]).save(tmp_path / "m.npz")).all[0]
    assert again.query_values == m.query_values and again.key_values == m.key_values
    described = Recording(Maps([m])).header()["maps"][0]
    assert described["row_values"]["numbers"] == (0.25, 1.0) and described["column_values"]["name"] == "coverage"
    assert m.merge_words([0, 0], [0, 1, 2]).query_values is None
    with pytest.raises(ShapeError, match="1 numbers of p_gen; expected 2"):
        replace(m, query_values=Values("p_gen", (0.25,)))
