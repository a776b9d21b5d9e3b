"""Whole drafts of one batch, prepared and attended to, on several containers in turn: _bench_step.py ROUNDS.

For scripts/bench, on a Python that sees SGLang. Prints milliseconds per draft, a list for each container, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# Before others of SGLang: older releases have a cycle that ends well from here only.
import sglang.srt.layers.attention.triton_backend as triton_backend  # noqa: E402
from contract.stand_ins import batch_of, publish, runner_of, stock  # noqa: E402
from oracle import RandomDraft  # noqa: E402

from sglang_draft_ext.multistep import MultiStepDraftBackend  # noqa: E402


def containers(draft: RandomDraft, runner: Any) -> dict[str, Any]:
    """Name -> container; the first is stock's own."""
    own = triton_backend.TritonMultiStepDraftBackend(runner, draft.topk, draft.num_steps)
    own.page_size = draft.page_size
    ours = {
        f"{name} in ours": MultiStepDraftBackend(runner, draft.topk, draft.num_steps, attention=stock(name))
        for name in ("triton", "torch_native")
    }
    return {"stock's own for triton": own, **ours}


def main(rounds: int) -> None:
    publish(setattr)
    draft = RandomDraft(0, batch=4, topk=2, num_steps=4)
    runner = runner_of(draft)
    each = containers(draft, runner)
    measured: dict[str, list[float]] = {name: [] for name in each}
    order = random.Random(0)
    for _ in range(rounds + 1):
        for name in order.sample(list(each), len(each)):
            batch = batch_of(draft, runner)
            began = time.perf_counter()
            each[name].init_forward_metadata(batch)
            draft.run(each[name], batch)
            measured[name].append((time.perf_counter() - began) * 1e3)
    # The first round compiled.
    print(json.dumps({name: taken[1:] for name, taken in measured.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
