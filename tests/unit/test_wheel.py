"""What is built, each of the three ways."""

from __future__ import annotations

import base64
import hashlib
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import HeaderParser
from pathlib import Path

import pytest
from environments import PTH, START

START_FILES = {PTH.name, START.name}


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
