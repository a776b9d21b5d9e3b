"""Multi-step drafts over the release's own backends, against a dense oracle and stock's own container."""

from __future__ import annotations

import importlib
import os
import warnings
from types import SimpleNamespace as NS
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_draft_ext.branches import fill_branches
from sglang_draft_ext.errors import BackendError
from sglang_draft_ext.multistep import DRAFT_WINDOW, SPEC_UTILS, MultiStepDraftBackend

pytestmark = [
    pytest.mark.contract,
    # What SGLang and torch warn of on a machine without a GPU is not ours.
    pytest.mark.filterwarnings(r"ignore:::(sglang|torch|triton)\."),
    # As an error, this one leaves a half-made SWIG module (sentencepiece) that crashes the interpreter's exit.
    pytest.mark.filterwarnings("ignore:builtin type swig:DeprecationWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

    base_attn_backend = importlib.import_module("sglang.srt.layers.attention.base_attn_backend")
    importlib.import_module("sglang.srt.layers.attention.triton_backend")

from contract.costs import Costs  # noqa: E402
from contract.release import SURFACE  # noqa: E402
from contract.stand_ins import STOCK, SizedDraft, batch_of, publish, runner_of, stock  # noqa: E402
from oracle import DEVICE, RandomDraft  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402

# Compiled kernels sum in another order, and a slot that is not the draft's holds 10,000.
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4} if DEVICE == "cpu" else {"atol": 2e-3, "rtol": 2e-3}
# Drafts that a property test tries, as a multiple of what is enough for every day.
THOROUGH = int(os.environ.get("DRAFT_EXT_THOROUGH", "1"))
OUT_GRAPH = hasattr(base_attn_backend.AttentionBackend, "init_forward_metadata_out_graph")


@pytest.fixture(autouse=True)
def configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch.setattr)


