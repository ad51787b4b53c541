"""Options of every task, in modules that import no PyTorch: `regard train TASK --help` reads them. One file per task, and those that tasks share.

Behaviour that needs tensors is in the task (`tasks/NAME.py`); bounds are in the types of the fields (`regard.bounds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._lazy import lazy

if TYPE_CHECKING:
    from .captions import CaptioningDeclaration, CaptionsOptions
    from .classify import ClassifyDeclaration, ClassifyOptions
    from .clip import ClipDeclaration, ClipOptions, ZeroShotOptions
    from .dalle import DalleDeclaration, DalleOptions, GenerateOptions
    from .draw import DrawOptions, DrawTaskDeclaration, RedrawOptions
    from .functions import BandOptions, FunctionsOptions, FunctionsTaskDeclaration
    from .graphs import GraphsDeclaration, GraphsOptions, NeighbourhoodOptions
    from .handwriting import HandwritingOptions, HandwritingTaskDeclaration, WriteOptions
    from .image import ImageOptions, PictureOptions
    from .image_text import ImageTextOptions
    from .images import ImagesDeclaration, ImagesOptions
    from .label import LabelDeclaration, LabelOptions
    from .language import LanguageDeclaration, LanguageOptions, PerplexityOptions
    from .masked import FillOptions, MaskedDeclaration, MaskedOptions
    from .pixels import CompletionOptions, PixelLookOptions, PixelsOptions, PixelsTaskDeclaration
    from .question_answering import AnswersOptions, PassageOptions, QuestionAnsweringDeclaration, QuestionAnsweringOptions, ThresholdOptions
    from .seq2seq import Seq2SeqOptions
    from .sets import SetsOptions, SetsTaskDeclaration
    from .shared import (
        BeamOptions,
        ClassesOptions,
        DataOptions,
        Declaration,
        Files,
        GreedyOptions,
        MetricName,
        NoOptions,
        OnError,
        Pairs,
        Targets,
        TokenizerKind,
        TokenizerOptions,
        VectorOptions,
        absolute_files,
        show_files,
    )
    from .summarization import GreedySummaryOptions, SummarizationDeclaration, SummarizationOptions, SummarizeOptions, SummaryOptions
    from .text import TextOptions
    from .translation import TranslateOptions, TranslationDeclaration, TranslationOptions
    from .tuning import TuningOptions
    from .video import VideoDeclaration, VideoOptions
else:
    __getattr__, __dir__ = lazy(__name__)
