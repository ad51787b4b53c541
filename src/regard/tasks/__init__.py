"""Work on the user's own data, whole: read, train, evaluate, predict, look. One file a task; a run directory holds the result."""

from .run import Run as Run
from .translation import Score as Score
from .translation import TranslationConfig as TranslationConfig
from .translation import TranslationTask as TranslationTask
from .translation import alignment as alignment
from .translation import likelihood as likelihood
from .translation import score as score
from .translation import train_translator as train_translator
from .translation import translations as translations
