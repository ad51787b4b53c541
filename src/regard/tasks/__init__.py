"""Tasks on the user's own data, end to end: read, train, evaluate, predict, look at attention.

result = train("language", LanguageOptions(data="book.txt"), TrainOptions(minutes=5), "runs/book")
run = load_run("runs/book")
evaluate(run).metrics["perplexity"]
predict(run, ["Once upon a time"])

`NAMES` is the list everything else reads: a new task is one line there. Modules are imported when their task is used.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._lazy import Entries, lazy
from ..names import find

NAMES = {
    "captions": "captions:Captioning",
    "classify": "classify:Classify",
    "label": "label:Label",
    "clip": "clip:Clip",
    "dalle": "dalle:Dalle",
    "draw": "draw:DrawTask",
    "functions": "functions:FunctionsTask",
    "graphs": "graphs:Graphs",
    "handwriting": "handwriting:HandwritingTask",
    "images": "images:Images",
    "language": "language:Language",
    "masked": "masked:Masked",
    "pixels": "pixels:PixelsTask",
    "question-answering": "question_answering:QuestionAnswering",
    "sets": "sets:SetsTask",
    "summarization": "summarization:Summarization",
    "translation": "translation:Translation",
    "video": "video:Video",
}
ENTRIES: Entries[type[Task[Any]]] = Entries(__name__, NAMES)  # classes by name, imported when they are asked for
DECLARATIONS: Entries[type[Declaration]] = Entries(  # options by name, without PyTorch
    f"{__name__}.options", {name: f"{where}Declaration" for name, where in NAMES.items()}
)
registered: dict[str, type[Task[Any]]] = {}  # classes from outside the package: `regard.register`

if TYPE_CHECKING:
    from ..data.splits import Splits
    from .captions import Captioning
    from .choosing import plan, turn_dial
    from .classify import Classify
    from .clip import Clip
    from .dalle import Dalle
    from .draw import DrawTask
    from .embedding import Embedder, embed, nearest
    from .functions import FunctionsTask
    from .graphs import Graphs
    from .handwriting import HandwritingTask
    from .image_processor import ImageProcessor
    from .images import Images
    from .label import Label
    from .language import Language, perplexity
    from .masked import Masked
    from .measuring import TaskObjective, measure
    from .options import (
        BeamOptions,
        CaptionsOptions,
        ClassifyOptions,
        ClipOptions,
        CompletionOptions,
        DalleOptions,
        DataOptions,
        Declaration,
        DrawOptions,
        FunctionsOptions,
        GraphsOptions,
        HandwritingOptions,
        ImagesOptions,
        LabelOptions,
        LanguageOptions,
        MaskedOptions,
        NoOptions,
        PixelsOptions,
        QuestionAnsweringOptions,
        SetsOptions,
        SummarizationOptions,
        TokenizerOptions,
        TranslationOptions,
        VideoOptions,
    )
    from .pixels import PixelsTask
    from .question_answering import QuestionAnswering
    from .runs import (
        attention_maps,
        evaluate,
        expect,
        find_task,
        load_run,
        make_run,
        predict,
        save_model,
        score_outputs,
        task_for,
        task_of,
        tasks,
        watch,
    )
    from .sets import SetsTask
    from .summarization import Summarization
    from .task import BeamPrefix, InputField, JsonProcessor, Prediction, Report, Task
    from .text_processor import TextProcessor
    from .text_score import TextScore
    from .trainer import TrainResult, new_config, resumed_config, train
    from .translation import Translation, alignment, likelihood, translations
    from .video import Video

    TASKS: tuple[type[Task[Any]], ...]
else:
    __getattr__, __dir__ = lazy(__name__, {"TASKS": lambda: tuple(ENTRIES.values())})


def declarations() -> Mapping[str, type[Declaration]]:
    """List the declaration of every task by name, registered ones, which are tasks themselves, last."""
    outside: dict[str, type[Declaration]] = {**registered}
    return ChainMap(outside, DECLARATIONS)


def find_declaration(name: str) -> type[Declaration]:
    """Find the declaration of a task, without PyTorch if the task is of this package.

    Args:
        name: name of a task, registered ones included.
    """
    return find("task", name, declarations)
