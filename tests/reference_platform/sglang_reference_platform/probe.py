"""Says which backend object served what: for tests of what is really in a server's forward path.

With the environment variable `REFERENCE_PLATFORM_PROBE=FOLDER`, every process of a server that runs a model keeps a file
`FOLDER/PID.json` up to date: for each model runner its backends, as they are in the live worker, with their types, stamps and
the number of attention calls that each served, by forward mode; and the backends that served without belonging to a runner
(a worker's own).
"""

import functools
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "REFERENCE_PLATFORM_PROBE"

_calls: dict[int, Counter] = defaultdict(Counter)
_kept: dict[int, Any] = {}  # an id stands for one object only as long as that lives
_runners: list[Any] = []
_changed = threading.Event()
_reported: set[int] = set()
_busy: set[int] = set()  # one thread runs the model


def wanted() -> bool:
    return bool(os.environ.get(VARIABLE))


def count_calls(module: ModuleType) -> None:
    """Count the calls of every backend; adapts `base_attn_backend`, before any other backend is defined."""

    def define(kind, **kwargs):
        super(module.AttentionBackend, kind).__init_subclass__(**kwargs)
        _count_in(kind)

    module.AttentionBackend.__init_subclass__ = classmethod(define)
    _count_in(module.AttentionBackend)
    threading.Thread(target=_write_when_changed, daemon=True).start()


def _count_in(kind: type) -> None:
    """Some hybrids call a child's `forward`, some its `forward_extend`: what is called first is counted."""
    for name in ("forward", "forward_extend", "forward_decode"):
        if name in vars(kind):
            setattr(kind, name, _counted(vars(kind)[name]))


def _counted(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def forward(self, q, k, v, layer, forward_batch, *args, **kwargs):
        if id(self) in _busy:
            return stock(self, q, k, v, layer, forward_batch, *args, **kwargs)
        _kept.setdefault(id(self), self)
        batch = getattr(forward_batch, "__wrapped__", forward_batch)  # the worker's own, behind a view of it
        _calls[id(self)][batch.forward_mode.name] += 1
        _changed.set()
        _busy.add(id(self))
        try:
            return stock(self, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            _busy.discard(id(self))

    return forward


def keep_runners(module: ModuleType) -> None:
    """Keep every model runner in sight; adapts `model_runner`."""
    stock = module.ModelRunner.__init__

    @functools.wraps(stock)
    def init(self, *args, **kwargs):
        _runners.append(self)
        stock(self, *args, **kwargs)

    module.ModelRunner.__init__ = init


ADAPTATIONS = {
    "sglang.srt.layers.attention.base_attn_backend": count_calls,
    "sglang.srt.model_executor.model_runner": keep_runners,
}


def _write_when_changed() -> None:
    file = Path(os.environ[VARIABLE]) / f"{os.getpid()}.json"
    while True:
        _changed.wait()
        _changed.clear()
        part = file.with_suffix(".part")
        part.write_text(json.dumps(_all(), indent=1))
        part.replace(file)
        time.sleep(0.3)


def _all() -> dict:
    _reported.clear()
    runners = [_runner(runner) for runner in _runners]
    others = [_backend(backend) for key, backend in list(_kept.items()) if key not in _reported]
    return {"runners": runners, "others": others}


def _runner(runner: Any) -> dict:
    container = getattr(runner, "draft_attn_backend", None)
    return {
        "draft": bool(runner.is_draft_worker),
        "stamps": _stamps(runner),
        "own": _backend(runner.attn_backend),
        "decode": None
        if container is None
        else {
            "type": _type(container),
            "stamps": _stamps(container),
            "steps": [_backend(step) for step in container.attn_backends],
        },
    }


def _backend(backend: Any) -> dict:
    inner = getattr(backend, "__wrapped__", None)
    _reported.add(id(backend if inner is None else inner))
    children = {name: getattr(backend, name, None) for name in ("prefill_backend", "decode_backend")}
    return {
        "type": _type(backend),
        "inner": _type(inner) if inner is not None else None,
        "stamps": _stamps(backend),
        "calls": dict(_calls[id(backend if inner is None else inner)]),
        "children": {name: _backend(child) for name, child in children.items() if child is not None},
    }


def _stamps(thing: Any) -> list[Any]:
    return [getattr(thing, f"{role}_attention_backend_str", None) for role in ("prefill", "decode")]


def _type(thing: Any) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
