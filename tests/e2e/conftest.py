"""Real servers, one at a time. Each configuration is started and asked once in a run; tests look at what it said."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import _environment
from _server import Answer, LaunchError, RequestError, Rule, Server

TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one server did: its answers to one prompt and to a batch, or its end."""

    log: str = field(repr=False)
    single: Answer | None = None
    batch: tuple[Answer, ...] = ()
    arguments: Mapping[str, object] | None = field(default=None, repr=False)
    exit_code: int | None = None
    failed: bool = False

    @property
    def tokens(self) -> list[list[int]]:
        """All tokens said, prompt by prompt."""
        assert self.single is not None, f"no answer; the server's log ends with\n{self.log[-3000:]}"
        return [self.single.tokens, *(answer.tokens for answer in self.batch)]

    @property
    def accept_lengths(self) -> list[float | None]:
        assert self.single is not None, f"no answer; the server's log ends with\n{self.log[-3000:]}"
        return [self.single.accept_length, *(answer.accept_length for answer in self.batch)]


class Servers:
    """Starts servers of one release, and remembers what it saw."""

    def __init__(self, release: str, logs: Path, say) -> None:
        self.release, self._logs, self.say = release, logs, say
        self.model = _environment.model()
        rule = Rule(self.model)
        self.prompt = rule.prompt(8)
        self.prompts = [rule.prompt(length, (1, length % 12)) for length in (3, 8, 21, 40)]
        self.expected = [rule.continue_from(prompt, TOKENS) for prompt in (self.prompt, *self.prompts)]
        self._seen: dict[tuple, Seen] = {}
        self._started = itertools.count()
        self._python: dict[tuple, Path] = {}
        for extended in (False, True):
            self.python(extended=extended)

    def python(self, *, extended: bool, providers: Sequence[Path] = ()) -> Path:
        key = (extended, *providers)
        if key not in self._python:  # once in a run: the working tree may change meanwhile
            self._python[key] = _environment.server_env(self.release, extended=extended, providers=providers)
        return self._python[key]

    def see(
        self,
        *flags: str,
        extended: bool,
        env: Mapping[str, str] | None = None,
        providers: Sequence[Path] = (),
        model: Path | None = None,
    ) -> Seen:
        """Start a server with these flags and variables, ask it, stop it; or what was seen when that was done.

        `providers`: the folders of packages to install beside this one. `model`: another one that knows the same rule.
        """
        key = (flags, extended, tuple(sorted((env or {}).items())), tuple(providers), model)
        if key not in self._seen:
            began = time.monotonic()
            python = self.python(extended=extended, providers=providers)
            self._seen[key] = self._serve(python, model or self.model, flags, env or {})
            variables = " ".join(f"{name}={value}" for name, value in (env or {}).items())
            kind = "extended" if extended else "stock"
            self.say(f"server {kind} {variables} {' '.join(flags)}: {time.monotonic() - began:.0f} s")
        return self._seen[key]

    def _serve(self, python: Path, model: Path, flags: tuple[str, ...], env: Mapping[str, str]) -> Seen:
        log = self._logs / f"{next(self._started):02}.log"
        flags = (*_environment.serving_flags(self.release), *flags)
        try:
            with Server(python, model, log, *flags, env=env) as server:
                (single,) = server.generate([self.prompt], TOKENS)
                batch = server.generate(self.prompts, TOKENS)
                arguments = server.info()
                return Seen(log=server.log, single=single, batch=tuple(batch), arguments=arguments)
        except LaunchError as error:
            return Seen(log=error.log, exit_code=error.exit_code, failed=True)
        except RequestError:
            return Seen(log=log.read_text(errors="replace"), failed=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DRAFT_EXT_FULL") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Servers:
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", flush=True)

    release = os.environ.get("DRAFT_EXT_RELEASE", _environment.NEWEST)
    return Servers(release, tmp_path_factory.mktemp("servers"), say)


@pytest.fixture(scope="session")
def plain(servers: Servers) -> Seen:
    """Stock without the package, without speculation."""
    return servers.see(extended=False)
