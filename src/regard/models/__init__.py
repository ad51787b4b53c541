"""Published systems, built of the layers, one file each; this is the list, oldest first."""

from torch import nn

MODELS: tuple[type[nn.Module], ...] = ()
