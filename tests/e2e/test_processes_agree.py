"""Servers of many processes: the split draft is the same in all of them, and one that was asked for something else stops all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from _environment import CACHE
from _server import Server, _free_port, speculative

SPLIT = "prefill=triton,decode=torch_native"
BIND = {
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",  # a core for each rank
    # On a busy machine a tokenizer worker imports for longer than stock's 10 s, and is started again, for ever.
    "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120",
}
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native", **BIND}
WAYS = {
    "tensor parallel": ("--tp-size", "2"),
    "data parallel": ("--dp-size", "2"),
    "tokenizer workers": ("--tokenizer-worker-num", "2"),
}
SAID = "A process of the server was asked for something else than the one that started it"
# As if a child were started by another environment; the parent has done its part by then.
CHANGED = """
import os, sys
if "spawn_main" in " ".join(sys.orig_argv):
    os.environ["SGLANG_DRAFT_EXT_BACKENDS"] = "flex_attention"
"""
HIDDEN = """
import sys
if "spawn_main" in " ".join(sys.orig_argv):
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "e2e_provider" and {condition}:
                raise ModuleNotFoundError("hidden", name=name)
    sys.meta_path.insert(0, Hide())
"""
PROVIDER = """
from sglang_draft_ext import DraftBackend
BACKEND = DraftBackend(name="torch_native", attention="stock:torch_native")
"""


@pytest.fixture(scope="session")
def alone(servers):
    """The same draft in a server whose model runs in one process."""
    return servers.see(*speculative(1, SPLIT), extended=True, env=ASKING)


@pytest.mark.parametrize("way", WAYS)
def test_all_processes_draft_alike(servers, alone, way):
    seen = servers.see(*speculative(1, SPLIT), *WAYS[way], extended=True, env=ASKING)
    assert seen.tokens == alone.tokens == servers.expected
    assert seen.accept_lengths == alone.accept_lengths
    assert "torch_native: built MultiStepDraftBackend for draft decode" in seen.log
    assert SPLIT.replace(",", ",extend=triton,") in seen.log


@contextmanager
def started(server: Server) -> Iterator[subprocess.Popen]:
    """Start a server without waiting until it is ready."""
    try:
        yield server.start()
    finally:
        server.stop()


def assert_ends_by_itself(servers, process: subprocess.Popen, server: Server) -> None:
    """It ends with an error, within its time, and leaves no process behind."""
    began = time.monotonic()
    assert process.wait(timeout=240) != 0
    servers.say(f"{server.log_file.stem} ended by itself after {time.monotonic() - began:.0f} s")
    deadline = time.monotonic() + 30  # children that were told to end may take a moment
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.2)
        raise AssertionError(f"processes are left; {server.log[-3000:]}")


def server_of(servers, name, *flags, env, extended=True, draft=SPLIT):
    log = CACHE / "logs" / "e2e" / f"agreement-{name}.log"
    python = servers.python(extended=extended)
    return Server(python, servers.model, log, *speculative(1, draft), *flags, env=env)


# The request in the parent's environment, how its children start, and what they say.
DIFFERENT = {
    "environment changed": ("torch_native", CHANGED, "draft backend 'torch_native': nothing here"),
    "provider hidden": (
        "torch_native=e2e_provider:BACKEND",
        HIDDEN.format(condition="True"),
        "draft backend 'torch_native': 'e2e_provider:BACKEND' cannot be imported here",
    ),
}


def environment(folder, asked, start):
    """Variables of a launch whose children start with *start*."""
    (folder / "sitecustomize.py").write_text(start)
    (folder / "e2e_provider.py").write_text(PROVIDER)
    return {**BIND, "SGLANG_DRAFT_EXT_BACKENDS": asked, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("way", "what"),
    [
        ("tensor parallel", "environment changed"),
        ("data parallel", "provider hidden"),
        pytest.param("tensor parallel", "provider hidden", marks=pytest.mark.full),
        pytest.param("data parallel", "environment changed", marks=pytest.mark.full),
    ],
)
def test_a_child_that_differs_stops_the_launch(servers, tmp_path, way, what):
    asked, start, difference = DIFFERENT[what]
    name = f"{way}-{what}".replace(" ", "-")
    server = server_of(servers, name, *WAYS[way], env=environment(tmp_path, asked, start))
    with started(server) as process:
        assert_ends_by_itself(servers, process, server)
    assert SAID in server.log
    assert difference in server.log
    assert "Load weight" not in server.log


def test_a_tokenizer_worker_that_differs_stops_the_server(servers, tmp_path):
    """Its parent would start it again and again."""
    asked, _, difference = DIFFERENT["provider hidden"]
    # What runs in these workers, and in no other process.
    stack = "__import__('traceback').extract_stack()"
    start = HIDDEN.format(condition=f"any('uvicorn/_subprocess' in frame.filename for frame in {stack})")
    env = environment(tmp_path, asked, start)
    server = server_of(servers, "tokenizer-workers", *WAYS["tokenizer workers"], env=env)
    with started(server) as process:
        assert_ends_by_itself(servers, process, server)
    assert SAID in server.log
    assert difference in server.log
    assert "Asked in: TokenizerWorker" in server.log
    assert "Asked in: Scheduler" not in server.log


def nodes(servers, name, **second):
    """The launches on the two nodes of one server; *second*: what is different on the second."""
    address = f"127.0.0.1:{_free_port()}"
    for rank, different in enumerate(({}, second)):
        flags = ("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", address, "--node-rank", str(rank))
        yield server_of(servers, f"{name}-{rank}", *flags, **{"env": ASKING, **different})


def test_two_nodes_draft_alike(servers, alone):
    first, second = nodes(servers, "nodes")
    with started(second), first:
        answers = first.generate([servers.prompt], len(servers.expected[0]))
        answers += first.generate(servers.prompts, len(servers.expected[0]))
    assert [answer.tokens for answer in answers] == alone.tokens
    assert [answer.accept_length for answer in answers] == alone.accept_lengths
    for node in (first, second):
        assert "torch_native: built MultiStepDraftBackend for draft decode" in node.log


def test_a_node_that_differs_stops_both(servers):
    more = {**ASKING, "SGLANG_DRAFT_EXT_BACKENDS": "torch_native,flex_attention"}
    first, second = nodes(servers, "different", env=more)
    with started(first) as one, started(second) as other:
        assert_ends_by_itself(servers, one, first)
        assert_ends_by_itself(servers, other, second)
    assert "draft backend 'flex_attention': nothing here, DraftBackend(" in first.log
    assert "nothing on rank 0" in second.log
    for node in (first, second):
        assert "The ranks of the server were asked for different things" in node.log
        assert "Load weight" not in node.log


@pytest.mark.parametrize(
    "what", ["environment changed", pytest.param("provider hidden", marks=pytest.mark.full)]
)
def test_a_child_that_differs_on_one_node_stops_both(servers, tmp_path, what):
    asked, start, difference = DIFFERENT[what]
    same, different = (tmp_path / "same", tmp_path / "different")
    for folder in (same, different):
        folder.mkdir()
    first, second = nodes(servers, what.replace(" ", "-"), env=environment(different, asked, start))
    first.environment |= environment(same, asked, "")
    with started(first) as one, started(second) as other:
        assert_ends_by_itself(servers, one, first)
        assert_ends_by_itself(servers, other, second)
    for node in (first, second):
        assert SAID in node.log
        assert difference in node.log
        assert "Load weight" not in node.log


def test_a_node_without_the_package_stops_both(servers):
    """Its rank never answers; stock ends it when the other has left."""
    first, second = nodes(servers, "without", env=BIND, extended=False, draft="triton")
    with started(first) as one, started(second) as other:
        assert_ends_by_itself(servers, one, first)
        assert_ends_by_itself(servers, other, second)
    assert "draft backend 'torch_native': DraftBackend(" in first.log
    assert "nothing on rank 1" in first.log
    assert "Load weight" not in first.log
