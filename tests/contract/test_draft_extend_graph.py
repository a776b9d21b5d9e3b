"""Whether draft extend is captured in a CUDA graph, asked of the release's own worker, with graph runners that only say so."""

import ast
import importlib
import sys
from importlib.util import find_spec
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from contract.release import SURFACE, Factory, era, server_args

from sglang_draft_ext import hooks, hybrid, multistep, points
from sglang_draft_ext.backend import DraftBackend
from sglang_draft_ext.registry import Entry, registry

pytestmark = pytest.mark.contract

METHODS = {
    "a list of classes": "_capture_cuda_graphs",
    "a list in init_cuda_graphs": "init_cuda_graphs",
    "a list of decode classes": "init_cuda_graphs",
}


class Foreign:
    """A draft extend backend of no class that SGLang knows."""

    def __init__(self, captures):
        self.captures_draft_extend = captures


@pytest.fixture
def captured(monkeypatch):
    """captured(extend, decode=…): whether the worker captures draft extend on these, on a CUDA device."""
    found = era("draft extend graph list")
    if found == "no list":
        pytest.skip("draft extend graph list: this release has no list")
    module = importlib.import_module(points.EAGLE_WORKER_V2)
    method = f"EagleDraftWorker.{METHODS[found]}"
    # What only a CUDA build can import is imported inside the method.
    for node in ast.walk(SURFACE.get(points.EAGLE_WORKER_V2, method).node):
        if isinstance(node, ast.ImportFrom):
            stand_in = ModuleType(node.module)
            for alias in node.names:
                setattr(stand_in, alias.name, type(alias.name, (), {}))
            monkeypatch.setitem(sys.modules, node.module, stand_in)
    for name, value in {
        "_is_cuda": True,
        "_is_cpu": False,
        "_is_npu": False,
        "_is_xpu": False,
        "check_cuda_graph_backend": lambda *_: False,
        "get_model": MagicMock(),
        "get_exec": MagicMock(),
        "log_info_on_rank0": lambda *_: None,
        "get_batch_sizes_to_capture": lambda _runner: ([], []),
        "get_available_gpu_memory": lambda *_, **__: 0.0,
        "_select_spec_graph_runner_cls": lambda *, builtin_runner_cls, **_: builtin_runner_cls(),
        "EAGLEDraftCudaGraphRunner": lambda _worker: "decode graph",
        "EAGLEDraftExtendCudaGraphRunner": lambda _worker: "extend graph",
    }.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)

    def capture(extend, decode=None):
        worker = MagicMock(
            draft_extend_attn_backend=extend,
            draft_attn_backend=decode or object(),
            speculative_num_steps=3,
            _specialized_graph_memory_usage={},
            _specialized_graph_time_usage={},
        )
        worker.server_args.disable_cuda_graph = False
        worker.target_worker.device = "cuda"
        before = dict(vars(module))
        vars(module.EagleDraftWorker)[METHODS[found]].__get__(worker)()
        assert {name: vars(module)[name] for name in before} == before, "nothing stays changed"
        return worker.cuda_graph_runner_for_draft_extend == "extend graph"

    return capture


@pytest.mark.parametrize("captures", [True, False])
def test_a_backend_that_says_so_is_captured_and_no_other(captured, captures):
    assert captured(Foreign(captures)) == captures


def test_a_hybrid_is_captured_where_its_extend_says_so(captured, monkeypatch):
    kind = hybrid._kind()
    for captures in (True, False):
        both = object.__new__(kind)
        both.decode_backend, both.prefill_backend = Foreign(captures), Foreign(True)
        assert captured(both) == captures


def test_stocks_own_list_still_decides_for_stock(captured):
    module = importlib.import_module(points.EAGLE_WORKER_V2)
    if era("draft extend graph list") == "a list of decode classes":
        stock = object.__new__(module.TritonMultiStepDraftBackend)
        assert captured(object(), decode=stock)
    else:
        assert captured(object.__new__(module.TritonAttnBackend))
    assert not captured(object())


@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("decode", ["contract.provider:Steps", None])
def test_what_is_declared_reaches_the_backend(monkeypatch, captures, decode):
    backend = DraftBackend(
        name="contract", attention="contract.provider:attention", decode=decode, extend_graph=captures
    )
    entry = Entry(backend=backend, where="here")
    monkeypatch.setattr(registry, "_entries", {**registry._entries, "contract": entry})
    built = Factory(monkeypatch, server_args(draft="contract", target=("contract", "contract"))).extend()
    assert getattr(built, "captures_draft_extend", False) == captures
    assert multistep.captures(built) == captures, "nothing else in this package skips its graph"


def test_the_hook_is_applied_when_the_worker_is_imported():
    if find_spec(points.EAGLE_WORKER_V2) is None or era("draft extend graph list") == "no list":
        pytest.skip("draft extend graph list: this release has no list")
    importlib.import_module(points.EAGLE_WORKER_V2)
    assert any(hook.module == points.EAGLE_WORKER_V2 and hook.wrapper for hook in hooks.activation.applied)
