"""Starts `python -m sglang.launch_server` as a user would, asks it, and stops all of it. Standard library only.

    with Server(python, model, log, *speculative(topk=2, draft="torch_native"), env={...}) as server:
        server.generate([[40, 45, 47]], 16)

The flags that make a server run on a CPU are `FLAGS`; the variables are `ENVIRONMENT`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _environment import CACHE

FLAGS = [
    *("--device", "cpu"),
    *("--dtype", "float32"),  # in bfloat16 Triton's interpreter rounds differently, and greedy answers drift
    *("--attention-backend", "triton"),
    *("--triton-attention-num-kv-splits", "2"),
    *("--mem-fraction-static", "0.3"),
    *("--max-total-tokens", "4096"),
    "--disable-overlap-schedule",
    "--disable-cuda-graph",
    "--disable-radix-cache",
    "--skip-server-warmup",
]

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",  # run Triton's kernels in Python, on the CPU
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # the model is tiny: threads would only wait for each other
    "PYTHONUNBUFFERED": "1",
}

# Inherited variables that would change what is shown.
_UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
_UNSET_PREFIXES = ("SGLANG_",)

READY = "The server is fired up and ready to roll"


def server_environment() -> dict[str, str]:
    """The variables of a process that serves on the CPU, without inherited ones that would change what is shown."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in _UNSET and not key.startswith(_UNSET_PREFIXES)
    }
    return inherited | ENVIRONMENT | {"PYTHONPYCACHEPREFIX": str(CACHE / "pycache")}


def speculative(topk: int, draft: str | None = None, *, steps: int = 3) -> list[str]:
    """The flags of STANDALONE speculation with the target's own model as draft; 4 draft tokens at topk 1, else 6."""
    flags = [
        *("--speculative-algorithm", "STANDALONE"),
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(steps + 1 if topk == 1 else 6)),
    ]
    return flags + (["--speculative-draft-attention-backend", draft] if draft else [])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server said to one prompt."""

    tokens: list[int]
    meta: dict

    @property
    def accept_length(self) -> float | None:
        """Tokens per verification, as SGLang counts them; None without speculation."""
        if "spec_accept_length" not in self.meta and self.meta.get("spec_verify_ct"):
            return len(self.tokens) / self.meta["spec_verify_ct"]
        return self.meta.get("spec_accept_length")


class RequestError(RuntimeError):
    """The server gave no answer, or an error."""


class LaunchError(RuntimeError):
    """The server ended, or was not ready in time. `exit_code` is None for the latter."""

    def __init__(self, message: str, *, exit_code: int | None, log: str) -> None:
        super().__init__(message)
        self.exit_code, self.log = exit_code, log


class Server:
    """A server that runs inside a `with` block."""

    def __init__(
        self,
        python: Path,
        model: Path,
        log: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        progress: Callable[[float, str], None] | None = None,
        timeout: float = 300,
        program: Sequence[str] = ("-m", "sglang.launch_server"),
        base_flags: Sequence[str] = FLAGS,
    ) -> None:
        self.log_file = log
        self.port = _free_port()
        models = ["--model-path", str(model)]
        if "--speculative-algorithm" in flags and "--speculative-draft-model-path" not in flags:
            models += ["--speculative-draft-model-path", str(model)]
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.command = [str(python), *program, *models, *base_flags, *flags, *address]
        self.extra_environment = dict(env or {})
        self.environment = server_environment() | self.extra_environment
        self._progress, self._timeout = progress, timeout
        self._process: subprocess.Popen | None = None

    @property
    def launch_line(self) -> str:
        """The command as a user would type it."""
        variables = [f"{key}={shlex.quote(value)}" for key, value in self.extra_environment.items()]
        return " ".join([*variables, shlex.join(["python", *self.command[1:]])])

    def start(self) -> subprocess.Popen:
        """Start the process, without waiting until it is ready; `stop` ends it."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_file, "wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.log_file.parent,
                start_new_session=True,  # its own process group, to stop all of it by one id
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it makes one system call
            )
        return self._process

    def __enter__(self) -> Server:
        process = self.start()
        try:
            self._wait_until_ready(process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self, process: subprocess.Popen) -> None:
        started = time.monotonic()
        while READY not in (log := self.log) or not self._healthy():
            seconds = time.monotonic() - started
            if process.poll() is not None or _group_error(log):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=30)
                code = process.poll()
                raise LaunchError(
                    f"the server ended with exit code {code}; {self.last_error()}",
                    exit_code=code,
                    log=self.log,
                )
            if seconds > self._timeout:
                raise LaunchError(
                    f"the server was not ready after {seconds:.0f} s; log: {self.log_file}",
                    exit_code=None,
                    log=log,
                )
            if self._progress is not None:
                self._progress(
                    seconds, next((line for line in reversed(log.splitlines()) if line.strip()), "")
                )
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """End the process group, by its id, and make sure that nothing of it is left."""
        if self._process is None:
            return
        process, self._process = self._process, None
        # The server takes its children down when it is asked alone; a signal to all of them it takes for a crash.
        process.terminate()
        _end_group(process, patience=10)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def last_error(self) -> str:
        return last_error(self.log)

    def request(self, path: str, body: object | None = None) -> object:
        """One HTTP request; JSON in, JSON out."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise RequestError(
                f"{path}: {error}: {error.read().decode(errors='replace')}; {self.last_error()}"
            ) from error
        except OSError as error:
            raise RequestError(f"{path}: {error}; {self.last_error()}") from error

    def info(self) -> dict:
        """What the server says about itself; releases before 0.5.7 have another name for the page."""
        try:
            answer = self.request("/server_info")
        except RequestError as error:
            if "404" not in str(error):
                raise
            answer = self.request("/get_server_info")
        assert isinstance(answer, dict)
        return answer

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
        """Greedy answers of exactly `tokens` ids to prompts given as ids, sent as one batch."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        answers = self.request(
            "/generate", {"input_ids": [list(p) for p in prompts], "sampling_params": sampling}
        )
        assert isinstance(answers, list)
        # Older releases put some of the prompt's last ids before the answer's.
        return [Answer(tokens=answer["output_ids"][-tokens:], meta=answer["meta_info"]) for answer in answers]


