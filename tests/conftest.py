"""Marks each test with the kind that its folder names, so that none is left out of `pytest -m KIND` by accident; what is built."""

import shutil
from pathlib import Path

import pytest
from environments import FAKE_SGLANG, PTH, ROOT, START, Environment, build, lay_out_package, unpack
from hypothesis import settings

# How long one example takes says nothing on a machine that does other things, too.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

KINDS = ("unit", "contract", "e2e", "lifecycle")


@pytest.hookimpl(tryfirst=True)  # before -m makes its choice
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(root).parts[0]
        if folder in KINDS and not any(item.get_closest_marker(kind) for kind in KINDS):
            item.add_marker(folder)


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


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> dict[str, Path]:
    source = unpack(sdist, tmp_path_factory.mktemp("unpacked"))
    return {
        "from the tree": build("wheel", ROOT, tmp_path_factory.mktemp("wheel")),
        "from the sdist": build("wheel", source, tmp_path_factory.mktemp("wheel")),
        "editable": build("editable", ROOT, tmp_path_factory.mktemp("wheel")),
    }
