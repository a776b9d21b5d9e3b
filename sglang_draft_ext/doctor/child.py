"""What a process sees that Python spawns, as SGLang spawns its workers; and what it makes of the providers.

Providers are imported there and not in the doctor: they may import anything.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from sglang_draft_ext import __version__, catalogue, settings
from sglang_draft_ext.backend import STOCK
from sglang_draft_ext.doctor import installation
from sglang_draft_ext.doctor.finding import Finding
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.installed import installed
from sglang_draft_ext.provider import Provider, provider
from sglang_draft_ext.registry import Registry
from sglang_draft_ext.settings import BackendRequest, Settings

PATIENCE_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process sees: all that has to be the same in every process of a server."""

    running: bool
    version: str
    package: str
    sglang: str | None
    variables: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class BackendState:
    """A backend that the environment asks for.

    Args:
        name, where: Which, and where it is asked for.
        attention, decode: References of what builds it for each role; None where it is refused.
        provider: Who provides it; None for SGLang's own.
        error: Why it is refused.
    """

    name: str
    where: str
    attention: str | None = None
    decode: str | None = None
    provider: Provider | None = None
    error: str | None = None


def here() -> Process:
    """What this process sees."""
    surface = installed()
    return Process(
        running=installation.running(),
        version=__version__,
        package=str(installation.package()),
        sglang=surface.path[0] if surface else None,
        variables=settings.variables(),
    )


def examine() -> tuple[Process | None, tuple[BackendState, ...], list[Finding]]:
    """Spawn a process, and compare what it sees with what this one does."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender,))
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(PATIENCE_SECONDS) else None
    except EOFError:  # it has ended without an answer
        answer = None
    process.join(PATIENCE_SECONDS if answer else 0)  # a provider may have left a thread behind
    if process.is_alive():
        process.kill()
        process.join()
    if answer is None:
        text = f"a process that Python spawned gave no answer, and ended with exit code {process.exitcode}"
        remedy = "see what it printed above"
        return None, (), [Finding(name="child-fails", level="problem", text=text, remedy=remedy)]
    seen, states = answer
    findings = [*_compared(here(), seen), *map(_refused, (state for state in states if state.error))]
    return seen, states, findings


def _answer(sender: Connection) -> None:
    # What providers print when they are imported must not get into the report.
    os.dup2(2, 1)
    sender.send((here(), tuple(_backends())))


def _backends() -> Iterator[BackendState]:
    surface = installed()
    if surface is None or surface.source("sglang.srt.server_args") is None:
        return
    stock = catalogue.stock_names(surface)
    try:
        requests = Settings.from_environment().backends
    except DraftExtError:
        return  # the doctor says so itself
    for request in requests:
        # A registry each: one bad name must not hide what is wrong with the next.
        registry = Registry()
        registry.ask(request)
        try:
            registry.check_names(stock)
            yield _state(request, registry.resolve(request.name, stock).references)
        except DraftExtError as error:
            yield BackendState(name=request.name, where=request.where, error=str(error))


def _state(request: BackendRequest, references: dict[str, str]) -> BackendState:
    attention = references["attention"]
    builder = request.reference or references.get("decode", attention)
    return BackendState(
        name=request.name,
        where=request.where,
        attention=attention,
        decode=references.get("decode", f"sglang_draft_ext.multistep, of {attention}"),
        provider=None if builder.startswith(STOCK) else provider(builder.partition(":")[0]),
    )


def _compared(parent: Process, child: Process) -> Iterator[Finding]:
    ours, theirs = asdict(parent), asdict(child)
    for what in ours:
        if ours[what] != theirs[what]:
            yield Finding(
                name="child-differs",
                level="problem",
                text=f"a spawned process sees another {what}: {_said(theirs[what])} there, {_said(ours[what])} here",
                remedy="look for a sitecustomize, a .pth file or a wrapper of Python that treats processes differently",
            )


def _said(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name}={text}" for name, text in value.items()) or "nothing"


def _refused(state: BackendState) -> Finding:
    return Finding(name="backend-refused", level="problem", text=str(state.error))
