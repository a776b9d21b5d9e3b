"""Makes what the scripts and tests run in. Standard library only, since it runs before anything is installed.

Everything lies under `.cache/` at the repository's root, or under `$DRAFT_EXT_CACHE` to share it between clones, and is
made once: each folder carries a stamp with the hash of what it was made from. The stamp is written last, so a folder
whose making was interrupted is made again, and a changed requirement makes its folder anew.

    tools               tests, lint and build, with this project installed editable
    fuzz                a coverage-guided fuzzer, for scripts/fuzz
    base                torch and all that a stock SGLang imports
    releases/X          SGLang X, unmodified
    libraries/Y         what some releases need in another version than base has, and what one test needs
    wheel               this project, built from the working tree
    providers/P         the wheel of a provider of draft backends, such as the one in examples/
    servers/X-stock     Python that sees base, release X and the reference platform
    servers/X-extended  the same with this project's wheel installed, start-up file and all
    servers/X-extended-P  the same with provider P installed, too
    models              the tiny models

A server's environment is a venv of its own with nothing but a `.pth` file naming those folders, so that a server starts
there as it does for a user: `python -m sglang.launch_server`, with no PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
CACHE = Path(os.environ.get("DRAFT_EXT_CACHE") or ROOT / ".cache").resolve()
PYTHON = (3, 11)  # the wheels of SGLang and the pins of base.txt are made for it
REFERENCE_PLATFORM = ROOT / "tests" / "reference_platform"

BASE_REQUIREMENTS = SCRIPTS / "requirements" / "base.txt"
TOOLS_REQUIREMENTS = SCRIPTS / "requirements" / "tools.txt"
NEIGHBOURS = SCRIPTS / "requirements" / "neighbours.txt"
RELEASES = SCRIPTS / "releases.json"


class SetupError(SystemExit):
    """Something the machine lacks, or a step that failed; the message says what to do."""


def releases() -> dict[str, dict]:
    """The lock's entry of each SGLang release, oldest first."""
    return json.loads(RELEASES.read_text())["releases"]


NEWEST = [*releases()][-1]


@functools.cache
def find_python() -> str:
    """An interpreter of the version that the pins are made for."""
    wanted = ".".join(map(str, PYTHON))
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"the pinned wheels are for x86-64 Linux, this is {platform.machine()} {sys.platform}"
        )
    tried = []
    for candidate in dict.fromkeys(
        [sys.executable, f"python{wanted}", "python3", f"/usr/bin/python{wanted}"]
    ):
        path = shutil.which(candidate)
        if path is None:
            tried.append(f"{candidate}: not found")
            continue
        probe = "import sys, venv, ensurepip; print(sys._base_executable, *sys.version_info[:2])"
        answer = subprocess.run([path, "-c", probe], check=False, capture_output=True, text=True)
        if answer.returncode == 0:
            executable, *version = answer.stdout.split()
            if tuple(map(int, version)) == PYTHON:
                return os.path.realpath(executable)  # one name for it, whatever was asked
            tried.append(f"{path}: Python {'.'.join(version)}")
        else:
            tried.append(f"{path}: {(answer.stderr.strip().splitlines() or ['does not run'])[-1]}")
    raise SetupError(
        f"Python {wanted} with venv and pip is needed: the wheels of SGLang are published for it. Tried:\n  "
        + "\n  ".join(tried)
        + f"\nInstall it (on Debian: apt-get install python{wanted}-venv) or put it on PATH, then run this again."
    )


def pinned(requirements: Path, name: str) -> str:
    """The line of a requirements file that pins *name*."""
    (line,) = (line for line in requirements.read_text().splitlines() if line.startswith(f"{name}=="))
    return line


# The environments


