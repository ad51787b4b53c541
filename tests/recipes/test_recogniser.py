"""The recogniser of handwriting: edit distances, CTC's merging, and lines that read the same in any batch."""

import pytest
import torch

from regard.recipes._engine.recogniser import Recogniser, edit_distance, reading_accuracy
from regard.tasks.handwriting import StrokeProcessor, Writing


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [("", "", 0), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("abc", "", 3), ("", "ab", 2), ("intention", "execution", 5)],
)
def test_edit_distance(a, b, edits):
    assert edit_distance(list(map(ord, a)), list(map(ord, b))) == edit_distance(list(map(ord, b)), list(map(ord, a))) == edits


def test_a_line_reads_the_same_in_any_batch():
    torch.manual_seed(0)
    model = Recogniser(5, 8).double()
    short_L3, long_L3 = torch.randn(7, 3, dtype=torch.float64), torch.randn(30, 3, dtype=torch.float64)
    both_BL3 = torch.nn.utils.rnn.pad_sequence([short_L3, long_L3], batch_first=True, padding_value=3.0)
    together = model(both_BL3, torch.tensor([7, 30]))[0, :7]
    torch.testing.assert_close(together, model(short_L3[None], torch.tensor([7]))[0])


class Told(Recogniser):
    """Says what the first column of the points says."""

    def __init__(self):
        super().__init__(3, 4)

    def forward(self, points_BL3, n_B):
        return torch.nn.functional.one_hot(points_BL3[..., 0].long(), 4).float()


def test_repeats_are_merged_and_blanks_left_out():
    said = torch.tensor([0.0, 1, 1, 0, 1, 2, 2, 0, 3])
    points_L3 = torch.stack([said, said, said], 1)
    assert Told().read([points_L3, points_L3[:3]]) == [[1, 1, 2, 3], [1]]
    processor = StrokeProcessor("abc", 1.0)
    assert reading_accuracy(Told(), processor, [Writing("aabc", points_L3.numpy())]) == 1
    assert reading_accuracy(Told(), processor, [Writing("abbc", points_L3.numpy())]) == 0.75
    assert reading_accuracy(Told(), processor, [Writing("c", points_L3[:6].numpy())]) == 0
