"""Tasks on the user's own data, end to end: read, train, evaluate, predict, look at attention. The imports are the list.

result = train("language", LanguageOptions(data="book.txt"), TrainOptions(minutes=5), "runs/book")
run = load_run("runs/book")
evaluate(run).metrics["perplexity"]
predict(run, ["Once upon a time"])
"""

from __future__ import annotations

from inspect import isabstract
from typing import Any

from ._base import BeamPrefix, Dataset, Example, NoOptions, Prediction, Report, Task
from ._bleu import Score, score
from ._image_processor import ImageProcessor
from ._options import DataOptions, TokenizerOptions
from ._processor import TextProcessor
from ._runs import (
    attention_maps,
    evaluate,
    expect,
    find_task,
    load_model,
    load_run,
    make_run,
    predict,
    save_model,
    score_outputs,
    task_for,
    task_of,
    watch,
)
from ._trainer import TrainResult, new_config, resumed_config, train
from .captions import Captioning, CaptionsObjective, CaptionsOptions
from .classification import Classify, ClassifyOptions, Label, LabelOptions
from .clip import Clip, ClipObjective, ClipOptions
from .dalle import Dalle, DalleObjective, DalleOptions
from .draw import DrawOptions, DrawTask
from .embedding import Embedder, embed, nearest
from .handwriting import HandwritingOptions, HandwritingTask
from .images import Images, ImagesObjective, ImagesOptions
from .language import Language, LanguageObjective, LanguageOptions, TextScore, perplexity
from .masked import Masked, MaskedObjective, MaskedOptions
from .pixels import CompletionOptions, PixelsOptions, PixelsTask
from .question_answering import QuestionAnswering, QuestionAnsweringOptions, ReadingObjective
from .summarization import Summarization, SummarizationObjective, SummarizationOptions
from .translation import (
    Translation,
    TranslationObjective,
    TranslationOptions,
    alignment,
    layer_maps,
    likelihood,
    translations,
)
from .video import Video, VideoOptions

# The list everything else reads, derived from the imports above: a new task is one line there.
TASKS: tuple[type[Task[Any]], ...] = tuple(
    part for part in list(vars().values()) if isinstance(part, type) and issubclass(part, Task) and not isabstract(part)
)
