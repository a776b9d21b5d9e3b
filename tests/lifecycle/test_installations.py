"""Every way to install, to change what is installed, and to run without installing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipapp
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from environments import (
    FAKE_SGLANG,
    FINDERS,
    PTH,
    ROOT,
    START,
    Environment,
    build,
    clean_environ,
    unpack,
    write_files,
)
from lifecycle.test_pythons import ASKING, CHOICES
from unit.fake_release import write

VERSION = "import sglang_draft_ext; print(sglang_draft_ext.__version__)"
WHERE = "import sglang_draft_ext._startup as startup; print(startup.__file__)"
BY_HAND = "from sglang_draft_ext import _startup; _startup.run(); "
SITECUSTOMIZE = str(ROOT / "sitecustomize")


@pytest.fixture
def all_wheels(wheels: dict[str, Path], versions: dict[str, Path]) -> dict[str, Path]:
    return {"this": wheels["from the tree"], "editable": wheels["editable"], **versions}


@pytest.mark.parametrize(
    "steps",
    [
        ["0.0.1", "this"],
        ["9.9.9", "this"],
        ["this", "this"],
        ["editable", "this"],
        ["this", "editable"],
    ],
    ids=" then ".join,
)
def test_what_is_installed_last_is_all_there_is(
    steps: list[str], all_wheels: dict[str, Path], bare: Environment, tmp_path: Path
) -> None:
    bare.write({"neighbour.py": ""})  # pip would remove an empty site-packages too
    before = bare.listing()
    for step in steps:
        bare.pip("install", "--no-deps", "--no-index", "--force-reinstall", all_wheels[step])
        assert bare.output(FINDERS) == "1"
    last = steps[-1]
    assert bare.output(VERSION) == (last if last[0].isdigit() else "0.1.0")
    where = ROOT if last == "editable" else bare.site_packages
    assert bare.output(WHERE).startswith(f"{where}/sglang_draft_ext/")

    fresh = Environment.create(tmp_path / "fresh")
    fresh.write({"neighbour.py": ""})
    fresh.pip("install", "--no-deps", "--no-index", all_wheels[last])
    assert fresh.output(VERSION) == bare.output(VERSION)

    def files(environment: Environment) -> set[str]:
        return {name for name in environment.listing() if "__pycache__" not in name}

    assert files(bare) == files(fresh)
    assert (bare.site_packages / PTH.name).read_text() == (fresh.site_packages / PTH.name).read_text()

    bare.pip("uninstall", "--yes", "sglang-draft-ext")
    assert bare.listing() == before
    assert bare.output(FINDERS) == "0"


def test_an_editable_install_survives_the_loss_of_its_tree(
    bare: Environment, sdist: Path, tmp_path: Path
) -> None:
    source = unpack(sdist, tmp_path)
    bare.pip("install", "--no-deps", "--no-index", build("editable", source, tmp_path / "out"))
    assert bare.output(FINDERS) == "1"
    source.rename(tmp_path / "elsewhere")
    assert bare.output(FINDERS) == "0"


def test_the_oldest_wrapt_that_is_allowed_is_enough(wheels: dict[str, Path], bare: Environment) -> None:
    with zipfile.ZipFile(wheels["from the tree"]) as built:
        (path,) = (name for name in built.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(built.read(path).decode())
    (required,) = (line for line in headers.get_all("Requires-Dist") or [] if line.startswith("wrapt"))
    oldest = required.partition(">=")[2]
    bare.pip("install", f"wrapt=={oldest}.*", wheels["from the tree"])
    uses = "import sglang_draft_ext.multistep, sglang_draft_ext.hooks; sglang_draft_ext.hooks.activate()"
    assert bare.output(f"{uses}; import wrapt; print(wrapt.__version__)", "-W", "error").startswith(oldest)


# Beside the environment


@pytest.fixture
def open_environment(tmp_path: Path) -> Environment:
    """An environment that also sees the user's packages, which are in a folder of the test's own."""
    return Environment.create(tmp_path / "open", system_site_packages=True)


def test_the_user_site(open_environment: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    user = {"PYTHONUSERBASE": str(tmp_path / "user")}
    open_environment.pip("install", "--user", "--no-deps", "--no-index", wheels["from the tree"], **user)
    assert not (open_environment.site_packages / PTH.name).exists()
    assert open_environment.output(FINDERS, **user) == "1"
    assert open_environment.output(WHERE, **user).startswith(user["PYTHONUSERBASE"])
    for flag in ("-s", "-I"):  # neither sees the user's packages
        assert open_environment.output(FINDERS, flag, **user) == "0"


def test_of_two_installed_copies_the_first_on_the_path_runs(
    open_environment: Environment, all_wheels: dict[str, Path], tmp_path: Path
) -> None:
    user = {"PYTHONUSERBASE": str(tmp_path / "user")}
    open_environment.pip("install", "--user", "--no-deps", "--no-index", all_wheels["0.0.1"], **user)
    open_environment.pip(
        "install", "--no-deps", "--no-index", "--ignore-installed", all_wheels["9.9.9"], **user
    )
    assert open_environment.output(FINDERS, **user) == "1"
    assert open_environment.output(VERSION, **user) == "9.9.9"
    assert open_environment.output(WHERE, **user).startswith(str(open_environment.site_packages))
    assert open_environment.output(VERSION, "-s", **user) == "9.9.9"


def test_a_target_folder_needs_the_sitecustomize(
    bare: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    bare.pip("install", "--no-deps", "--no-index", "--target", target, wheels["from the tree"])
    assert {path.name for path in target.iterdir()} >= {PTH.name, START.name}
    # Python reads start-up files in site-packages, not in the folders of PYTHONPATH.
    assert bare.output(FINDERS, PYTHONPATH=str(target)) == "0"
    assert bare.output(FINDERS, PYTHONPATH=f"{SITECUSTOMIZE}:{target}") == "1"
    assert bare.output(f"import site; site.addsitedir({str(target)!r}); {FINDERS}") == "1"


# Where nothing can be written


def read_only(folder: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run *command* in a mount namespace in which *folder* cannot be written, not even by root."""
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, *map(str, (folder, *command))],
        check=False,
        env=clean_environ(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
def test_a_read_only_file_system(
    compiled: bool, bare: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    if shutil.which("unshare") is None or read_only(tmp_path, "true").returncode != 0:
        pytest.skip("this machine does not let a test mount a folder read-only")
    bare.pip("install", *([] if compiled else ["--no-compile"]), wheels["from the tree"])
    release = write(tmp_path / "release")
    before = bare.listing()
    refused = read_only(tmp_path, "touch", bare.site_packages / "file")
    assert "Read-only file system" in refused.stderr
    done = read_only(tmp_path, bare.python, "-c", CHOICES, PYTHONPATH=str(release), **ASKING)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    done = read_only(tmp_path, bare.python, "-c", FINDERS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert bare.listing() == before


def test_the_wheel_itself_on_the_path(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    bare.pip("install", "wrapt")
    wheel, release = wheels["from the tree"], write(tmp_path / "release")
    path = {"PYTHONPATH": f"{wheel}:{release}"}
    assert bare.output(FINDERS, **path) == "0"
    assert bare.run("-c", BY_HAND + CHOICES, **path, **ASKING).stdout == "True\n"
    path = {"PYTHONPATH": f"{SITECUSTOMIZE}:{wheel}:{release}"}
    assert bare.run("-c", CHOICES, **path, **ASKING).stdout == "True\n"


def test_a_zipapp(bare: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    bare.pip("install", "wrapt")
    source, release = tmp_path / "source", write(tmp_path / "release")
    with zipfile.ZipFile(wheels["from the tree"]) as wheel:
        wheel.extractall(source)
    write_files(source, {"__main__.py": BY_HAND + CHOICES})
    archive = tmp_path / "app.pyz"
    zipapp.create_archive(source, archive)
    assert bare.run(archive, PYTHONPATH=str(release), **ASKING).stdout == "True\n"
    assert bare.run(archive, PYTHONPATH=str(release)).stdout == "False\n"


def test_the_start_file_as_python_3_15_reads_it(bare: Environment, wheels: dict[str, Path]) -> None:
    """PEP 829: lines `package.module:callable`, resolved by name once all paths are set up; the .pth line is not run."""
    bare.pip("install", "--no-deps", "--no-index", wheels["from the tree"])
    bare.write(FAKE_SGLANG)
    (bare.site_packages / PTH.name).unlink()
    reader = f"""
import pkgutil
for line in open({str(bare.site_packages / START.name)!r}, encoding="utf-8-sig"):
    line = line.strip()
    if line and not line.startswith("#"):
        module, colon, function = line.partition(":")
        assert module and colon and function
        pkgutil.resolve_name(line)()
"""
    expected = "1" if sys.version_info >= (3, 15) else "0"
    assert bare.output(FINDERS) == expected
    assert bare.output(reader + FINDERS) == "1"
    assert bare.output(reader * 2 + FINDERS) == "1"
    assert bare.output(reader + FINDERS, SGLANG_DRAFT_EXT_DISABLE="1") == "0"