@pytest.fixture
def seed() -> int:
    """Of a random draft: another one each time, or the one of a run to be repeated."""
    value = int(os.environ.get("DRAFT_EXT_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"DRAFT_EXT_SEED={value}")
    return value


def container_of(draft: RandomDraft, runner: Any, attention: Any) -> MultiStepDraftBackend:
    return MultiStepDraftBackend(runner, draft.topk, draft.num_steps, attention=attention)


def check(draft: RandomDraft, outputs: list[Any]) -> None:
    assert len(outputs) == draft.num_steps - 1
    for i, (step, output) in enumerate(zip(draft.steps, outputs, strict=True)):
        torch.testing.assert_close(
            output.double().cpu(), step.expected, **TOLERANCE, msg=lambda m, i=i: f"step {i}: {m}"
        )


def drafted(draft: RandomDraft, attention: Any, **more: Any) -> list[Any]:
    runner = runner_of(draft, **more)
    container = container_of(draft, runner, attention)
    batch = batch_of(draft, runner)
    container.init_forward_metadata(batch)
    return draft.run(container, batch)


class Recorder(base_attn_backend.AttentionBackend):
    """An inner backend that computes nothing and keeps the views it is shown."""

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any) -> None:
        self.req_to_token_pool, self.token_to_kv_pool = runner.req_to_token_pool, runner.token_to_kv_pool
        self.table = runner.req_to_token_pool.req_to_token
        self.seen: list[Any] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.seen.append(forward_batch)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.seen.append(forward_batch)
        self.given = kwargs
        return torch.ones_like(q)


# -- against the oracle


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize(("topk", "num_steps"), [(1, 3), (1, 8), (2, 3), (4, 4), (8, 2)])
def test_every_step_matches_the_oracle(name: str, topk: int, num_steps: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=3, topk=topk, num_steps=num_steps)
    check(draft, drafted(draft, stock(name)))


trees = {
    "seed": st.integers(0, 2**32 - 1),
    "batch": st.integers(1, 5),
    "topk": st.integers(1, 8),
    "num_steps": st.integers(2, 8),
    "kv_heads": st.sampled_from([1, 2, 4]),
    "longest": st.integers(1, 60),
    "page_size": st.sampled_from([1, 1, 4, 16]),
}
# Interpreted Triton takes seconds for what is milliseconds elsewhere.
small_trees = st.sampled_from([(1, 1), (3, 1), (1, 8), (2, 2), (2, 3)]).flatmap(
    lambda shape: st.fixed_dictionaries(
        {**trees, "batch": st.just(shape[0]), "topk": st.just(shape[1]), "num_steps": st.integers(2, 4)}
    )
)
bounded = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(bounded, max_examples=40 * THOROUGH)
@given(**trees)
def test_any_tree_on_torch_native(**tree: int) -> None:
    draft = RandomDraft(**tree)
    check(draft, drafted(draft, stock("torch_native")))


@settings(bounded, max_examples=4 * THOROUGH)
@given(small_trees)
def test_any_tree_on_triton(tree: dict[str, int]) -> None:
    draft = RandomDraft(**tree)
    check(draft, drafted(draft, stock("triton")))


@settings(bounded, max_examples=4 * THOROUGH)
@given(small_trees)
def test_any_tree_on_flex_attention(tree: dict[str, int]) -> None:
    draft = RandomDraft(**tree)
    check(draft, drafted(draft, stock("flex_attention")))


@settings(bounded, max_examples=4 * THOROUGH)
@given(small_trees)
def test_any_tree_as_stocks_own_container_drafts_it(tree: dict[str, int]) -> None:
    ours, theirs = RandomDraft(**tree), RandomDraft(**tree)
    runner = runner_of(theirs)
    module = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    container = module.TritonMultiStepDraftBackend(runner, theirs.topk, theirs.num_steps)
    container.page_size = theirs.page_size
    batch = batch_of(theirs, runner)
    container.init_forward_metadata(batch)
    expected = theirs.run(container, batch)
    for output, want in zip(drafted(ours, stock("triton")), expected, strict=True):
        torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize(("name", "extra"), [("torch_native", 1), ("triton", 0)])
def test_sliding_window_layers(name: str, extra: int, topk: int, seed: int) -> None:
    # torch_native reads the token itself besides the window, Triton within it.
    if name == "torch_native" and not hasattr(stock(name), "_make_sliding_window_mask"):
        pytest.skip("this release's torch_native knows no sliding window")
    draft = RandomDraft(seed, batch=3, topk=topk, num_steps=4, window=6 + extra)
    draft.layer.sliding_window_size = 6
    check(draft, drafted(draft, stock(name), sliding_window_size=6))


@pytest.mark.parametrize("topk", [1, 3])
def test_attention_sinks(topk: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=2, topk=topk, num_steps=3, sinks=True)
    check(draft, drafted(draft, stock("triton")))


@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("name", ["torch_native", "triton"])
def test_latent_attention(name: str, topk: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=2, topk=topk, num_steps=3, longest=12, mla=True)
    check(draft, drafted(draft, stock(name)))


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("name", ["torch_native", "triton"])
def test_a_draft_window(name: str, topk: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if SURFACE.get(SPEC_UTILS, DRAFT_WINDOW) is None:
        pytest.skip("draft window: this release's draft decode has none")
    monkeypatch.setattr(importlib.import_module(SPEC_UTILS), DRAFT_WINDOW, lambda runner: (6, 2))
    draft = RandomDraft(seed, batch=4, topk=topk, num_steps=4, longest=20, draft_window=(6, 2))
    check(draft, drafted(draft, stock(name)))
    refused("a draft window would cut.*page size 16", token_to_kv_pool_allocator=NS(page_size=16))


@pytest.mark.parametrize("topk", [1, 2])
def test_lengths_that_are_on_the_device_alone(topk: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=3, topk=topk, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("torch_native"))
    batch = batch_of(draft, runner)
    batch.seq_lens_cpu = None
    container.init_forward_metadata(batch)
    check(draft, draft.run(container, batch))


def test_adaptive_steps(seed: int) -> None:
    """The worker keeps a container for each number of steps, all on one runner, and goes back and forth."""
    drafts = [RandomDraft(seed, batch=2, topk=2, num_steps=steps) for steps in (2, 5, 3)]
    runner = runner_of(drafts[0])

    def hold(draft: RandomDraft) -> RandomDraft:
        runner.req_to_token_pool.req_to_token, runner.token_to_kv_pool = draft.req_to_token, draft.pool
        return draft

    containers = [container_of(hold(draft), runner, stock("torch_native")) for draft in drafts]
    for which in (0, 1, 2, 1, 0):
        draft, container = hold(drafts[which]), containers[which]
        batch = batch_of(draft, runner)
        container.init_forward_metadata(batch)
        check(draft, draft.run(container, batch))


def test_a_second_batch_of_other_size_uses_its_own_rows(seed: int) -> None:
    first = RandomDraft(seed, batch=4, topk=3, num_steps=4)
    runner = runner_of(first)
    container = container_of(first, runner, stock("torch_native"))
    for rows in ([0, 1, 2, 3], [2], [3, 0]):
        size = [row * first.topk + branch for row in rows for branch in range(first.topk)]
        part = RandomDraft(seed, batch=4, topk=3, num_steps=4)
        part.pool = first.pool
        part.seq_lens, part.rows = part.seq_lens[rows], part.rows[rows]
        part.out_cache_loc = part.out_cache_loc.view(4, -1)[rows].view(-1)
        for step in part.steps:
            step.q, step.k, step.v, step.expected = (x[size] for x in (step.q, step.k, step.v, step.expected))
        batch = batch_of(part, runner)
        container.init_forward_metadata(batch)
        check(part, part.run(container, batch))


def test_works_in_inference_mode(seed: int) -> None:
    draft = RandomDraft(seed, batch=2, topk=2, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("torch_native"))
    with torch.inference_mode():
        for _ in range(2):
            batch = batch_of(draft, runner)
            container.init_forward_metadata(batch)
            check(draft, draft.run(container, batch))


# -- CUDA graph interface, driven without a graph: a replay must read what was prepared for it


def prepare(container: Any, batch: Any, *, capture: bool) -> None:
    """What the release's graph runner calls before a capture or a replay."""
    if OUT_GRAPH:
        container.init_forward_metadata_out_graph(batch, in_capture=capture)
        container.init_forward_metadata_in_graph(batch)
    elif capture:
        container.init_forward_metadata_capture_cuda_graph(batch)
    else:
        container.init_forward_metadata_replay_cuda_graph(batch, batch.batch_size)


@pytest.mark.parametrize("topk", [1, 3])
def test_replay_reads_what_was_prepared_outside_the_graph(topk: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=3, topk=topk, num_steps=4)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("triton"))
    assert container.supports_cuda_graph
    container.init_cuda_graph_state(4, 4 * topk)
    assert container.attn_backends[0].get_cuda_graph_seq_len_fill_value() == 1

    captured = batch_of(draft, runner)
    captured.seq_lens.fill_(1)
    captured.seq_lens_cpu.fill_(1)
    captured.req_pool_indices.fill_(0)
    prepare(container, captured, capture=True)
    addresses = [step.step_rows.seq_lens.data_ptr() for step in container.attn_backends]
    metadata = [step.forward_metadata for step in container.attn_backends]

    batch = batch_of(draft, runner)
    prepare(container, batch, capture=False)
    assert addresses == [step.step_rows.seq_lens.data_ptr() for step in container.attn_backends]
    for step, captured_metadata in zip(container.attn_backends, metadata, strict=True):
        step.forward_metadata = captured_metadata
    check(draft, draft.run(container, batch))

    # A batch that no graph fits drafts eagerly in between, and the graph's tensors survive it.
    eager = batch_of(draft, runner)
    container.init_forward_metadata(eager)
    check(draft, draft.run(container, eager))


@pytest.mark.skipif(DEVICE != "cuda", reason="captures a CUDA graph")
@pytest.mark.parametrize("topk", [1, 3])
def test_a_captured_graph_drafts_another_batch(topk: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=3, topk=topk, num_steps=4)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("triton"))
    container.init_cuda_graph_state(4, 4 * topk)
    batch = batch_of(draft, runner)
    for captured in (batch.seq_lens, batch.seq_lens_cpu):
        captured.fill_(1)
    batch.req_pool_indices.fill_(0)

    def draft_once() -> list[Any]:
        if OUT_GRAPH:
            container.init_forward_metadata_in_graph(batch)
        return draft.run(container, batch)

    prepare(container, batch, capture=True)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        draft_once()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = draft_once()

    for output in outputs:
        output.fill_(1e4)
    batch.seq_lens.copy_(draft.seq_lens)
    batch.seq_lens_cpu.copy_(draft.seq_lens)
    batch.req_pool_indices.copy_(draft.rows)
    prepare(container, batch, capture=False)
    graph.replay()
    check(draft, outputs)


