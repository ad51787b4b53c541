"""Exact attention over any pattern, tile by tile: what `attend` and `attend_pointwise` are made of.

    pattern                       plan                            stacks                        calls
    who may attend to whom        the same as work                tiles of one shape            one kernel call each

              keys                  tile 0  rows 0–31
           ■·······                 ┌────┐                         ┌────┬────┬────┐
           ■■······                 │0   │──┐ tile 1               │0   │1   │2   │  (B · tiles, H, rows, K)
    rows   ·■■·····       ─►        └────┘  │ rows 32–63    ─►     └────┴────┴────┘  @ (B · tiles, H, columns, K)ᵀ   ─►  out, lse
           ··■■····                    └────┘                      ┌──┐                                                  of each row
           ···■■···       ·  never visited: in no tile             │3 │  another shape: a call of its own
           ■■■■■■■■       ■  inside a tile                         └──┘

- A **pattern** (`regard.patterns`) is a rule on pairs of positions. It can say of a whole rectangle of pairs whether none, some or
  all are allowed, without visiting them.
- A **plan** (`plan.py`) is that rule turned into work for given numbers of queries and keys: a list of **tiles**. A tile is a run of
  query rows, the keys that any of them may attend to (a slice, or a list of positions), and a mask where not all of its pairs are
  allowed. Batch rows and heads with the same blocks share their tiles: that is a **group**. Patterns without tensors keep their plans.
- A **stack** (`stack.py`) is several tiles of a group that have the same shape: they go through the kernel in one **call**, as a
  longer batch. Tiles that follow each other at even distances, as those of a window do, are overlapping views, without a copy.
- A call is one tile kernel over a stack: softmax in `tiled_softmax.py` (ordinary PyTorch, or the fused CPU kernel inside PyTorch) or
  the pointwise one in `tiled_pointwise.py`. Softmax results of the same rows over other keys are merged by log-sum-exp (`merging.py`);
  pointwise ones are added.

A pattern that is a sparse list of pairs, such as the edges of a graph, goes neither by tiles nor as a whole mask but **by edges** (`by_edges.py`): a dot
product per edge, a softmax over the edges of each query, a weighted sum of their values; time and memory are linear in the edges.

`tiled_softmax.py` and `tiled_pointwise.py` hold the loops over groups and stacks, forward and backward; `stack.py` what they share;
`bias.py` what may be added to scores, made tile by tile; `gpu.py` the same call on a GPU; `plan.is_small` chooses between a
whole mask and tiles, and `force` in `paths.py` overrides it.
"""

import torch

from . import tiled_softmax


def forms() -> dict[str, str]:
    """Name the form of each primitive that runs on this machine."""
    return {
        "tile": "fused" if tiled_softmax.HAS_FUSED else "plain",  # what the fused form cannot do goes to the plain one
        "edges": "PyTorch's embedding_bag on a CPU, scatter elsewhere",
        "dense": "PyTorch's scaled_dot_product_attention",
        "gpu": "PyTorch's FlexAttention" if torch.cuda.is_available() else "none here",
    }
