"""Captions, CLIP and DALL·E beyond the contract: batches, grounding, zero-shot classes, two stages, ranking."""

import numpy as np
import pytest
import torch
from tests.tasks.examples import write_example

from regard.cli import main
from regard.data import Splits, Tokenizer, Tokenizers
from regard.data.captions import Captioned
from regard.data.scenes import Thing, scenes
from regard.errors import BadConfig
from regard.look.images import sheet
from regard.metrics import recall_at
from regard.models import CLIP, CLIPConfig
from regard.tasks import TaskObjective, TextProcessor, load_run, predict, train
from regard.tasks.captions import Captioning, CaptionsOptions, cells_inside, grounding
from regard.tasks.clip import Clip, ZeroShotOptions, _only_class
from regard.tasks.dalle import COLDEST, Dalle, DalleOptions, GenerateOptions, temperature
from regard.tasks.image_processor import ImageProcessor
from regard.tasks.image_text import CaptionRows, ImageTextProcessor, distinct
from regard.train import Progress, TrainOptions


@pytest.fixture(scope="module")
def some():
    return [Captioned(f"scene {n}", one.pixels, one.captions, one.things) for n, one in enumerate(scenes("count=60,size=16"))]


@pytest.fixture(scope="module")
def processor(some):
    words = Tokenizers(Tokenizer.train([caption for one in some for caption in one.captions], "word", 100, 1))
    return ImageTextProcessor(ImageProcessor.of_pixels([one.pixels for one in some]), TextProcessor(words))


def test_batches_hold_every_caption_once(some, processor):
    task, rows = Captioning(CaptionsOptions(batch_size=16), processor), CaptionRows(some, processor, 32)

    def numbers(epoch):
        return [n for group in task.plan(rows, epoch, seed=1).groups for n in group.tolist()]

    for epoch in (None, 0, 1):
        assert sorted(numbers(epoch)) == list(range(len(rows.pairs)))
    assert numbers(0) == numbers(0) != numbers(1)
    plan = task.plan(rows, 0, seed=1)
    batch, group = task.batch(plan[0], None), plan.groups[0].tolist()
    for n, ids, length in zip(group, batch.ids_BL.tolist(), batch.n_B.tolist(), strict=True):
        assert processor.tokenizer.decode(ids[:length]) == rows.pairs[n][1] and not any(ids[length:])
    x_CHW = processor.image.encode(some[rows.pairs[group[0]][0]].pixels)
    assert batch.image_BCHW[0].equal(x_CHW)


def test_batches_mix_short_and_long_captions(some, processor):
    """Sorted by length, a batch holds scenes of one kind, and the statistics of batch norm tell which."""
    rows = CaptionRows(some, processor, 32)
    plan = Captioning(CaptionsOptions(batch_size=16), processor).plan(rows, 0).groups[:-1]
    alone = [n for n, one in enumerate(some) if len(one.things) == 1]
    kinds = [{rows.pairs[n][0] in alone for n in group} for group in plan]
    assert all(kind == {True, False} for kind in kinds)


def test_no_caption_twice_in_a_contrastive_batch(some, processor):
    rows = CaptionRows([*some, *some], processor, 32)
    plan, again, other = ([group.tolist() for group in distinct(rows, 16, 0, epoch)] for epoch in (0, 0, 1))
    assert sum(map(len, plan)) > 0.9 * len(rows.pairs) and plan == again != other
    for group in plan:
        captions = [rows.pairs[n][1] for n in group]
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
    assert [recall_at(k, scores, right) for k in (1, 2, 3)] == [pytest.approx(2 / 3), pytest.approx(2 / 3), 1.0]


def test_the_scale_stays_below_100():
    model = CLIP(CLIPConfig(vocab_size=9, width=8, heads=2, depth=1, image_width=8, image_heads=2, image_depth=1))
    with torch.no_grad():
        model.log_scale.fill_(7.0)
    Clip().after_step(model)
    assert float(model.scale.detach()) == pytest.approx(100)


def test_templates_need_a_place_for_the_class():
    assert ZeroShotOptions(templates=("a {}", "{} here")).prompts("dog") == ["a dog", "dog here"]
    with pytest.raises(BadConfig, match="templates"):
        ZeroShotOptions(templates=("a dog",))


# -- DALL·E --------------------------------------------------------------------------------------------------------------


def test_two_stages(some, processor):
    """First the VAE alone, then the transformer alone; temperature and β move on with the first."""
    task = Dalle(DalleOptions(vae_share=0.5, batch_size=20, max_length=12), processor)
    settings = {"vocab_size": 100, "max_length": 12, "image_size": 16, "codes": 5, "features": 8, "width": 8, "heads": 2, "depth": 1}
    model = Dalle().build("dalle", settings, processor)
    objective = TaskObjective(task, Splits(some, some, some), model)
    rates = [objective.before_step(Progress(share=n / 160)) for n in range(100)]
    assert rates[0] == 1 and sorted(rates[:80], reverse=True) == rates[:80] and rates[79] < 0.1  # the VAE's falls, then a new warm-up
    assert rates[80:86] == pytest.approx([0, 1 / 4, 2 / 4, 3 / 4, 1, 1], abs=2e-3)
    for share, learning in ((0.0, "vae"), (0.5, "")):
        model.zero_grad()
        objective.before_step(Progress(share=share))
        objective.loss(model, objective.batch(objective.batches(0)[0], torch.Generator())).total.backward()
        touched = {name.partition(".")[0] == "vae" for name, p in model.named_parameters() if p.grad is not None}
        assert touched == {learning == "vae"}
    assert temperature(0) == 1 and temperature(0.5) == temperature(1) == pytest.approx(COLDEST) and temperature(0.2) > temperature(0.4)


def test_drawings_are_ranked(tmp_path, capsys):
    folders = [tmp_path / task.name for task in (Dalle, Clip)]
    for task, folder in zip((Dalle, Clip), folders, strict=True):
        folder.mkdir()
        example = write_example(task, folder)
        train(task, example.options, TrainOptions(steps=1), folder / "run", settings=example.settings, progress=False)
    run, judge = load_run(folders[0] / "run"), str(folders[1] / "run")
    (found,) = predict(run, ["a red circle"], GenerateOptions(n=3, rank_by=judge))
    assert found.values["scores"] == sorted(found.values["scores"], reverse=True) and found.files[".png"].startswith(b"\x89PNG")
    assert main(["predict", str(folders[0] / "run"), "a red circle", "--n", "2", "--rank-by", str(folders[0] / "run")]) == 2
    assert "expected a CLIP" in capsys.readouterr().err
    with pytest.raises(BadConfig, match="n=0"):
        GenerateOptions(n=0)


def test_a_sheet_of_images():
    images = [np.full((4, 5, 3), n, dtype=np.uint8) for n in range(5)]
    whole = sheet(images)
    assert whole.shape == (2 * 10 + 6, 3 * 11 + 6, 3) and (whole[6:10, 17:22] == 1).all() and (whole[16:20, 17:22] == 4).all()


def test_a_generated_scene_is_an_input(tmp_path):
    example = write_example(Captioning, tmp_path)
    train(Captioning, example.options, TrainOptions(steps=1), tmp_path / "run", settings=example.settings, progress=False)
    run = load_run(tmp_path / "run")
    assert run.processor.read("scenes:seed=7,size=20").shape == (20, 20, 3)
    assert predict(run, ["scenes:seed=7"])[0].values["caption"] is not None