def tool_env() -> Path:
    """The Python of the tools, with this project installed editable."""
    python = _tools()

    def make() -> None:
        options = ("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        _pip(python, "this project, editable", "install", *options)

    # An editable install refers to the package, and copies the files that start it.
    refers_to = [path for path in _project_files() if "sglang_draft_ext" not in path.relative_to(ROOT).parts]
    _made(CACHE / "tools" / "editable", [str(ROOT), *refers_to, _stamp_of(CACHE / "tools")], make)
    return python


def fuzz_env() -> Path:
    """The Python of the fuzzer, which sees this working tree alone."""
    folder = CACHE / "fuzz"
    fuzzer = "atheris==3.0.0"

    def make() -> None:
        _venv(folder)
        _pip(folder / "bin" / "python", "the fuzzer", "install", "--only-binary", ":all:", fuzzer)
        (_site_packages(folder) / "working_tree.pth").write_text(f"{ROOT}\n")

    _made(folder, [fuzzer, str(ROOT)], make)
    return folder / "bin" / "python"


def server_env(release: str = NEWEST, *, extended: bool, providers: Sequence[Path] = ()) -> Path:
    """The Python that serves `release`: stock, or with this project and `providers` installed as a user would."""
    name = "-".join([release, "extended" if extended else "stock", *(path.name for path in providers)])
    folder = CACHE / "servers" / name
    paths = [release_folder(release)]
    if "libraries" in _entry(release):
        extra = libraries(_entry(release)["libraries"])
        # Python reads the .pth files of its own site-packages only.
        named = (extra / line for pth in extra.glob("*.pth") for line in pth.read_text().split())
        paths += [extra, *filter(Path.is_dir, named)]
    paths += [_reference_platform(), _site_packages(base_env())]
    lines = [str(path) for path in paths]
    if _entry(release).get("stubs"):  # it imports sgl_kernel, or vllm, whatever the device is
        lines.insert(0, str(REFERENCE_PLATFORM / "stubs"))
    if not _entry(release).get("plugins", True):  # it loads none, so the platform needs another start
        lines.append("import sglang_reference_platform.legacy as legacy; legacy.install()")
    wheels = [*([project_wheel()] if extended else []), *map(_provider_wheel, providers)]

    def make() -> None:
        _venv(folder, pip=False)
        (_site_packages(folder) / "server_environment.pth").write_text("\n".join(lines) + "\n")
        if wheels:
            # pip of base sees base's packages, and would find a dependency there that belongs here: name it.
            target = ("--python", str(folder / "bin" / "python"))
            _pip(
                base_env() / "bin" / "python",
                "this project's wheel",
                *target,
                "install",
                "--no-deps",
                pinned(TOOLS_REQUIREMENTS, "wrapt"),
                *map(str, wheels),
            )

    made_from: list[Path | str] = [*lines, *(_stamp_of(path) for path in paths), _stamp_of(base_env())]
    if wheels:
        made_from += [*wheels, TOOLS_REQUIREMENTS]
    _made(folder, made_from, make)
    return folder / "bin" / "python"


def serving_flags(release: str) -> list[str]:
    """What its launch line needs beside the flags that all releases serve with."""
    return _entry(release).get("flags", [])


def base_env() -> Path:
    """The folder of the venv that all servers share."""
    folder = CACHE / "base"

    def make() -> None:
        _venv(folder)
        what = "torch and what SGLang imports (6 GB, some minutes)"
        options = ("--no-deps", "--no-compile")  # servers keep bytecode elsewhere
        _pip(folder / "bin" / "python", what, "install", *options, "-r", str(BASE_REQUIREMENTS))

    _made(folder, [BASE_REQUIREMENTS], make)
    return folder


def release_folder(release: str) -> Path:
    """The folder with the published files of one SGLang release."""
    folder = CACHE / "releases" / release
    requirement = f"sglang=={release} --hash=sha256:{_entry(release)['sha256']}"
    _made(folder, [requirement], lambda: _install_by_hash(folder, [requirement], f"SGLang {release}"))
    return folder


def libraries(name: str) -> Path:
    """A folder with the libraries that the lock gives this name."""
    folder = CACHE / "libraries" / name
    requirements = json.loads(RELEASES.read_text())["libraries"][name]
    _made(folder, requirements, lambda: _install_by_hash(folder, requirements, name))
    return folder


def _entry(release: str) -> dict:
    known = releases()
    if release not in known:
        raise SetupError(f"SGLang {release} is not in {RELEASES.name}; known: {', '.join(known)}")
    return known[release]


def _install_by_hash(folder: Path, requirements: list[str], what: str) -> None:
    folder.mkdir(parents=True)
    lock = folder / "locked.txt"
    lock.write_text("\n".join(requirements) + "\n")
    options = (
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--no-compile",
        "--target",
        str(folder),
    )
    _pip(base_env() / "bin" / "python", what, "install", *options, "-r", str(lock))


def project_wheel() -> Path:
    """This project's wheel, built from the working tree."""
    return _wheel(CACHE / "wheel", ROOT, _project_files(), "this project's wheel")


def _provider_wheel(source: Path) -> Path:
    files = sorted([source / "pyproject.toml", *source.glob("src/**/*.py")])
    return _wheel(CACHE / "providers" / source.name, source, files, f"the wheel of {source.name}")


def _wheel(folder: Path, source: Path, files: Sequence[Path], what: str) -> Path:
    def make() -> None:
        options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
        _pip(_tools(), what, "wheel", *options, str(source))

    _made(folder, [*files, TOOLS_REQUIREMENTS], make)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _tools() -> Path:
    folder = CACHE / "tools"

    def make() -> None:
        _venv(folder)
        _pip(
            folder / "bin" / "python",
            "tests, lint and build",
            "install",
            "--no-deps",
            "-r",
            str(TOOLS_REQUIREMENTS),
        )

    _made(folder, [TOOLS_REQUIREMENTS], make)
    return folder / "bin" / "python"


def _reference_platform() -> Path:
    """A folder with the reference platform installed: its entry points are how SGLang finds it."""
    folder = CACHE / "reference_platform"
    files = sorted(REFERENCE_PLATFORM.glob("sglang_reference_platform/*.py"))

    def make() -> None:
        options = ("--no-deps", "--no-build-isolation", "--target", str(folder))
        _pip(_tools(), "the reference platform", "install", *options, str(REFERENCE_PLATFORM))

    _made(folder, [REFERENCE_PLATFORM / "pyproject.toml", *files], make)
    return folder


def model() -> Path:
    """The folder of the tiny trained model."""
    return _trained("llama", "the tiny model (a minute or two)")


def mla_models() -> tuple[Path, Path]:
    """The folders of the tiny target with multi-head latent attention, and of its EAGLE3 draft."""
    folder = _trained("mla", "the tiny MLA model and its draft (two or three minutes)")
    return folder / "target", folder / "draft"


def _trained(kind: str, what: str) -> Path:
    folder = CACHE / "models" / f"tiny-{kind}"
    maker = SCRIPTS / "tiny_models"

    def make() -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run(what, [base_env() / "bin" / "python", maker, kind, folder])

    _made(folder, [maker, BASE_REQUIREMENTS], make)
    return folder


def enter_tool_env() -> None:
    """Run the calling script again in the tools' environment, unless it runs there already."""
    python = tool_env()
    if Path(sys.prefix).resolve() != python.parent.parent.resolve():
        os.execv(python, [str(python), *sys.argv])


# How they are made


def _made(folder: Path, made_from: Sequence[Path | str], make: Callable[[], None]) -> None:
    """Call `make` unless `folder` was completed from the same things. Paths stand for their contents."""
    digest = hashlib.sha256(find_python().encode())
    for item in made_from:
        digest.update(
            f"{item.name}\0".encode() + item.read_bytes() if isinstance(item, Path) else item.encode()
        )
        digest.update(b"\0")
    wanted = digest.hexdigest()
    if _stamp_of(folder) == wanted:
        return
    with _lock(folder):
        if _stamp_of(folder) == wanted:  # made by another process meanwhile
            return
        _stamp(folder).unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        make()
        _stamp(folder).write_text(wanted)


def _stamp(folder: Path) -> Path:
    return folder.with_name(folder.name + ".stamp")


def _stamp_of(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return _stamp(folder).read_text()
    return ""


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _project_files() -> list[Path]:
    """The files that the wheel is made from."""
    found = [
        path
        for path in ROOT.iterdir()
        if path.is_file() and path.suffix in {".toml", ".py", ".md", ".pth", ".start"}
    ]
    for folder in ("sglang_draft_ext", "sitecustomize"):
        found += [
            path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        ]
    return sorted(found)


def _venv(folder: Path, *, pip: bool = True) -> None:
    command = [find_python(), "-m", "venv", folder] + ([] if pip else ["--without-pip"])
    _run(f"a new environment, {folder.name}", command)


def _site_packages(folder: Path) -> Path:
    return folder / "lib" / "python{}.{}".format(*PYTHON) / "site-packages"


def _pip(python: Path, what: str, *arguments: str) -> None:
    _run(what, [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments])


def _run(what: str, command: Sequence[Path | str]) -> None:
    """Run one step with its output in a log file; show that it goes on, and the end of the log if it fails."""
    log = CACHE / "setup.log"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    started = time.monotonic()
    say = _Progress(what)
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=CACHE,
            env=environment,
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
                    break
                say.going_on(time.monotonic() - started, _last_line(log))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    say.done(time.monotonic() - started)
    if process.returncode != 0:
        tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SetupError(
            f"could not set up {what} (exit code {process.returncode}):\n  {tail}\nFull log: {log}"
        )


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 2000))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _Progress:
    """One line on stderr: rewritten on a terminal, now and then a new one elsewhere."""

    def __init__(self, what: str) -> None:
        self.what, self.terminal, self.said = what, sys.stderr.isatty(), 0.0

    def going_on(self, seconds: float, line: str) -> None:
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r" + f"setting up {self.what}: {seconds:.0f} s  {line}"[:width].ljust(width))
        elif seconds - self.said >= 20:
            self.said = seconds
            self._write(f"setting up {self.what}: {seconds:.0f} s  {line[:100]}\n")

    def done(self, seconds: float) -> None:
        if self.terminal:
            self._write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
        if seconds >= 2:
            self._write(f"set up {self.what}: {seconds:.0f} s\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
