"""Captions, CLIP and DALL·E beyond the contract: batches, grounding, zero-shot classes, two stages, ranking."""

import numpy as np
import pytest
import torch

from regard.cli import main
from regard.data import Tokenizer, Tokenizers
from regard.data.captions import Captioned
from regard.data.scenes import Thing, scenes
from regard.errors import BadConfig
from regard.models import CLIP, CLIPConfig
from regard.tasks import Dataset, TextProcessor, load_run, predict, train
from regard.tasks._image_processor import ImageProcessor
from regard.tasks._image_text import CaptionBatches, ImageTextProcessor
from regard.tasks.captions import Captioning, cells_inside, grounding
from regard.tasks.clip import Clip, ClipObjective, ZeroShotOptions, _only_class, _recall
from regard.tasks.dalle import COLDEST, Dalle, DalleObjective, DalleOptions, DrawOptions, ImageBatch, sheet, temperature
from regard.train import TrainOptions


@pytest.fixture(scope="module")
def some():
    return [Captioned(f"scene {n}", one.pixels, one.captions, one.things) for n, one in enumerate(scenes("count=60,size=16"))]


@pytest.fixture(scope="module")
def processor(some):
    words = Tokenizers(Tokenizer.train([caption for one in some for caption in one.captions], "word", 100, 1))
    return ImageTextProcessor(ImageProcessor.of_pixels([one.pixels for one in some]), TextProcessor(words))


def test_batches_hold_every_caption_once(some, processor):
    batches = CaptionBatches(some, processor, 32, 16, seed=1)
    for plan in (batches.in_order(), batches.shuffled(0), batches.shuffled(1)):
        assert sorted(n for rows in plan for n in rows) == list(range(len(batches.pairs)))
    assert batches.shuffled(0) == batches.shuffled(0) != batches.shuffled(1)
    batch = batches.collate(rows := batches.shuffled(0)[0])
    for n, ids, length in zip(rows, batch.ids_BL.tolist(), batch.n_B.tolist(), strict=True):
        assert processor.tokenizer.decode(ids[:length]) == batches.pairs[n][1] and not any(ids[length:])
    x_CHW = processor.image.encode(some[batches.pairs[rows[0]][0]].pixels)
    assert batch.image_BCHW[0].equal(x_CHW)


def test_batches_mix_short_and_long_captions(some, processor):
    """Sorted by length, a batch holds scenes of one kind, and the statistics of batch norm tell which."""
    plan = CaptionBatches(some, processor, 32, 16).shuffled(0)[:-1]
    alone = [n for n, one in enumerate(some) if len(one.things) == 1]
    kinds = [{image in alone for image in (CaptionBatches(some, processor, 32, 16).pairs[n][0] for n in rows)} for rows in plan]
    assert all(kind == {True, False} for kind in kinds)


def test_no_caption_twice_in_a_contrastive_batch(some, processor):
    batches = CaptionBatches([*some, *some], processor, 32, 16)
    plan = batches.distinct(0)
    assert sum(map(len, plan)) > 0.9 * len(batches.pairs) and plan == batches.distinct(0) != batches.distinct(1)
    for rows in plan:
        captions = [batches.pairs[n][1] for n in rows]
        assert len(set(captions)) == len(captions) <= 16


# -- grounding -----------------------------------------------------------------------------------------------------------


def test_cells_inside_a_box():
    inside = cells_inside(Thing("red", "circle", "small", (4, 0, 12, 4)), 4, 16).reshape(4, 4)
    assert inside.tolist() == [[False, True, True, False]] + [[False] * 4] * 3


def test_grounding_by_hand(processor):
    """Two objects on a grid of 4 × 4 cells: a peak inside counts, a peak on the other object does not."""
    things = Thing("red", "circle", "small", (0, 0, 8, 8)), Thing("blue", "square", "small", (12, 12, 16, 16))
    ids = processor.tokenizer.encode("a red circle above a blue square and a green square")
    weights_LM = torch.full((len(ids) + 1, 16), 0.01)
    weights_LM[1, 0] = weights_LM[2, 15] = weights_LM[5, 15] = 1.0  # red: right; circle: wrong; blue: right; square: all alike
    found = grounding(weights_LM, ids, processor, things, 4)
    assert found == [(1.0, 4 / 16), (0.0, 4 / 16), (1.0, 1 / 16), (1 / 16, 1 / 16), (0.0, 5 / 16), (1 / 16, 1 / 16)]  # nothing is green


# -- CLIP ----------------------------------------------------------------------------------------------------------------


