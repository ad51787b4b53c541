"""Work on the user's own data, whole: read, train, evaluate, predict, look. One file a task; a run directory holds the result."""

from .finetune import LabelConfig as LabelConfig
from .finetune import LabelTask as LabelTask
from .finetune import Tuned as Tuned
from .finetune import judge_labels as judge_labels
from .finetune import probabilities as probabilities
from .finetune import tagged as tagged
from .finetune import train_labels as train_labels
from .language import LanguageConfig as LanguageConfig
from .language import LanguageTask as LanguageTask
from .language import TextScore as TextScore
from .language import judge_language as judge_language
from .language import perplexity as perplexity
from .language import train_language as train_language
from .masked import MaskedConfig as MaskedConfig
from .masked import MaskedTask as MaskedTask
from .masked import judge_masked as judge_masked
from .masked import train_masked as train_masked
from .run import Run as Run
from .translation import Score as Score
from .translation import TranslationConfig as TranslationConfig
from .translation import TranslationTask as TranslationTask
from .translation import alignment as alignment
from .translation import likelihood as likelihood
from .translation import score as score
from .translation import train_translator as train_translator
from .translation import translations as translations
