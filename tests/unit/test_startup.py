"""The interpreter start, in real interpreters: what is loaded, when nothing is, and what a damaged package does."""

from __future__ import annotations

import pkgutil
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import FINDERS, PTH, START, Environment, lay_out_package, write_files

MODULES = "import sys; print(*sorted(sys.modules))"
IMPORT_TWICE = """
for attempt in range(2):
    try:
        import sglang
    except BaseException as error:
        print(type(error).__name__, error)
"""
CONFIGURED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}


def test_the_start_loads_one_file_and_no_more(bare: Environment, installed: Environment) -> None:
    bare.write({"some.pth": "# From Python 3.13 on, site loads a codec to read any .pth file.\n"})
    added = set(installed.output(MODULES).split()) - set(bare.output(MODULES).split())
    assert added == {"sglang_draft_ext._startup"}


def test_the_pth_file_is_one_line_of_code() -> None:
    lines = [
        line for line in PTH.read_text(encoding="ascii").splitlines() if line and not line.startswith("#")
    ]
    assert len(lines) == 1
    assert lines[0].startswith("import ")


def test_the_line_may_run_any_number_of_times(installed: Environment) -> None:
    again = f"import site; site.addsitedir({str(installed.site_packages)!r}); "
    assert installed.output(FINDERS) == "1"
    assert installed.output(again * 3 + FINDERS) == "1"
    assert installed.output("from sglang_draft_ext import _startup; _startup.run(); " + FINDERS) == "1"


NEWER = [
    pytest.param(
        "-P", marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with Python 3.11")
    )
]


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-O", "-OO", "-B", *NEWER])
def test_it_runs_under(flag: str, installed: Environment) -> None:
    assert installed.output(FINDERS, flag) == "1"


def test_without_site_it_does_not_run(installed: Environment) -> None:
    assert installed.output(FINDERS, "-S") == "0"


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "all", " All "])
def test_the_off_switch(value: str, installed: Environment) -> None:
    assert installed.output(FINDERS, SGLANG_DRAFT_EXT_DISABLE=value) == "0"
    assert installed.output("import sglang", SGLANG_DRAFT_EXT_DISABLE=value, **CONFIGURED) == "sglang runs"


@pytest.mark.parametrize("value", ["", "0", "false", "draft_utils.resolve"])
def test_other_values_do_not_switch_it_off(value: str, installed: Environment) -> None:
    assert installed.output(FINDERS, SGLANG_DRAFT_EXT_DISABLE=value) == "1"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_start_the_same_way(method: str, installed: Environment, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "def child():\n" + FINDERS.replace("\n", "\n    ") + "\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start()\n"
        "    process.join()\n"
    )
    done = installed.run(script)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


# The .start file


def test_the_start_file_names_a_callable_that_starts(installed: Environment) -> None:
    """As Python 3.15 reads it: each line that is neither empty nor a comment is resolved and called."""
    lines = [line.strip() for line in START.read_text(encoding="utf-8").splitlines()]
    entries = [line for line in lines if line and not line.startswith("#")]
    assert entries == ["sglang_draft_ext._startup:run"]
    assert callable(pkgutil.resolve_name(entries[0]))

    (installed.site_packages / PTH.name).unlink()
    expected = "1" if sys.version_info >= (3, 15) else "0"
    assert installed.output(FINDERS) == expected
    call = f"import pkgutil; pkgutil.resolve_name({entries[0]!r})(); "
    assert installed.output(call + FINDERS) == "1"
    assert installed.output(call + call + "import sglang").split("\n") == ["activated", "sglang runs"]


# The package is not as it should be


def remove_package(package: Path) -> None:
    shutil.rmtree(package)


def remove_sources(package: Path) -> None:
    for path in package.glob("*.py"):
        path.unlink()


def remove_startup(package: Path) -> None:
    (package / "_startup.py").unlink()


