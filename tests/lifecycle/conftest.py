"""Interpreters, and versions of this package to go between."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from environments import Environment, build, clean_environ, unpack
from unit.fake_release import write

OLDEST, COMING = 10, 15  # of Python 3


@cache
def interpreter(version: str) -> str | None:
    """Python *version* on this machine, from PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for python in map(str, filter(None, found)):
        # pyenv's shims are on PATH for versions that are not switched on, and then fail.
        probe = subprocess.run(
            [python, "-c", "import venv"], check=False, capture_output=True, env=clean_environ()
        )
        if probe.returncode == 0:
            return python
    return None


@pytest.fixture(params=[f"3.{minor}" for minor in range(OLDEST, COMING + 1)])
def python(request: pytest.FixtureRequest) -> str:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on this machine")
    return found


@pytest.fixture
def served(bare: Environment, wheels: dict[str, Path]) -> Environment:
    """An environment with the wheel, wrapt, and a tiny SGLang."""
    bare.pip("install", wheels["from the tree"])
    write(bare.site_packages)
    return bare


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> dict[str, Path]:
    """Wheels of an older and of a newer version, which differ in their files and in their start-up files."""
    built = {}
    for version in ("0.0.1", "9.9.9"):
        source = unpack(sdist, tmp_path_factory.mktemp("version"))
        for path in (source / "pyproject.toml", source / "sglang_draft_ext" / "__init__.py"):
            path.write_text(path.read_text().replace('version__ = "', f'version__ = "{version}"  # "'))
        project = source / "pyproject.toml"
        project.write_text(project.read_text().replace('\nversion = "0.1.0"', f'\nversion = "{version}"'))
        (source / "sglang_draft_ext" / f"only_in_{version.replace('.', '_')}.py").touch()
        start = source / "sglang_draft_ext.pth"
        start.write_text(f"# {version}\n{start.read_text()}")
        built[version] = build("wheel", source, tmp_path_factory.mktemp("wheel"))
    return built
