"""The start by PYTHONPATH alone, and the next sitecustomize on the path."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import FAKE_SGLANG, FINDERS, ROOT, Environment, lay_out_package, write_files

WHICH = "import sys; print(sys.modules['sitecustomize'].__file__)"
OURS = str(ROOT / "sitecustomize")


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A folder with the package and a small `sglang`; nothing is installed."""
    lay_out_package(tmp_path / "package")
    write_files(tmp_path / "package", FAKE_SGLANG)
    return str(tmp_path / "package")


def other(folder: Path, text: str) -> str:
    write_files(folder, {"sitecustomize.py": text})
    return str(folder)


def path(*folders: str) -> dict[str, str]:
    return {"PYTHONPATH": ":".join(folders)}


def test_it_starts_by_pythonpath_alone(bare: Environment, package: str) -> None:
    for folders in ([OURS, package], [package, OURS]):
        assert bare.output(FINDERS, **path(*folders)) == "1"
        assert bare.output("import sglang", **path(*folders)).split("\n") == ["activated", "sglang runs"]
    assert bare.output(WHICH, **path(OURS, package)) == f"{OURS}/sitecustomize.py"


def test_a_checkout_on_the_path_works(bare: Environment) -> None:
    """There the folder `sitecustomize` is itself importable as a namespace package; the file must win."""
    for folders in ([OURS, str(ROOT)], [str(ROOT), OURS]):
        assert bare.output(FINDERS, **path(*folders)) == "1"
        assert bare.output(WHICH, **path(*folders)) == f"{OURS}/sitecustomize.py"


def test_it_obeys_the_off_switch(bare: Environment, package: str) -> None:
    assert bare.output(FINDERS, SGLANG_DRAFT_EXT_DISABLE="1", **path(OURS, package)) == "0"


def test_children_start_the_same_way(bare: Environment, package: str) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FINDERS!r}], check=True)"
    assert bare.output(child, **path(OURS, package)) == "1"


def test_with_the_package_installed_too(installed: Environment, package: str) -> None:
    assert installed.output(FINDERS, **path(OURS, package)) == "1"
    assert installed.output("import sglang", **path(OURS, package)).split("\n") == [
        "activated",
        "sglang runs",
    ]


def test_without_the_package(bare: Environment, tmp_path: Path) -> None:
    following = other(tmp_path / "next", "print('next')")
    assert bare.output(FINDERS, **path(OURS)) == "0"
    assert bare.output(FINDERS, **path(OURS, following)) == "next\n0"


def test_a_damaged_package_is_reported_and_the_next_one_runs(
    bare: Environment, package: str, tmp_path: Path
) -> None:
    Path(package, "sglang_draft_ext", "_startup.py").write_text("import no_such_module\n")
    done = bare.run(
        "-c", "print('goes on')", **path(OURS, package, other(tmp_path / "next", "print('next')"))
    )
    assert done.stdout == "next\ngoes on\n"
    assert (
        done.stderr
        == "sglang-draft-ext cannot start (ModuleNotFoundError: No module named 'no_such_module')\n"
    )


def test_the_next_one_runs_and_only_that(bare: Environment, package: str, tmp_path: Path) -> None:
    second = other(
        tmp_path / "second", "import sys\nprint('second', sys.modules[__name__].__file__)\nvalue = 2\n"
    )
    third = other(tmp_path / "third", "print('third')")
    expected = f"second {second}/sitecustomize.py"
    # Also through a folder without one, and when ours is named twice.
    folders = path(OURS, package, OURS, second, third)
    assert bare.output(FINDERS, **folders) == f"{expected}\n1"
    assert bare.output("import sitecustomize; print(sitecustomize.value)", **folders) == f"{expected}\n2"
    assert bare.output(WHICH, **folders) == f"{expected}\n{second}/sitecustomize.py"


def test_one_before_ours_has_the_only_turn(bare: Environment, package: str, tmp_path: Path) -> None:
    assert (
        bare.output(FINDERS, **path(other(tmp_path / "first", "print('first')"), OURS, package)) == "first\n0"
    )


def test_the_next_one_in_site_packages_runs(bare: Environment, package: str) -> None:
    other(bare.site_packages, "print('site')")
    assert bare.output(FINDERS, **path(OURS, package)) == "site\n1"


def test_a_package_as_the_next_one(bare: Environment, package: str, tmp_path: Path) -> None:
    write_files(
        tmp_path / "next",
        {"sitecustomize/__init__.py": "from . import part", "sitecustomize/part.py": "print('part')"},
    )
    assert bare.output(FINDERS, **path(OURS, package, str(tmp_path / "next"))) == "part\n1"


def test_several_of_ours_in_a_row(bare: Environment, package: str, tmp_path: Path) -> None:
    copies = [str(shutil.copytree(OURS, tmp_path / f"copy{i}")) for i in range(3)]
    folders = path(*copies, package, other(tmp_path / "next", "print('next')"))
    assert bare.output(FINDERS, **folders) == "next\n1"


@pytest.mark.parametrize(
    "text", ["raise ValueError('theirs')", "import no_such_module", "if damaged(:", "import sys; sys.exit(3)"]
)
def test_what_the_next_one_raises_is_reported_as_without_ours(
    text: str, bare: Environment, package: str, tmp_path: Path
) -> None:
    following = other(tmp_path / "next", text)
    exits = "exit" in text
    alone = bare.run("-c", FINDERS, fails=exits, **path(following))
    chained = bare.run("-c", FINDERS, fails=exits, **path(OURS, package, following))
    assert chained.returncode == alone.returncode
    if exits:  # then Python prints a traceback, which shows the way through our file
        assert chained.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    else:
        assert chained.stderr == alone.stderr
    assert chained.stdout == alone.stdout.replace("0", "1")
    after = "import sys; print('sitecustomize' in sys.modules)"
    if not exits:
        assert bare.run("-c", after, **path(OURS, package, following)).stdout == "False\n"


def test_isolated_it_does_not_run(bare: Environment, package: str) -> None:
    for flag in ("-I", "-E", "-S"):
        assert bare.output(FINDERS, flag, **path(OURS, package)) == "0"
