"""What is built and what an installation puts where. Each of the three ways to build, and pip itself."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import HeaderParser
from pathlib import Path

import pytest
from environments import FINDERS, PTH, ROOT, START, Environment, clean_environ

START_FILES = {PTH.name, START.name}


def build(kind: str, source: Path, out: Path) -> Path:
    """Call the build backend as a frontend does; *kind* is ``wheel``, ``sdist`` or ``editable``."""
    code = f"import hatchling.build, sys; hatchling.build.build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, cwd=source, env=clean_environ(), check=True, capture_output=True, timeout=120)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory, sdist: Path) -> dict[str, Path]:
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = unpacked.iterdir()
    return {
        "from the tree": build("wheel", ROOT, tmp_path_factory.mktemp("wheel")),
        "from the sdist": build("wheel", source, tmp_path_factory.mktemp("wheel")),
        "editable": build("editable", ROOT, tmp_path_factory.mktemp("wheel")),
    }


@pytest.fixture(params=["from the tree", "from the sdist", "editable"])
def wheel(request: pytest.FixtureRequest, wheels: dict[str, Path]) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheels[request.param]) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_both_start_files_are_there_and_recorded(wheel: zipfile.ZipFile) -> None:
    record = dict(row.split(",", 1) for row in metadata(wheel, "RECORD").splitlines())
    assert set(record) == set(wheel.namelist())
    for name in START_FILES:
        content = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert record[name] == f"sha256={digest},{len(content)}"


def test_nothing_lies_outside_the_package_but_the_start_files(wheels: dict[str, Path]) -> None:
    for kind, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            tops = {name.split("/")[0] for name in wheel.namelist()}
        (information,) = (top for top in tops if top.endswith(".dist-info"))
        # The .pth of an editable install itself has a name of its own.
        package = "_sglang_draft_ext.pth" if kind == "editable" else "sglang_draft_ext"
        assert tops == START_FILES | {package, information}


def test_the_wheel_is_the_same_from_the_tree_and_from_the_sdist(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["from the tree"]) as one, zipfile.ZipFile(wheels["from the sdist"]) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {i.filename: i.CRC for i in other.infolist()}
        assert {"sglang_draft_ext/py.typed", "sglang_draft_ext/_startup.py"} <= set(one.namelist())


def test_the_sdist_ships_the_sitecustomize(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"sitecustomize/sitecustomize.py", "tests/unit/test_wheel.py", "LICENSE", "README.md"} <= names
    assert not any(name.startswith((".ci", ".cache", ".git/")) for name in names)


def test_the_only_dependency_is_wrapt(wheel: zipfile.ZipFile) -> None:
    headers = HeaderParser().parsestr(metadata(wheel, "METADATA"))
    required = [line for line in headers.get_all("Requires-Dist") or [] if "extra ==" not in line]
    assert [line.split(">")[0] for line in required] == ["wrapt"]
    assert headers["Requires-Python"] == ">=3.10"


def test_the_entry_points(wheel: zipfile.ZipFile) -> None:
    entries = ConfigParser()
    entries.read_string(metadata(wheel, "entry_points.txt"))
    # Never sglang.srt.platforms: SGLang skips every plugin of a distribution whose platform is not the selected one.
    assert {group: dict(entries[group]) for group in entries.sections()} == {
        "console_scripts": {"sglang-draft-ext": "sglang_draft_ext.cli:main"},
        "sglang.srt.plugins": {"sglang_draft_ext": "sglang_draft_ext.plugin:load"},
    }


# Installing


def pip(environment: Environment, *arguments: str | Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        environment.python,
        "--disable-pip-version-check",
        *arguments,
    ]
    subprocess.run(
        [str(part) for part in command],
        check=True,
        capture_output=True,
        env=clean_environ(),
        cwd=environment.folder,
        timeout=120,
    )


def listing(environment: Environment) -> set[str]:
    return {str(path.relative_to(environment.folder)) for path in environment.folder.rglob("*")}


@pytest.mark.lifecycle
@pytest.mark.parametrize("kind", ["from the tree", "editable"])
def test_install_start_and_uninstall_without_a_trace(
    kind: str, wheels: dict[str, Path], bare: Environment
) -> None:
    bare.write({"neighbour.py": ""})  # pip would remove an empty site-packages too
    before = listing(bare)
    pip(bare, "install", "--no-deps", "--no-index", wheels[kind])
    assert bare.output(FINDERS) == "1"
    assert bare.output("import sglang_draft_ext as package; print(package.__version__)") == "0.1.0"
    where = ROOT if kind == "editable" else bare.site_packages
    assert bare.output("import sglang_draft_ext._startup as s; print(s.__file__)").startswith(f"{where}/")
    assert {path.name for path in bare.site_packages.iterdir()} >= START_FILES

    pip(bare, "uninstall", "--yes", "sglang-draft-ext")
    assert listing(bare) == before
    assert bare.output(FINDERS) == "0"


@pytest.mark.lifecycle
def test_an_editable_install_survives_the_loss_of_its_tree(
    tmp_path: Path, wheels: dict[str, Path], bare: Environment, sdist: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = tmp_path.glob("sglang_draft_ext-*")
    pip(bare, "install", "--no-deps", "--no-index", build("editable", source, tmp_path / "out"))
    assert bare.output(FINDERS) == "1"
    source.rename(tmp_path / "elsewhere")
    assert bare.output(FINDERS) == "0"


@pytest.mark.lifecycle
def test_the_oldest_wrapt_that_is_allowed_is_enough(wheels: dict[str, Path], bare: Environment) -> None:
    with zipfile.ZipFile(wheels["from the tree"]) as built:
        headers = HeaderParser().parsestr(metadata(built, "METADATA"))
    (required,) = (line for line in headers.get_all("Requires-Dist") or [] if line.startswith("wrapt"))
    oldest = required.partition(">=")[2]
    pip(bare, "install", f"wrapt=={oldest}.*", wheels["from the tree"])
    uses = "import sglang_draft_ext.multistep, sglang_draft_ext.hooks; sglang_draft_ext.hooks.activate()"
    assert bare.output(f"{uses}; import wrapt; print(wrapt.__version__)", "-W", "error").startswith(oldest)
