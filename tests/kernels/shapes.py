"""Patterns of every kind for tests on tiles: dense, sparse, per row, per head, drawn, from a table."""

import torch

import regard.patterns as P


def patterns(queries, keys):
    """For 3 batch rows and 4 heads."""
    return [
        P.full,
        P.causal,
        P.causal & P.window(20),
        P.causal & (P.window(33) | P.tokens(0)),
        P.causal & P.lengths([keys, 100, 0]),
        P.per_head(P.causal, P.window(9), P.stride(5), P.full),
        P.per_head(P.causal, P.window(9), P.stride(5), P.full) & P.lengths([keys, 200, 20]),
        P.window(5) | P.random_blocks(2, 16, seed=1, per_head=4),
        P.keep(torch.rand(3, 4, queries, keys, generator=torch.Generator().manual_seed(0)) < 0.05),
    ]
