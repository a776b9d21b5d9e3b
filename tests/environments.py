"""Environments of their own for the tests of the interpreter start, which is over before a test could look."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
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
    def create(
        cls, folder: Path, *, python: str = sys.executable, system_site_packages: bool = False
    ) -> Environment:
        """A new one of *python*, with nothing installed."""
        if python == sys.executable:
            venv.EnvBuilder(with_pip=False, symlinks=True, system_site_packages=system_site_packages).create(
                folder
            )
        else:
            command = [python, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
            subprocess.run(command, check=True, env=clean_environ(), timeout=60)
        return cls(folder)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def pip(self, *arguments: str | Path, **variables: str) -> None:
        """Run this process's pip for this environment."""
        options = ("--python", self.python, "--disable-pip-version-check", "--quiet")
        subprocess.run(
            [sys.executable, "-m", "pip", *options, *map(str, arguments)],
            check=True,
            env=clean_environ(**variables),
            cwd=self.folder,
            timeout=180,
        )

    def listing(self) -> set[str]:
        """Every file and folder in it."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

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


def build(kind: str, source: Path, out: Path) -> Path:
    """Call the build backend as a frontend does; *kind* is ``wheel``, ``sdist`` or ``editable``."""
    code = f"import hatchling.build, sys; hatchling.build.build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, cwd=source, env=clean_environ(), check=True, capture_output=True, timeout=120)
    (built,) = out.iterdir()
    return built


def unpack(sdist: Path, folder: Path) -> Path:
    """The folder of the sources in *sdist*, unpacked under *folder*."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = folder.glob("sglang_draft_ext-*")
    return source


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
