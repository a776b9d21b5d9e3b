"""The reference platform's own draft trees against the release's Triton kernels, where it has them."""

import importlib

import pytest
import torch

trees = pytest.importorskip("sglang_reference_platform.trees")

BATCH, STEPS, VOCABULARY = 3, 3, 20


@pytest.fixture(scope="module")
def upstream():
    for name in ("sglang.kernels.ops.speculative.spec_tree", "sglang.srt.speculative.triton_ops.spec_tree"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    pytest.skip("this release has no Triton kernels for draft trees")


def random_tree(topk, num_draft, generator):
    """Parents and chosen candidates of BATCH requests, as a draft of STEPS steps makes them.

    A step expands `topk` nodes by `topk` candidates each (the first step: the root), and keeps the best `topk` of those.
    """
    if topk == 1:
        return torch.arange(-1, STEPS - 1).repeat(BATCH, 1), torch.arange(num_draft - 1).repeat(BATCH, 1)
    kept = torch.rand(BATCH, topk, generator=generator)
    scores, parents = [kept], [torch.arange(-1, topk).repeat(BATCH, 1)]
    for step in range(1, STEPS):
        expanded = (kept.unsqueeze(2) * torch.rand(BATCH, topk, topk, generator=generator)).flatten(1)
        kept, best = expanded.topk(topk)
        scores.append(expanded)
        parents.append(best + topk + topk**2 * (step - 1))
    chosen = torch.cat(scores, 1).topk(num_draft - 1).indices.sort().values
    return torch.cat(parents[:-1], 1), chosen


@pytest.mark.parametrize("mask_mode", [0, 1])
@pytest.mark.parametrize(("topk", "num_draft"), [(1, 4), (2, 3), (2, 6), (3, 9), (4, 9), (4, 20)])
@pytest.mark.parametrize("seed", range(5))
def test_trees_and_their_verification(upstream, topk, num_draft, mask_mode, seed):
    generator = torch.Generator().manual_seed(seed)
    parents, chosen = random_tree(topk, num_draft, generator)
    lengths = torch.randint(1, 12, (BATCH,), generator=generator)
    made = []
    for build in (upstream.sgl_build_tree_kernel_triton, trees.build_tree):
        rows = (
            int(lengths.sum()) * num_draft + BATCH * num_draft**2 if mask_mode == 0 else BATCH * num_draft**2
        )
        mask = torch.ones(rows, dtype=torch.bool)
        positions = torch.zeros(BATCH * num_draft, dtype=torch.long)
        links = torch.full((3, BATCH, num_draft), -1)
        build(parents, chosen, lengths, mask, positions, *links, topk, STEPS, num_draft, mask_mode)
        made.append((mask, positions, links))
    for theirs, ours in zip(*made, strict=True):
        assert torch.equal(theirs, ours)

    candidates = torch.randint(0, VOCABULARY, (BATCH, num_draft), generator=generator)
    target = torch.randint(0, VOCABULARY, (BATCH, num_draft), generator=generator)
    for row in range(BATCH):  # make the target agree with a path, for some way
        node = 0
        while (child := int(links[1][row, node])) >= 0 and torch.rand((), generator=generator) < 0.8:
            sibling = int(links[2][row, child])
            child = sibling if sibling >= 0 and torch.rand((), generator=generator) < 0.5 else child
            target[row, node] = candidates[row, child]
            node = child
    outcomes = []
    for verify in (upstream.verify_tree_greedy_triton, trees.verify_greedy):
        predicts = torch.zeros(BATCH * num_draft, dtype=torch.int32)
        accepted = torch.full((BATCH, STEPS + 1), -1, dtype=torch.int32)
        counts = torch.zeros(BATCH, dtype=torch.int32)
        verify(predicts, accepted, counts, candidates, *links, target)
        outcomes.append((predicts, accepted, counts))
    for theirs, ours in zip(*outcomes, strict=True):
        assert torch.equal(theirs, ours)
