"""Augmentation: what changes, what does not, and how targets follow."""

import torch
import torch.nn.functional as F

from regard.data.augment import Augmentation, cutmix, erase, mixup, rand_augment, shift_and_flip


def bytes_of(*shape, seed=0):
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_nothing_by_default():
    x, y = bytes_of(3, 1, 4, 5), torch.eye(3)
    assert Augmentation().change(x).equal(x)
    mixed = Augmentation().mix(x.float(), y)
    assert mixed[0].equal(x.float()) and mixed[1].equal(y)


def test_every_shift_is_one_of_those_allowed():
    torch.manual_seed(0)
    x = bytes_of(1, 2, 6, 5).expand(200, 2, 6, 5)
    padded = F.pad(x[0], (2, 2, 2, 2))
    crops = {padded[:, i : i + 6, j : j + 5].numpy().tobytes() for i in range(5) for j in range(5)}
    mirrored = {padded[:, i : i + 6, j : j + 5].flip(2).numpy().tobytes() for i in range(5) for j in range(5)}
    found = [one.numpy().tobytes() for one in shift_and_flip(x, 2, False)]
    assert set(found) <= crops and len(set(found)) == 25
    found = [one.numpy().tobytes() for one in shift_and_flip(x, 2, True)]
    assert set(found) <= crops | mirrored and 60 < sum(one in mirrored for one in found) < 140


def test_mixtures_have_targets_of_their_shares():
    torch.manual_seed(0)
    y = F.one_hot(torch.arange(8), 8).float()
    x = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 10, 12)
    for _ in range(20):
        for mix in (mixup, cutmix):
            mixed, target = mix(x, y, 0.8)
            torch.testing.assert_close(target.sum(1), torch.ones(8))
            expected = (target * torch.arange(8.0)).sum(1)  # the mean pixel is the mixture of the two values
            torch.testing.assert_close(mixed.mean((1, 2, 3)), expected)


def test_operations_keep_bytes_and_strength_zero_is_nothing():
    torch.manual_seed(0)
    x = bytes_of(32, 3, 9, 11)
    assert rand_augment(x, 0.0).float().sub(x.float()).abs().mean() < 40  # autocontrast has no strength
    changed = rand_augment(x, 1.0)
    assert changed.dtype == torch.uint8 and changed.shape == x.shape and (changed != x).flatten(1).any(1).sum() > 20
    assert erase(x, 0.0).equal(x)
    share = (erase(x, 1.0) != x).float().mean()
    assert 0.05 < share < 0.4


def test_the_same_seed_gives_the_same_batch():
    every, x = Augmentation(2, True, 0.7, 0.5, 0.4, 0.4), bytes_of(6, 1, 8, 8)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(every.mix(every.change(x).float(), torch.eye(6)))
    assert all(a.equal(b) for a, b in zip(*results, strict=True))
