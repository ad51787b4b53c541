"""Gradients with respect to the inputs are those of finite differences; they follow ablations, and reach the explorer's format."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tasks.examples import write_example
from torch import nn

from regard.attention import SoftmaxAttention
from regard.errors import NotSupported, UnknownName
from regard.layers.patches import PatchEmbedding
from regard.look import Maps, capture
from regard.look.explorer import Recording, record
from regard.look.gradients import InputGradients, next_token_gradients
from regard.look.html import pack
from regard.look.interventions import Ablation, ablate
from regard.models import build
from regard.tasks import attention_maps, find_task, load_run, train
from regard.tasks.clip import text_vectors
from regard.tasks.image_text import ImageTextProcessor
from regard.tasks.pixel_processor import PixelProcessor
from regard.tasks.pixels import PixelGradients

ENCODE = ImageTextProcessor.encode_images
SIZES = {"vocab_size": 23, "context_length": 16, "width": 24, "heads": 3, "depth": 2}
RECURRENT = {"vocab_size": 23, "context_length": 16, "width": 20, "embedding": 12}


def language_model(name: str):
    torch.manual_seed(0)
    model = build(name, RECURRENT if name == "rnn_lm" else SIZES).eval().double()
    for parameter in model.parameters():
        parameter.data *= 2
    return model, torch.randint(23, (1, 9))


def captured(model, ids_1L) -> Maps:
    with torch.no_grad(), capture(model) as maps:
        x_1LD = model.features(ids_1L)
    maps.gradients = next_token_gradients(model, ids_1L, x_1LD, lambda ids: [f"t{n}" for n in ids], maps.layers)
    return maps


def slow_gradients(model, embedding: nn.Embedding, log_probability, tokens: int, epsilon: float = 1e-4):
    """∂ log p / ∂ e by central differences: the rows that the embedding gives are moved, one coordinate at a time."""
    width, found = embedding.embedding_dim, torch.zeros(tokens, embedding.embedding_dim, dtype=torch.float64)
    moved = torch.zeros(1, tokens, width, dtype=torch.float64)
    handle = embedding.register_forward_hook(lambda module, args, out: out + moved if out.shape == moved.shape else None)
    with torch.no_grad():
        for j in range(tokens):
            for d in range(width):
                sides = []
                for sign in (1, -1):
                    moved[0, j, d] = sign * epsilon
                    sides.append(float(log_probability()))
                    moved[0, j, d] = 0
                found[j, d] = (sides[0] - sides[1]) / (2 * epsilon)
    handle.remove()
    return found


@pytest.mark.parametrize("name", ["gpt2", "rnn_lm"])
def test_they_are_those_of_finite_differences(name):
    model, ids_1L = language_model(name)
    embedding = next(module for module in model.modules() if isinstance(module, nn.Embedding) and module.num_embeddings == 23)
    i, wanted = 5, ids_1L[0, 6]

    @torch.no_grad()
    def log_probability():
        return float(model(ids_1L)[0, i].log_softmax(-1)[wanted])

    with torch.no_grad():
        gradients = next_token_gradients(model, ids_1L, model.features(ids_1L), lambda ids: [str(n) for n in ids], ())
    slow_MD = slow_gradients(model, embedding, log_probability, ids_1L.shape[1])
    (row,) = gradients.rows([i])
    torch.testing.assert_close(row.norm[0], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(row.times_input[0], (slow_MD * embedding(ids_1L)[0]).sum(-1).detach(), atol=1e-7, rtol=1e-5)
    assert row.log_probability == pytest.approx(log_probability())
    assert float(row.norm[0][i + 1 :].abs().max()) == 0 and bool((row.norm[0][: i + 1] > 0).all())  # the future has no influence
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_last_output_is_the_most_likely_next_token():
    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients
    assert gradients.outputs[-1] == f"t{int(model(ids_1L)[0, -1].argmax())}" and gradients.outputs[0] == f"t{int(ids_1L[0, 1])}"
    with pytest.raises(UnknownName):
        gradients.rows([9])


def test_source_and_target_of_a_translator_have_their_own():
    torch.manual_seed(0)
    sizes = {"source_vocab_size": 17, "target_vocab_size": 17, "width": 12, "heads": 2, "depth": (1, 1), "hidden": 16}
    model = build("transformer", sizes).eval().double()  # one embedding for both
    source, n, target = torch.tensor([[5, 3, 9, 2]]), torch.tensor([4]), torch.tensor([[1, 7, 7, 4, 8]])
    wanted_L = torch.tensor([7, 7, 4, 8, 2])
    gradients = InputGradients(model, (source, target), lambda model: model.features(source, n, target)[0], wanted_L, list("abcde"), {})
    (row,) = gradients.rows([2])

    def log_probability():
        return model(source, n, target)[0, 2].log_softmax(-1)[4]

    for number, tokens in enumerate((4, 5)):
        slow_MD = slow_gradients(model, model.embedding.token, log_probability, tokens)
        torch.testing.assert_close(row.norm[number], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)
    assert float(row.norm[1][3:].max()) == 0


def central_differences(log_probability, moved_1MD, epsilon: float = 1e-4):
    """∂ log p / ∂ e, where `log_probability()` is of embeddings to which `moved_1MD` is added."""
    found_MD = torch.zeros_like(moved_1MD[0])
    with torch.no_grad():
        for j, d in torch.cartesian_prod(*map(torch.arange, found_MD.shape)).tolist():
            sides = []
            for side in (epsilon, -epsilon):
                moved_1MD[0, j, d] = side
                sides.append(float(log_probability()))
            moved_1MD[0, j, d] = 0
            found_MD[j, d] = (sides[0] - sides[1]) / (2 * epsilon)
    return found_MD


def test_a_masked_token_depends_on_both_sides(tmp_path):
    """With the tokens, the mask and the special tokens that `regard look` reads."""
    run, example = tiny_run("masked", tmp_path)
    _, maps = attention_maps(run, "The number [MASK] is even", "*")
    labels, gradients = maps.all[0].labels()[0], maps.gradients
    at, ids_1L = labels.index("[MASK]"), gradients.inputs[0]
    logits_LN = run.model(ids_1L)[0]
    wanted = int(logits_LN[at, : len(run.processor.tokenizer)].argmax())
    assert gradients.outputs[at] == run.processor.tokenizer.strings([wanted])[0] and labels[at - 1 : at + 2] == ["number", "[MASK]", "is"]
    assert gradients.layers.keys() == set(maps.layers)
    table = run.model.embedding.token
    moved = torch.zeros(1, len(labels), table.embedding_dim, dtype=torch.float64)
    with hooked(table, lambda out: out + moved):
        slow_MD = central_differences(lambda: run.model(ids_1L)[0, at].log_softmax(-1)[wanted], moved)
    check(gradients.rows([at])[0], slow_MD, table(ids_1L)[0])
    assert bool((slow_MD.norm(dim=-1)[[at - 1, at + 1]] > 0).all())


@pytest.fixture
def double_images(monkeypatch):
    monkeypatch.setattr(ImageTextProcessor, "encode_images", lambda self, images: ENCODE(self, images).double())


@pytest.mark.usefixtures("double_images")
def test_a_word_of_a_caption_depends_on_the_cells_of_the_image(tmp_path):
    run, example = tiny_run("captions", tmp_path)
    text, maps = attention_maps(run, example.input, "*")
    gradients, (image_1CHW,) = maps.gradients, maps.gradients.inputs
    assert gradients.outputs == list(maps.all[0].labels()[0]) and maps.all[0].labels()[1][:2] == ["0,0", "0,1"]
    cells, width = run.model.grid**2, run.model.config.features
    moved, target_1L = torch.zeros(1, cells, width, dtype=torch.float64), torch.tensor([[1, *gradients.target_L[:-1].tolist()]])
    with hooked(run.model.encoder, lambda out: out + moved):
        last = len(gradients.outputs) - 1
        slow_MD = central_differences(lambda: run.model(image_1CHW, target_1L)[0, last].log_softmax(-1)[gradients.target_L[last]], moved)
    check(gradients.rows([last])[0], slow_MD, run.model.encoder(image_1CHW)[0])


@pytest.mark.usefixtures("double_images")
def test_the_nearest_caption_depends_on_the_patches(tmp_path):
    run, example = tiny_run("clip", tmp_path)
    text, maps = attention_maps(run, example.input, "*")
    gradients, (image_1CHW,), captions = maps.gradients, maps.gradients.inputs, run.processor.text.labels
    t_NE = text_vectors(run.model, run.processor, captions)
    best = int((run.model.encode_images(image_1CHW) @ t_NE.T)[0].argmax())
    assert gradients.outputs == [captions[best]] and text.startswith(captions[best])
    patches = next(module for module in run.model.modules() if isinstance(module, PatchEmbedding))
    moved = torch.zeros(1, 4, run.model.config.image_width, dtype=torch.float64)
    with hooked(patches, lambda out: out + moved):
        slow_MD = central_differences(
            lambda: (run.model.scale * run.model.encode_images(image_1CHW) @ t_NE.T)[0].log_softmax(-1)[best], moved
        )
    check(gradients.rows([0])[0], slow_MD, patches(image_1CHW)[0])
    piece = np.frombuffer(Recording(maps).piece("gradients/0/0"), "<f4")
    assert len(piece) == 1 + 2 * 5 and np.isnan(piece[[1, 6]]).all()  # the class token is no input
    captionless = replace(run, processor=replace(run.processor, text=replace(run.processor.text, labels=())))
    nothing, without = attention_maps(captionless, example.input, "*")
    assert nothing == "" and without.gradients is None and "no captions" in Recording(without).header()["no_gradients"]


def test_patches_of_a_convolutional_stem_have_them_too():
    torch.manual_seed(0)
    sizes = {"image_size": (8, 8), "patch_size": (4, 4), "channels": 1, "width": 8, "heads": 2, "depth": 1, "hidden": 8, "classes": 3}
    model = build("vit", {**sizes, "stem": (4,)}).eval().double()
    image_1CHW = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    gradients = InputGradients(
        model, (image_1CHW,), lambda model: model(image_1CHW), torch.tensor([2]), ["c"], {}, logits=lambda _, x_N: x_N
    )
    patches = next(module for module in model.modules() if isinstance(module, PatchEmbedding))
    moved = torch.zeros(1, 4, 8, dtype=torch.float64)
    with hooked(patches, lambda out: out + moved):
        slow_MD = central_differences(lambda: model(image_1CHW)[0].log_softmax(-1)[2], moved)
    torch.testing.assert_close(gradients.rows([0])[0].norm[0], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(("channels", "output"), [(1, "categorical"), (3, "categorical"), (3, "logistics")])
def test_a_pixel_depends_on_those_before_it(channels, output):
    torch.manual_seed(0)
    sizes = {"image_size": (3, 4), "channels": channels, "levels": 5, "output": output, "mixtures": 2}
    model = build("image_transformer", {**sizes, "width": 8, "heads": 2, "depth": 1, "hidden": 8}).eval().double()
    processor = PixelProcessor(size=(3, 4), channels=channels, levels=5)
    image = torch.randint(5, (1, 3, 4, channels))
    gradients = PixelGradients(model, processor, image, [(0, 0), (1, 2)], ["decoder.0.mixer.attention"])
    first, row = gradients.rows([0, 1])
    per_pixel = 3 if output == "categorical" and channels == 3 else 1
    position, positions = 6 * per_pixel, 12 * per_pixel
    embed, moved = model.values.embed, torch.zeros(1, positions - 1, 8, dtype=torch.float64)
    model.values.embed = lambda values, first: embed(values, first) + moved
    slow_MD = central_differences(lambda: -model(image)[0, position], moved)
    del model.values.embed
    last = torch.zeros(1, 8, dtype=torch.float64)  # of the last value, which nothing reads
    slow_PCD = torch.cat([slow_MD, last]).unflatten(0, (12, per_pixel))
    e_PCD = torch.cat([embed(model.values.split(image)[:, :-1], 0)[0], last]).unflatten(0, (12, per_pixel))
    torch.testing.assert_close(row.norm[0], slow_PCD.norm(dim=(1, 2)), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(row.times_input[0], (slow_PCD * e_PCD).sum((1, 2)).detach(), atol=1e-7, rtol=1e-5)
    assert row.log_probability == pytest.approx(-model(image)[0, position].item()) and float(row.norm[0][6:].max()) == 0
    assert float(first.norm[0].max()) == 0 and gradients.outputs[1].startswith("1,2 = ")


@pytest.mark.parametrize(
    ("model", "text", "layer", "tokens"),
    [
        ("han", "item is fine\nitem is broken", "document", ["item", "is", "fine", "item", "is", "broken"]),
        ("self_attentive", "item is fine", "attention.attention", ["item", "is", "fine", "⟨eos⟩"]),
        ("esim", "item fine\titem is fine", "first_to_second", ["item", "is", "fine", "⟨eos⟩"]),
    ],
)
def test_a_label_depends_on_the_words_that_are_attended_to(model, text, layer, tokens, tmp_path):
    run, _ = tiny_run("classify", tmp_path, model, {"embedding": 6, "width": 6, "hidden": 6}, pairs=model == "esim")
    _, maps = attention_maps(run, text, "*")
    recording, number = Recording(maps), maps.layers.index(layer)
    piece = torch.from_numpy(np.frombuffer(recording.piece(f"gradients/{number}/0"), "<f4").copy())
    assert list(maps.all[number].labels()[1]) == tokens and len(piece) == 1 + 2 * len(tokens)
    table = next(module for module in run.model.modules() if isinstance(module, nn.Embedding))
    moved, gradients = torch.zeros(1, maps.gradients.inputs[0].shape[1], table.embedding_dim, dtype=torch.float64), maps.gradients

    def log_probability():
        return gradients.log_probability(run.model, gradients._features(run.model)[0], 0)

    with hooked(table, lambda out: out + moved.view_as(out)):
        slow_MD = central_differences(log_probability, moved)
    check(gradients.rows([0])[0], slow_MD, table(gradients.inputs[0])[0])
    here = gradients.positions.get(layer, list(range(len(tokens))))
    torch.testing.assert_close(piece[1 : 1 + len(tokens)].double(), slow_MD.norm(dim=-1)[here], atol=1e-5, rtol=1e-4)


def test_a_word_of_a_summary_depends_on_the_article_copied_words_included(tmp_path):
    run, example = tiny_run("summarization", tmp_path)
    _, maps = attention_maps(run, example.input, "*")
    gradients, (read_1M,), table = maps.gradients, maps.gradients.inputs, run.model.encoder.token
    moved = torch.zeros(1, read_1M.shape[1], table.embedding_dim, dtype=torch.float64)
    assert len(gradients.outputs) != read_1M.shape[1]  # or the summary would be moved, too
    with hooked(table, lambda out: out + moved if out.shape[-2] == moved.shape[1] else out):
        slow_MD = central_differences(lambda: gradients._features(run.model)[1][gradients.target_L[1]], moved)
    check(gradients.rows([1])[0], slow_MD, table(read_1M)[0])
    assert Recording(maps).piece(f"gradients/{maps.layers.index('summary → article')}/1")


def tiny_run(name: str, folder, model: str | None = None, settings=None, pairs: bool = False):
    """A run of a few steps of this task, in double precision."""
    task = find_task(name)
    example = write_example(task, folder)
    if pairs:
        (folder / "pairs.tsv").write_text("".join(f"item {n}\titem {n % 7} is fine\t{'good' if n % 2 else 'bad'}\n" for n in range(60)))
        example = replace(example, options=replace(example.options, data=str(folder / "pairs.tsv")))
    options = task.default_train.replace(steps=2, epochs=None, schedule="constant", warmup_steps=0, average=0, seeds=())
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(ImageTextProcessor, "encode_images", ENCODE)
        train(task, example.options, options, folder / "run", model=model, settings=settings or example.settings, progress=False)
    run = load_run(folder / "run")
    run.model.double()
    return run, example


@contextmanager
def hooked(module, change):
    handle = module.register_forward_hook(lambda module, args, out: change(out))
    yield
    handle.remove()


def check(row, slow_MD, e_MD):
    torch.testing.assert_close(row.norm[0], slow_MD.norm(dim=-1), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(row.times_input[0], (slow_MD * e_MD).sum(-1).detach(), atol=1e-7, rtol=1e-5)


def test_they_follow_an_ablation():
    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients

    @contextmanager
    def ablated():
        with ablate(model, [Ablation("blocks.0.mixer.attention", head) for head in range(3)]):
            yield model

    ((plain,), (changed,)) = gradients.rows([6]), gradients.within(ablated).rows([6])
    assert not torch.allclose(plain.norm[0], changed.norm[0]) and plain.log_probability != changed.log_probability
    assert gradients.rows([6])[0].log_probability == plain.log_probability


def test_a_text_that_is_too_long_and_a_model_without_them_are_refused(monkeypatch):
    model, ids_1L = language_model("gpt2")
    gradients = captured(model, ids_1L).gradients
    monkeypatch.setattr("regard.look.gradients.LONGEST", 8)
    with pytest.raises(NotSupported, match="at most 8 inputs"):
        gradients.rows([0])
    attention = SoftmaxAttention()
    with pytest.raises(NotSupported, match="no gradient"):
        InputGradients(attention, (ids_1L,), lambda model: torch.zeros(9, 4), ids_1L[0], list("abcdefghi"), {}).rows([0])


def test_the_format_has_a_row_per_query_and_files_only_when_asked():
    model, ids_1L = language_model("gpt2")
    maps = captured(model, ids_1L)
    recording = Recording(maps)
    header = recording.header()
    layer = header["maps"][1]
    assert header["labels"][layer["outputs"]] == maps.gradients.outputs
    assert header["maps"][-1]["derived"] and header["maps"][-1]["outputs"] is not None  # a rollout can be compared, too
    piece = torch.from_numpy(np.frombuffer(recording.piece("gradients/1/4"), "<f4").copy())
    (row,) = maps.gradients.rows([4])
    torch.testing.assert_close(piece, torch.cat([torch.tensor([row.log_probability]), row.norm[0], row.times_input[0]]).float())
    with pytest.raises(UnknownName):
        recording.piece("gradients/1/9")
    without, with_all = (pack(record(maps), gradients=wanted) for wanted in (False, True))
    assert len(with_all) > len(without)
