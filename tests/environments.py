"""Environments of their own for the tests of the interpreter start, which is over before a test could look."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sglang_draft_ext"
PTH = ROOT / "sglang_draft_ext.pth"
START = ROOT / "sglang_draft_ext.start"


def clean_environ(**variables: str) -> dict[str, str]:
    """This process's environment without what steers Python, coverage or this package, and with *variables*."""
    prefixes = ("PYTHON", "COV", "SGLANG_DRAFT_EXT_", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if not k.startswith(prefixes)} | variables


@dataclass(frozen=True)
class Environment:
    """A venv."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Environment:
        """A new one, with nothing installed."""
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        return cls(folder)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        return self.folder / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"

    def run(
        self, *arguments: str | Path, cwd: Path | None = None, fails: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Start this environment's Python and wait for it; *fails*: whether it has to end with an error."""
        done = subprocess.run(
            [self.python, *map(str, arguments)],
            check=False,
            cwd=cwd or self.folder,
            env=clean_environ(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode != 0) == fails, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def output(self, code: str, *flags: str, cwd: Path | None = None, **variables: str) -> str:
        """What *code* prints; the interpreter must print nothing else, on stderr neither."""
        done = self.run(*flags, "-c", code, cwd=cwd, **variables)
        assert done.stderr == ""
        return done.stdout.strip()

    def write(self, files: dict[str, str]) -> None:
        """Write *files* into site-packages."""
        write_files(self.site_packages, files)


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# How many finders of this package wait for `import sglang`.
FINDERS = """
import sys
print(sum(getattr(finder, "__name__", "").startswith("sglang_draft_ext") for finder in sys.meta_path))
"""

FAKE_HOOKS = """
def activate():
    print("activated")
"""

FAKE_SGLANG = {
    "sglang/__init__.py": "print('sglang runs')\n",
    "sglang/srt/__init__.py": "",
    "sglang/srt/a.py": "",
    "sglang/srt/b.py": "",
}


def lay_out_package(folder: Path) -> None:
    """The package as far as the start needs it, so that these tests say nothing about the hooks themselves."""
    (folder / "sglang_draft_ext").mkdir(parents=True)
    for name in ("__init__.py", "_startup.py", "_finder.py", "_activation.py"):
        shutil.copy(PACKAGE / name, folder / "sglang_draft_ext")
    write_files(folder, {"sglang_draft_ext/hooks.py": FAKE_HOOKS})
