"""What models of texts share."""

import torch

from regard.models.text import split_segments


def test_split_segments_against_a_loop() -> None:
    torch.manual_seed(0)
    ids_BL, n_B = torch.randint(5, 50, (7, 12)), torch.tensor([12, 9, 1, 5, 12, 3, 7])
    segment_BL = torch.randint(0, 3, (7, 12)).sort(1).values
    for segment, (ids_RM, n_R) in enumerate(split_segments(ids_BL, n_B, segment_BL, 3)):
        for row in range(7):
            wanted = [int(ids_BL[row, j]) for j in range(int(n_B[row])) if segment_BL[row, j] == segment]
            assert n_R[row] == len(wanted)
            assert ids_RM[row, : len(wanted)].tolist() == wanted