@pytest.mark.parametrize("remove", [remove_package, remove_sources, remove_startup])
def test_a_removed_package_is_not_missed(remove: Callable[[Path], None], installed: Environment) -> None:
    assert installed.output(FINDERS) == "1"  # and leaves __pycache__ behind
    remove(installed.site_packages / "sglang_draft_ext")
    assert installed.output(FINDERS) == "0"
    assert installed.output("import sglang", **CONFIGURED) == "sglang runs"


@pytest.mark.parametrize("name", ["__init__.py", "_finder.py", "_activation.py", "hooks.py"])
@pytest.mark.parametrize("text", ["if damaged(:\n", "import no_such_module\n", None])
def test_a_damaged_package_is_inert_unless_it_is_asked_for(
    name: str, text: str | None, installed: Environment
) -> None:
    path = installed.site_packages / "sglang_draft_ext" / name
    if text is None:
        path.unlink()
        if name == "__init__.py":
            pytest.skip("then it is a namespace package, which works")
    else:
        path.write_text(text)

    assert installed.output(IMPORT_TWICE) == "sglang runs"
    assert installed.output(IMPORT_TWICE, SGLANG_DRAFT_EXT_DISABLE="1", **CONFIGURED) == "sglang runs"
    refused = installed.output(IMPORT_TWICE, **CONFIGURED).split("\n")
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("ImportError sglang-draft-ext")
        assert "SGLANG_DRAFT_EXT_DISABLE=1" in line


def test_a_damaged_startup_file_is_reported_and_python_goes_on(installed: Environment) -> None:
    (installed.site_packages / "sglang_draft_ext" / "_startup.py").write_text("if damaged(:\n")
    done = installed.run("-c", "print('goes on')")
    assert done.stdout == "goes on\n"
    assert "sglang_draft_ext" in done.stderr
    assert "SyntaxError" in done.stderr


# Something else has the name

SHADOWS = {
    "package": {"sglang_draft_ext/__init__.py": "print('not ours')\n"},
    "package with the same module": {
        "sglang_draft_ext/__init__.py": "print('not ours')\n",
        "sglang_draft_ext/_startup.py": "print('not ours')\n",
    },
    "module": {"sglang_draft_ext.py": "print('not ours')\n"},
    "folder": {"sglang_draft_ext/notes.txt": ""},
}
WHICH = "import sglang_draft_ext.hooks; print(sglang_draft_ext.hooks.__file__)"


@pytest.mark.parametrize("shadow", SHADOWS)
@pytest.mark.parametrize("pythonpath", [None, ".", "absolute"], ids=["cwd", "relative", "absolute"])
def test_a_shadow_is_not_run(
    shadow: str, pythonpath: str | None, installed: Environment, tmp_path: Path
) -> None:
    folder = tmp_path / "shadow"
    write_files(folder, SHADOWS[shadow])
    variables = (
        {} if pythonpath is None else {"PYTHONPATH": str(folder) if pythonpath == "absolute" else pythonpath}
    )
    assert installed.output(FINDERS, cwd=folder, **variables) == "1"
    # The working directory comes first on sys.path here.
    assert installed.output("import sglang", cwd=folder, **variables).split("\n") == [
        "activated",
        "sglang runs",
    ]
    assert installed.output(WHICH, cwd=folder, **variables).startswith(str(installed.site_packages))


def test_of_two_copies_the_one_beside_the_line_runs(installed: Environment, tmp_path: Path) -> None:
    lay_out_package(tmp_path / "copy")
    assert installed.output(FINDERS, PYTHONPATH=str(tmp_path / "copy")) == "1"
    assert installed.output(WHICH, PYTHONPATH=str(tmp_path / "copy")).startswith(str(installed.site_packages))


def test_without_the_line_the_package_is_an_ordinary_one(installed: Environment, tmp_path: Path) -> None:
    lay_out_package(tmp_path / "copy")
    (installed.site_packages / PTH.name).unlink()
    (installed.site_packages / START.name).unlink()
    assert installed.output(FINDERS, PYTHONPATH=str(tmp_path / "copy")) == "0"
    assert installed.output(WHICH, PYTHONPATH=str(tmp_path / "copy")).startswith(str(tmp_path / "copy"))
