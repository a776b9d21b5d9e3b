"""Environments of their own for the tests of the interpreter start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import FAKE_SGLANG, PTH, START, Environment, lay_out_package


@pytest.fixture
def bare(tmp_path: Path) -> Environment:
    return Environment.create(tmp_path / "bare")


@pytest.fixture
def installed(tmp_path: Path) -> Environment:
    """A venv with the start-up files and the package as a wheel lays them out, stand-ins for hooks and `sglang`."""
    environment = Environment.create(tmp_path / "installed")
    lay_out_package(environment.site_packages)
    shutil.copy(PTH, environment.site_packages)
    shutil.copy(START, environment.site_packages)
    environment.write(FAKE_SGLANG)
    return environment