def test_the_class_of_captions():
    names = ["red circle", "blue square", "circle"]
    assert _only_class(("a small red square", "a red square"), names) is None
    assert _only_class(("a blue square", "one blue square here"), names) == 1
    assert _only_class(("a blue square", "a thing"), names) is None
    assert _only_class(("a red circle",), names) is None  # two classes
    assert _only_class(("a red circle",), names[:2]) == 0


def test_recall_by_hand():
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.8, 0.3], [0.3, 0.2, 0.1]])
    right = torch.eye(3, dtype=torch.bool)
    assert [_recall(scores, right, k) for k in (1, 2, 3)] == [pytest.approx(2 / 3), pytest.approx(2 / 3), 1.0]


def test_the_scale_stays_below_100():
    model = CLIP(CLIPConfig(vocab_size=9, width=8, heads=2, depth=1, image_width=8, image_heads=2, image_depth=1))
    with torch.no_grad():
        model.log_scale.fill_(7.0)
    ClipObjective.after_step(None, model)
    assert float(model.scale.detach()) == pytest.approx(100)


def test_templates_need_a_place_for_the_class():
    assert ZeroShotOptions(templates=("a {}", "{} here")).prompts("dog") == ["a dog", "dog here"]
    with pytest.raises(BadConfig, match="templates"):
        ZeroShotOptions(templates=("a dog",))


# -- DALL·E --------------------------------------------------------------------------------------------------------------


def test_two_stages(some, processor):
    """First the VAE alone, then the transformer alone; temperature and β move on with the first."""
    objective = DalleObjective(Dataset(some, some, some, ""), processor, DalleOptions(vae_epochs=2, batch_size=20, max_length=12), seed=0)
    first, second, third, fourth = (objective.batches(epoch) for epoch in range(4))
    rates = [[objective.batch_rate(item) for item in plan] for plan in (first + second, third, fourth)]
    assert rates[0][0] == 1 and sorted(rates[0], reverse=True) == rates[0] and rates[0][-1] < 0.1  # the VAE's falls, then a new warm-up
    assert rates[1] == pytest.approx([(n + 1) / len(third) for n in range(len(third))]) and set(rates[2]) == {1.0}
    assert [item.progress for item in (*first, *second)] == pytest.approx([n / 6 for n in range(6)])
    assert sorted(n for item in first for n in item.rows) == list(range(60)) and third[0].progress is None
    settings = {"vocab_size": 100, "max_length": 12, "image_size": 16, "codes": 5, "features": 8, "width": 8, "heads": 2, "depth": 1}
    model = Dalle().build("dalle", settings, processor)
    for item, learning in ((first[0], "vae"), (third[0], "")):
        model.zero_grad()
        batch = objective.batch(item)
        assert isinstance(batch, ImageBatch) == (learning == "vae")
        objective.loss(model, batch).total.backward()
        touched = {name.partition(".")[0] == "vae" for name, p in model.named_parameters() if p.grad is not None}
        assert touched == {learning == "vae"}
    assert temperature(0) == 1 and temperature(0.5) == temperature(1) == pytest.approx(COLDEST) and temperature(0.2) > temperature(0.4)


def test_drawings_are_ranked(tmp_path, capsys):
    folders = [tmp_path / task.name for task in (Dalle, Clip)]
    for task, folder in zip((Dalle, Clip), folders, strict=True):
        folder.mkdir()
        example = task.example(folder)
        train(task, example.options, TrainOptions(steps=1), folder / "run", settings=example.settings, progress=False)
    run, judge = load_run(folders[0] / "run"), str(folders[1] / "run")
    (found,) = predict(run, ["a red circle"], DrawOptions(n=3, rank_by=judge))
    assert found.values["scores"] == sorted(found.values["scores"], reverse=True) and found.files[".png"].startswith(b"\x89PNG")
    assert main(["predict", str(folders[0] / "run"), "a red circle", "--n", "2", "--rank-by", str(folders[0] / "run")]) == 2
    assert "needs a" in capsys.readouterr().err
    with pytest.raises(BadConfig, match="n=0"):
        DrawOptions(n=0)


def test_a_sheet_of_images():
    images = [np.full((4, 5, 3), n, dtype=np.uint8) for n in range(5)]
    whole = sheet(images)
    assert whole.shape == (2 * 4 + 2, 3 * 5 + 2 * 2, 3) and (whole[:4, 7:12] == 1).all() and (whole[6:, 7:12] == 4).all()


def test_a_generated_scene_is_an_input(tmp_path):
    example = Captioning.example(tmp_path)
    train(Captioning, example.options, TrainOptions(steps=1), tmp_path / "run", settings=example.settings, progress=False)
    run = load_run(tmp_path / "run")
    assert run.processor.read("scenes:seed=7,size=20").shape == (20, 20, 3)
    assert predict(run, ["scenes:seed=7"])[0].values["caption"] is not None
