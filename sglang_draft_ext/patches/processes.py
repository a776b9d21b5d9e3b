"""Why: a child that was asked for something else than its parent would serve another draft, or none, and nobody would know.
How: the classes whose construction begins a child's work (scheduler, data-parallel controller, detokenizer, tokenizer worker)
get a wrapped constructor that compares first. Not the functions that the children run: those are pickled by name. On several
nodes, a scheduler that differs goes on until the ranks are joined: those of the other nodes would wait for it.
Upstream: no equivalent; stock reports to the parent what these constructors raise.
Delete when: never needed by itself; it goes with the rest."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sglang_draft_ext import build, fallback, guard, hooks, launch
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.registry import registry

logger = logging.getLogger("sglang_draft_ext")


def begin(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wrapper of a constructor ``(server_args, port_args, …)``."""
    try:
        _compare(instance, args, kwargs)
    except DraftExtError:
        if _on_several_nodes(args, kwargs):
            # This ends the node: its ranks have to tell the others first.
            time.sleep(guard.TELLING.total_seconds())
        raise
    return wrapped(*args, **kwargs)


def begin_controller(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``DataParallelController.__init__``, which starts schedulers."""
    try:
        _compare(instance, args, kwargs)
    except DraftExtError:
        if not _on_several_nodes(args, kwargs):
            raise
        # What is different here is different in the schedulers, and they tell.
    return wrapped(*args, **kwargs)


def begin_scheduler(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``Scheduler.__init__``: a factory that cannot be imported is told before a model is loaded."""
    try:
        _compare(instance, args, kwargs)
        for name in registry.names:
            build.load_factories(name)
    except DraftExtError as error:
        # Where hooks do not match, what compares the ranks may be missing.
        if hooks.activation.deferred or not _on_several_nodes(args, kwargs):
            raise
        guard.tell_ranks(error)
    plan = launch.of_server_args(_server_args(args, kwargs))
    # The older releases had no log yet when their arguments were resolved, for less than a warning.
    if plan and not fallback.fell_back(plan):
        logger.info("draft attention backends: %s", plan)
    return wrapped(*args, **kwargs)


def begin_tokenizer(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``TokenizerWorker.__init__``: alone among them, its parent starts it again, for ever, when it fails."""
    try:
        return begin(wrapped, instance, args, kwargs)
    except DraftExtError as error:
        logger.error("%s", error)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid is not None:
            _end(parent.pid)
        raise


def _end(parent: int) -> None:
    """End the server as stock's other children do; uvicorn takes that signal for itself, and is then not asked."""
    os.kill(parent, signal.SIGQUIT)
    deadline = time.monotonic() + 5
    while _run_by_uvicorn() and os.getppid() == parent:
        if time.monotonic() > deadline:
            os.kill(parent, signal.SIGKILL)  # its other children end with it
            return
        time.sleep(0.1)


def _run_by_uvicorn() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_globals.get("__name__") != "uvicorn._subprocess":
        frame = frame.f_back
    return frame is not None


def _compare(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    guard.agree(_server_args(args, kwargs), who=type(instance).__name__)
    guard.close()


def _on_several_nodes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(_server_args(args, kwargs).nnodes > 1)


def _server_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["server_args"]