def run_group(
    command: Sequence[Path | str], log: Path, *, env: Mapping[str, str] | None = None, timeout: float
) -> tuple[int, str]:
    """Run a program that starts servers of its own to its end: its exit code and output. Nothing of it is left."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server_environment() | dict(env or {}),
            cwd=log.parent,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it makes one system call
        )
    try:
        code = process.wait(timeout=timeout)
    finally:
        _end_group(process, patience=0)
    return code, log.read_text(errors="replace")


class Rule:
    """What the tiny model was trained to say: the next id follows from the two before it."""

    def __init__(self, model: Path) -> None:
        rule = json.loads((model / "rule.json").read_text())
        self._first_id, self._next = rule["first_id"], rule["next"]

    def continue_from(self, ids: Sequence[int], count: int) -> list[int]:
        """The right answer of `count` ids to a prompt of at least two."""
        states = [i - self._first_id for i in ids[-2:]]
        for _ in range(count):
            states.append(self._next[states[-2]][states[-1]])
        return [state + self._first_id for state in states[2:]]

    def prompt(self, length: int, start: Sequence[int] = (0, 5)) -> list[int]:
        """A prompt of `length` ids that obeys the rule; `start` are its first two states."""
        ids = [state + self._first_id for state in start]
        return (ids + self.continue_from(ids, max(0, length - 2)))[:length]


def last_error(log: str) -> str:
    """The last line of a log that names an exception: what the launch died of."""
    errors = [line.strip() for line in log.splitlines() if _names_exception(line)]
    return errors[-1] if errors else "no error in its log"


def errors(log: str) -> list[str]:
    """All lines of a log that name an exception, each once."""
    return list(dict.fromkeys(line.strip() for line in log.splitlines() if _names_exception(line)))


def _names_exception(line: str) -> bool:
    name, colon, _ = line.strip().partition(": ")
    return (
        bool(colon)
        and name.replace(".", "").replace("_", "").isalnum()
        and name.endswith(("Error", "Exception"))
    )


def _group_error(log: str) -> bool:
    """Whether a child reported its end: the parent may then take long to follow, or forever."""
    return "Received sigquit from a child process" in log


_LIBC = ctypes.CDLL(None)  # loaded here: little may happen between fork and exec


def _end_with_parent() -> None:
    """In the child: get a SIGTERM when the parent is gone, however it went."""
    _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _end_group(leader: subprocess.Popen, *, patience: float) -> None:
    """Wait for a process group to end, then kill it by its id, and make sure that nothing is left."""
    deadline = time.monotonic() + patience
    while _alive(leader.pid, leader) and time.monotonic() < deadline:
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while _alive(leader.pid, leader):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of group {leader.pid} are left after SIGKILL")
        time.sleep(0.1)


def _alive(group: int, leader: subprocess.Popen) -> bool:
    leader.poll()  # reap it: a zombie would keep its group
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    """A port with room above it: some releases derive further ports by adding 10000."""
    for port in random.sample(range(20000, 50000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port among a hundred tried")


if __name__ == "__main__":  # serve one prompt: _server.py RELEASE {stock,extended} [FLAG ...]
    import _environment

    release, kind, *flags = sys.argv[1:]
    flags += _environment.serving_flags(release)
    model = _environment.model()
    python = _environment.server_env(release, extended=kind == "extended")
    variables = {key: value for key, value in os.environ.items() if key.startswith("SGLANG_DRAFT_EXT_")}
    begin = time.monotonic()
    with Server(
        python, model, _environment.CACHE / "logs" / f"{release}-{kind}.log", *flags, env=variables
    ) as server:
        print(f"ready after {time.monotonic() - begin:.0f} s: {server.launch_line}")
        rule = Rule(model)
        for batch in ([rule.prompt(8)], [rule.prompt(length, (1, length % 12)) for length in (3, 8, 21, 40)]):
            begin = time.monotonic()
            for prompt, answer in zip(batch, server.generate(batch, 16), strict=True):
                right = answer.tokens == rule.continue_from(prompt, 16)
                print(
                    len(prompt),
                    answer.tokens,
                    "right" if right else "WRONG",
                    answer.accept_length,
                    flush=True,
                )
            print(f"{time.monotonic() - begin:.1f} s")
