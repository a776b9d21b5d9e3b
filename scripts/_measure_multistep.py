"""Measures the preparation of draft decode metadata, inside an environment that has SGLang; prints JSON. See bench_multistep."""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
warnings.simplefilter("ignore")

# Before others of SGLang: older releases have a cycle that ends well from here only.
import sglang.srt.layers.attention.triton_backend as triton_backend  # noqa: E402
import torch  # noqa: E402
from contract.costs import Costs  # noqa: E402
from contract.stand_ins import SizedDraft, batch_of, publish, runner_of  # noqa: E402
from oracle import DEVICE  # noqa: E402
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend  # noqa: E402

from sglang_draft_ext.multistep import MultiStepDraftBackend  # noqa: E402

STOCK = "stock's own for triton"


class Nothing(AttentionBackend):
    """An inner backend that prepares nothing: what remains is the container's own part."""

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        self.req_to_token_pool = runner.req_to_token_pool

    def init_forward_metadata(self, forward_batch: Any) -> None:
        pass


def containers(draft: SizedDraft) -> dict[str, tuple[Any, Any]]:
    """Name -> container and batch."""

    def ours(inner: Any) -> tuple[Any, Any]:
        runner = runner_of(draft)
        made = MultiStepDraftBackend(runner, draft.topk, draft.num_steps, attention=inner)
        return made, batch_of(draft, runner)

    runner = runner_of(draft)
    stock = triton_backend.TritonMultiStepDraftBackend(runner, draft.topk, draft.num_steps)
    stock.page_size = draft.page_size
    return {
        "ours over triton": ours(triton_backend.TritonAttnBackend),
        "ours alone": ours(Nothing),
        STOCK: (stock, batch_of(draft, runner)),
    }


def measure(point: dict[str, int], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds and bytes of one preparation; the containers take turns."""
    candidates = containers(SizedDraft(**point))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    results: dict[str, dict[str, float]] = {}
    for name, (container, batch) in candidates.items():  # the first time compiles, too
        with Costs() as costs:
            container.init_forward_metadata(batch)
        results[name] = {"bytes": sum(costs.allocated), "operations": costs.operations}
    for _ in range(rounds):
        for name, (container, batch) in candidates.items():
            began = time.perf_counter()
            container.init_forward_metadata(batch)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    for name, taken in seconds.items():
        results[name]["ms"] = 1e3 * statistics.median(taken)
        results[name]["ms_minimum"] = 1e3 * min(taken)
    return results


def main() -> None:
    asked = json.loads(sys.argv[1])
    publish(setattr)
    torch.manual_seed(0)
    for number, point in enumerate(asked["points"]):
        results = measure(point, asked["rounds"])
        print(json.dumps({"number": number, "point": point, "results": results}), flush=True)


if __name__ == "__main__":
    main()
