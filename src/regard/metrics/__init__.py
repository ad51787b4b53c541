"""Metrics as public functions, one file each; tasks report them, and they work on any predictions.

    from regard.metrics import score_translations, score_answers, classification_metrics

BLEU and chrF are sacrebleu's, ROUGE is rouge-score's; the rest is checked against scikit-learn, seqeval and SQuAD's script in the tests.
"""

from .bleu import TranslationScore as TranslationScore
from .bleu import corpus_bleu as corpus_bleu
from .bleu import score_translations as score_translations
from .classification import classification_metrics as classification_metrics
from .classification import confusion_matrix as confusion_matrix
from .classification import confusion_rows as confusion_rows
from .classification import confusions as confusions
from .classification import multi_label_metrics as multi_label_metrics
from .classification import value_metrics as value_metrics
from .retrieval import recall_at as recall_at
from .rouge import Rouge as Rouge
from .rouge import copied_words as copied_words
from .rouge import lead as lead
from .rouge import repeated_trigrams as repeated_trigrams
from .spans import find_spans as find_spans
from .spans import has_spans as has_spans
from .spans import span_metrics as span_metrics
from .squad import best_threshold as best_threshold
from .squad import exact_match as exact_match
from .squad import score_answer as score_answer
from .squad import score_answers as score_answers
from .squad import sliding_window as sliding_window