def test_a_backend_without_capture_says_so() -> None:
    draft = RandomDraft(0, batch=1, topk=1, num_steps=3)
    container = container_of(draft, runner_of(draft), stock("torch_native"))
    assert not container.supports_cuda_graph
    with pytest.raises(
        BackendError, match=r"cannot be captured.*TorchNativeAttnBackend.*--disable-cuda-graph"
    ):
        container.init_cuda_graph_state(4, 4)


# -- cost


def costs(batch: int, topk: int, steps: int = 4, context: int = 50, requests: int = 4096) -> Costs:
    draft = SizedDraft(batch=batch, topk=topk, steps=steps, context=context, requests=requests)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    forward_batch = batch_of(draft, runner)
    with Costs() as counted:
        container.init_forward_metadata(forward_batch)
    return counted


@pytest.mark.parametrize("topk", [1, 8])
def test_no_copy_of_the_request_table(topk: int) -> None:
    counted = costs(32, topk)
    rows = 32 * topk
    table = rows * (50 + 4) * 4 if topk > 1 else 0
    # Per branch: the drafted slots and their sources as int64, and each step's length, twice.
    small = rows * 4 * 8
    assert max(counted.allocated) <= max(table, small)
    assert sum(counted.allocated) <= 2 * table + 16 * small
    # Nor does its height matter.
    assert costs(32, topk, requests=32).allocated == counted.allocated


