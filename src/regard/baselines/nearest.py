"""The label of the nearest training example, and the most frequent label."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

ROWS = 1000  # test examples that are compared at a time


def nearest_neighbour(
    train_EX: npt.NDArray[np.uint8], label_E: npt.NDArray[np.int64], test_EX: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Label of the training example with the smallest Euclidean distance, for each test example.

    Args:
        train_EX: features of the training examples, such as pixels.
        label_E: their labels.
        test_EX: features of the test examples.
    """
    train, test = (torch.from_numpy(np.ascontiguousarray(x)).float().flatten(1) / 255 for x in (train_EX, test_EX))
    square_E = train.square().sum(1)
    nearest = [(square_E - 2 * test[at : at + ROWS] @ train.T).argmin(1) for at in range(0, len(test), ROWS)]
    return label_E[torch.cat(nearest).numpy()]


def most_frequent(label_E: npt.NDArray[np.int64]) -> int:
    """The most frequent label.

    Args:
        label_E: labels of the training examples.
    """
    return int(np.bincount(label_E).argmax())
