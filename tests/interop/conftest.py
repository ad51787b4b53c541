"""What these tests share. Tensors are tiny."""

import json

import pytest
import torch


@pytest.fixture(autouse=True)
def tiny_tensors(one_thread):
    """On a busy machine two threads would mostly wait for each other."""


def randomize(model):
    """Larger parameters than at initialisation, so that no difference hides."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue  # Marian's sinusoids, which are in no file
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2, generator=generator)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