@pytest.mark.parametrize("topk", [1, 8])
def test_no_loop_over_requests_branches_or_tokens(topk: int) -> None:
    operations = costs(1, topk).operations
    assert costs(64, topk).operations == operations
    assert costs(64, topk, context=5000).operations == operations
    assert costs(2, 2).operations == costs(2, 8).operations


@pytest.mark.parametrize("topk", [1, 4])
def test_each_step_costs_the_same(topk: int) -> None:
    few, more, many = (costs(4, topk, steps=steps).operations for steps in (2, 5, 8))
    assert more - few == many - more


def test_one_table_serves_all_steps() -> None:
    draft = RandomDraft(0, batch=2, topk=2, num_steps=5)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    container.init_forward_metadata(batch_of(draft, runner))
    tables = {id(step.seen[0].req_to_token_pool.req_to_token) for step in container.attn_backends}
    assert len(tables) == 1
    (step, *_) = container.attn_backends
    assert step.table is step.seen[0].req_to_token_pool.req_to_token
    assert step.table.shape == (4, int(draft.seq_lens.max()) + 5)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_branch_rows(page_size: int, seed: int) -> None:
    draft = RandomDraft(seed, batch=5, topk=3, num_steps=6, page_size=page_size)
    width = int(draft.seq_lens.max()) + page_size - 1 + draft.num_steps
    table = torch.zeros(15, width, dtype=torch.int32, device=DEVICE)
    fill_branches(table, draft.req_to_token, draft.rows, draft.seq_lens, 3, 6, page_size)
    slots = draft.out_cache_loc.view(15, 6)
    for branch in range(15):
        row, length = draft.rows[branch // 3], int(draft.seq_lens[branch // 3])
        whole = length - length % page_size
        assert table[branch, :whole].tolist() == draft.req_to_token[row, :whole].tolist()
        assert table[branch, length : length + 6].tolist() == slots[branch].tolist()
        # Every page of the row is one page of the pool, in order.
        pages = table[branch, : (length + 6) // page_size * page_size].view(-1, page_size)
        assert (pages == pages[:, :1] // page_size * page_size + torch.arange(page_size, device=DEVICE)).all()


# -- the container as SGLang sees it


@pytest.mark.parametrize("topk", [1, 2])
def test_the_view_of_a_step(topk: int) -> None:
    draft = RandomDraft(7, batch=2, topk=topk, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    batch = batch_of(draft, runner)
    container.init_forward_metadata(batch)
    lengths = draft.seq_lens.repeat_interleave(topk)
    by_step = draft.out_cache_loc.view(2, topk, 3)
    for i, step in enumerate(container.attn_backends[:2]):
        (view,) = step.seen
        assert view.batch_size == 2 * topk
        assert view.forward_mode is ForwardMode.DECODE
        assert view.spec_info is None
        assert view.seq_lens.tolist() == view.seq_lens_cpu.tolist() == (lengths + i + 1).tolist()
        assert view.seq_lens.dtype == draft.seq_lens.dtype
        assert view.seq_lens_sum == int(view.seq_lens.sum())
        assert view.req_pool_indices.tolist() == (draft.rows.tolist() if topk == 1 else list(range(2 * topk)))
        assert view.out_cache_loc.tolist() == by_step[:, :, i].flatten().tolist()
        assert view.positions is batch.positions
        view.seq_lens = view.spec_info = "the view's own"
        # The model's layers find the pools here, and the batch's own rows are the runner's.
        assert step.req_to_token_pool is runner.req_to_token_pool
        assert step.token_to_kv_pool is runner.token_to_kv_pool
    assert batch.seq_lens.tolist() == draft.seq_lens.tolist()
    assert batch.batch_size == 2
    assert batch.spec_info is not None


@pytest.mark.parametrize("num_steps", [2, 3, 8])
def test_conventions(num_steps: int) -> None:
    draft = RandomDraft(0, batch=1, topk=1, num_steps=num_steps)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    module = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    theirs = module.TritonMultiStepDraftBackend(runner, 1, num_steps)
    assert len(container.attn_backends) == len(theirs.attn_backends)
    assert container.req_to_token_pool is runner.req_to_token_pool
    assert container.token_to_kv_pool is runner.token_to_kv_pool
    assert container.kv_index_translator is getattr(runner, "kv_index_translator", None)
    assert container.needs_cpu_seq_lens is False
    assert container_of(RandomDraft(0, batch=1, topk=2, num_steps=3), runner, Recorder).needs_cpu_seq_lens
    container.prefill_attention_backend_str = container.anything = "stamp"
    for step in container.attn_backends:
        assert isinstance(step, base_attn_backend.AttentionBackend)
        step.decode_attention_backend_str = "stamp"
        assert step.__wrapped__.decode_attention_backend_str == "stamp"
    container.on_after_cuda_graph_warmup()


@pytest.mark.parametrize("topk", [1, 2])
def test_idle_batches(topk: int) -> None:
    draft = RandomDraft(0, batch=1, topk=topk, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("torch_native"))
    batch = batch_of(draft, runner)
    batch.forward_mode, batch.batch_size, batch.seq_lens_sum = ForwardMode.IDLE, 0, 0
    for name in ("seq_lens", "seq_lens_cpu", "req_pool_indices", "out_cache_loc", "positions"):
        setattr(batch, name, getattr(batch, name)[:0])
    container.init_forward_metadata(batch)
    empty = torch.zeros(0, 64, device=DEVICE)
    for step in container.attn_backends:
        assert step.forward(empty, empty[:, :32], empty[:, :32], draft.layer, batch).shape == (0, 64)


def test_padding_after_preparation_has_no_rows(seed: int) -> None:
    draft = RandomDraft(seed, batch=2, topk=2, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, stock("torch_native"))
    batch = batch_of(draft, runner)
    container.init_forward_metadata(batch)
    batch.batch_size = 3
    by_step = draft.out_cache_loc.view(2, 2, 3).permute(2, 0, 1).reshape(3, -1)
    for i, step in enumerate(draft.steps):
        batch.out_cache_loc = torch.cat([by_step[i], by_step.new_zeros(2)])
        q, k, v = (torch.cat([x, x.new_ones(2, *x.shape[1:])]) for x in (step.q, step.k, step.v))
        output = container.attn_backends[i].forward(q, k, v, draft.layer, batch)
        assert output.shape == q.shape
        assert not output[4:].any()
        torch.testing.assert_close(output[:4].double().cpu(), step.expected, **TOLERANCE)


def test_padding_cuts_what_has_a_row_per_token_only() -> None:
    """Eight heads, eight padded tokens: what is cut is told by its name."""
    draft = RandomDraft(0, batch=2, topk=1, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    batch = batch_of(draft, runner)
    container.init_forward_metadata(batch)
    padded = torch.zeros(8, 16, device=DEVICE)
    given = {"sinks": padded[:, 0], "q_rope": padded, "k_rope": None, "save_kv_cache": False}
    (step, _, *_) = container.attn_backends
    step.forward(padded, padded, padded, draft.layer, batch, **given)
    seen = {name: getattr(value, "shape", value) for name, value in step.given.items()}
    assert seen == {"sinks": (8,), "q_rope": (2, 16), "k_rope": None, "save_kv_cache": False}


# -- refusals


def refused(message: str, attention: Any = Recorder, topk: int = 1, **changes: Any) -> None:
    draft = RandomDraft(0, batch=1, topk=topk, num_steps=3)
    runner = runner_of(draft)
    for name, value in changes.items():
        setattr(runner, name, value)
    with pytest.raises(BackendError, match=message):
        container_of(draft, runner, attention)


def test_refuses_what_cannot_be_drafted() -> None:
    refused("needs an AttentionBackend.*NoneType", attention=lambda runner: None)
    one = Recorder(runner_of(RandomDraft(0, batch=1, topk=1, num_steps=3)))
    refused("same object for two steps", attention=lambda runner: one)
    refused("encoder-decoder", model_config=NS(is_encoder_decoder=True))
    translating = NS(is_translating=True)
    refused("translated KV indices", topk=2, kv_index_translator=translating)
    refused("unified memory pool moves.*no kv_index_translator", kv_index_translator=translating)
    refused(
        "no row per branch.*req_to_token_pool", topk=2, attention=lambda runner: Recorder(runner.__wrapped__)
    )
    draft = RandomDraft(0, batch=1, topk=1, num_steps=3)
    for topk, num_steps in ((0, 3), (1, 0)):
        with pytest.raises(BackendError, match="at least one branch and one step"):
            MultiStepDraftBackend(runner_of(draft), topk, num_steps, attention=Recorder)


def test_a_step_before_its_batch_is_prepared() -> None:
    draft = RandomDraft(0, batch=1, topk=1, num_steps=3)
    runner = runner_of(draft)
    container = container_of(draft, runner, Recorder)
    with pytest.raises(BackendError, match="before its batch was prepared"):
        draft.run(container, batch_of(draft, runner))
