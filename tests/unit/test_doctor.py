"""The doctor on a good machine and on broken ones, each made in an environment of its own: what is wrong is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import wrapt
from environments import PACKAGE, PTH, START, Environment, clean_environ, write_files
from unit.fake_release import python, write

from sglang_draft_ext import __version__

pytestmark = pytest.mark.unit

ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
RENAMED = {"srt/speculative/draft_utils.py": ("def _create_backend", "def _make_backend")}
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n"


@dataclass(frozen=True)
class Machine:
    """An environment with the package as its wheel lays it out, wrapt, and a tiny SGLang."""

    environment: Environment

    @property
    def site(self) -> Path:
        return self.environment.site_packages

    def examine(self, *flags: str, cwd: Path | None = None, **variables: str) -> dict:
        """The doctor's report; `ok` and the exit code must say the same."""
        done = subprocess.run(
            [self.environment.python, *flags, "-m", "sglang_draft_ext", "doctor", "--json"],
            check=False,
            cwd=cwd or self.environment.folder,
            env=clean_environ(**variables),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert done.returncode == (0 if report["ok"] else 1)
        return report

    def found(self, *flags: str, cwd: Path | None = None, **variables: str) -> dict[str, dict]:
        """The findings by name."""
        return {f["name"]: f for f in self.examine(*flags, cwd=cwd, **variables)["findings"]}


def lay_out_wheel(folder: Path, version: str = __version__) -> None:
    """What pip makes of this package's wheel."""
    shutil.copytree(PACKAGE, folder / "sglang_draft_ext", ignore=shutil.ignore_patterns("__pycache__"))
    records = []
    for file in (PTH, START):
        shutil.copy(file, folder)
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        records.append(f"{file.name},sha256={digest},{file.stat().st_size}\n")
    write_files(
        folder / f"sglang_draft_ext-{version}.dist-info",
        {
            "METADATA": METADATA.format("sglang-draft-ext", version),
            "RECORD": "".join(records),
            "entry_points.txt": "[sglang.srt.plugins]\nsglang_draft_ext = sglang_draft_ext.plugin:load\n",
        },
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(Environment.create(tmp_path / "venv"))
    shutil.copytree(Path(wrapt.__file__).parent, made.site / "wrapt")
    lay_out_wheel(made.site)
    write(made.site)
    write_files(made.site / "sglang-9.9.9.dist-info", {"METADATA": METADATA.format("sglang", "9.9.9")})
    return made


# A good machine


def test_a_good_machine(machine):
    report = machine.examine(**ASKING, SGLANG_DRAFT_EXT_SELECT="prefill=triton")
    assert report["ok"]
    assert [finding["name"] for finding in report["findings"]] == ["untested-release"]
    assert report["installation"]["running"]
    assert [(Path(f["path"]).name, f["obeyed"]) for f in report["installation"]["start_files"]] == [
        (PTH.name, True),
        (START.name, False),
    ]
    assert report["sglang"] == {"version": "9.9.9", "path": str(machine.site / "sglang"), "tested": False}
    assert {point["state"] for point in report["points"]} == {"matches"}
    (backend,) = report["backends"]
    assert (backend["attention"], backend["decode"]) == ("provider:attention", "provider:Steps")
    assert backend["provider"] == {"distribution": None, "file": str(machine.site / "provider.py")}
    assert [(role["backend"], role["why"]) for role in report["selection"]] == [
        ("triton", "SGLANG_DRAFT_EXT_SELECT"),
        (None, "a flag, else the target"),
        (None, "a flag, else the target"),
    ]
    assert report["child"]["package"] == str(machine.site / "sglang_draft_ext")
    assert report["child"]["variables"] == report["variables"]


def test_the_report_reads_the_same_as_the_data(machine):
    done = machine.environment.run("-m", "sglang_draft_ext", "doctor", **ASKING)
    for said in (
        f"sglang-draft-ext {__version__}",
        "SGLang 9.9.9, not tested",
        "accel    provider:attention",
        str(machine.site / "provider.py"),
        "spawned process  sees the same",
        "untested-release",
        "nothing that would stop a launch",
    ):
        assert said in done.stdout
    assert "\033[" not in done.stdout, "no colours in a file"


def test_an_entry_point_is_resolved_to_its_distribution(machine):
    folder = machine.site / "vendor_accel-2.1.dist-info"
    write_files(
        folder,
        {
            "METADATA": METADATA.format("vendor-accel", "2.1"),
            "RECORD": "provider.py,,\n",
            "entry_points.txt": "[sglang_draft_ext.backends]\naccel = provider:BACKEND\n",
        },
    )
    (backend,) = machine.examine(SGLANG_DRAFT_EXT_BACKENDS="accel")["backends"]
    assert backend["provider"]["distribution"] == "vendor-accel 2.1"
    assert backend["attention"] == "provider:attention"


def test_neither_sglang_nor_torch_nor_a_provider_is_imported(machine):
    loud = "import sys; sys.stderr.write('IMPORTED'); raise ImportError"
    for name in ("sglang", "torch"):
        write_files(machine.site, {f"{name}/__init__.py": loud})
    code = "import sys\nfrom sglang_draft_ext.cli import main\nmain(['doctor', '--json'])\nprint('provider' in sys.modules)"
    done = machine.environment.run("-c", code, **ASKING)
    assert "IMPORTED" not in done.stderr
    assert done.stdout.endswith("False\n")


def test_what_a_provider_prints_is_not_in_the_report(machine):
    write_files(machine.site, {"loud.py": "print('hello')\ndef build(runner): ...\n"})
    assert machine.examine(SGLANG_DRAFT_EXT_BACKENDS="loud=loud:build")["ok"]


# Broken ones: the package


def test_without_its_start_up_files(machine):
    (machine.site / PTH.name).unlink()
    (machine.site / START.name).unlink()
    assert machine.found()["no-start-file"]["level"] == "problem"


def test_with_a_start_up_file_that_somebody_has_changed(machine):
    file = machine.site / PTH.name
    file.write_text(file.read_text() + "import os\n")
    found = machine.found()
    assert str(file) in found["start-file-changed"]["text"]
    assert "not-started" not in found


def test_with_a_start_up_file_that_does_nothing(machine):
    (machine.site / PTH.name).write_text("# nothing\n")
    assert {"not-started", "start-file-changed"} <= {*machine.found()}


def test_installed_in_a_folder_on_pythonpath(machine, tmp_path):
    target = tmp_path / "target"
    for path in [*machine.site.glob("sglang_draft_ext*")]:
        target.mkdir(exist_ok=True)
        shutil.move(path, target)
    found = machine.found(PYTHONPATH=str(target))
    assert "not in a site folder" in found["start-file-not-read"]["text"]


def test_a_python_that_leaves_out_start_up_files(machine):
    path = os.pathsep.join((str(machine.site),))
    assert "-S" in machine.found("-S", PYTHONPATH=path)["no-site"]["text"]


def test_a_folder_of_the_same_name_in_the_working_directory(machine, tmp_path):
    write_files(tmp_path / "work", {"sglang_draft_ext/__init__.py": '__version__ = "0.0.1"\n'})
    report = machine.examine(cwd=tmp_path / "work")
    (found,) = (f for f in report["findings"] if f["name"] == "shadowed")
    assert "version 0.0.1" in found["text"]
    assert str(machine.site) in found["text"], "what runs is the installed one"


def test_a_second_copy_later_on_the_path(machine, tmp_path):
    write_files(tmp_path / "other", {"sglang_draft_ext/__init__.py": "", "late.pth": ""})
    write_files(machine.site, {"later.pth": f"{tmp_path / 'other'}\n"})
    found = machine.found()
    assert str(tmp_path / "other") in found["second-copy"]["text"]


def test_installed_twice(machine, tmp_path):
    lay_out_wheel(tmp_path / "again", version="0.0.9")
    found = machine.found(PYTHONPATH=str(tmp_path / "again"))
    assert "0.0.9" in found["installed-twice"]["text"]


def test_metadata_of_another_version(machine):
    (folder,) = machine.site.glob("sglang_draft_ext-*.dist-info")
    (folder / "METADATA").write_text(METADATA.format("sglang-draft-ext", "0.0.2"))
    assert "0.0.2" in machine.found()["version-differs"]["text"]


def test_a_finder_in_front(machine):
    hook = "import sys; from importlib.machinery import PathFinder; sys.meta_path.insert(0, PathFinder)\n"
    write_files(machine.site, {"zz_other.pth": hook})
    assert "PathFinder" in machine.found()["finder-in-front"]["text"]


def test_started_by_something_else(machine):
    for name in (PTH.name, START.name):
        (machine.site / name).unlink()
    write_files(
        machine.site,
        {
            "usercustomize.py": "",
            "sitecustomize.py": "from sglang_draft_ext import _startup; _startup.run()\n",
        },
    )
    found = machine.found()
    assert found["started-otherwise"]["level"] == "note"
    assert "no-start-file" not in found


# Broken ones: SGLang


def test_without_sglang(machine):
    shutil.rmtree(machine.site / "sglang")
    assert machine.found(**ASKING)["no-sglang"]["level"] == "problem"


def test_with_something_else_called_sglang(machine, tmp_path):
    write_files(tmp_path / "work", {"sglang/__init__.py": "", "sglang/notes.txt": ""})
    found = machine.found(cwd=tmp_path / "work", **ASKING)
    assert str(tmp_path / "work" / "sglang") in found["sglang-incomplete"]["text"]


def test_with_a_damaged_sglang(machine):
    (machine.site / "sglang" / "srt" / "speculative" / "draft_utils.py").write_text("class (\n")
    assert "sglang-unreadable" in machine.found(**ASKING)


@pytest.mark.parametrize(("environ", "level"), [({}, "note"), (ASKING, "problem")], ids=["idle", "asked"])
def test_with_a_release_of_another_shape(machine, environ, level):
    write(machine.site, RENAMED)
    found = machine.found(**environ)["hook-mismatch"]
    assert found["level"] == level
    assert "draft maps (sglang.srt.speculative.draft_utils:" in found["text"]


# Broken ones: the environment


@pytest.mark.parametrize(
    ("name", "environ", "said"),
    [
        ("backend-refused", {"BACKENDS": "torch_natve"}, "did you mean 'torch_native'"),
        ("backend-refused", {"BACKENDS": "accel=missing:BACKEND"}, "No module named 'missing'"),
        ("malformed-variable", {"BACKENDS": "a,a"}, "is named twice"),
        ("malformed-variable", {"SELECT": "verify=triton"}, "is not a role"),
        ("malformed-variable", {"DISABLE": "draft-map"}, "did you mean 'draft-maps'"),
        ("selection-refused", {"SELECT": "decode=tritn"}, "did you mean 'triton'"),
        ("hook-switched-off", {"BACKENDS": "wave", "DISABLE": "draft-maps"}, "draft-maps is switched off"),
    ],
)
def test_what_a_launch_would_refuse(machine, name, environ, said):
    found = machine.found(**{f"SGLANG_DRAFT_EXT_{key}": value for key, value in environ.items()})
    assert found[name]["level"] == "problem"
    assert said in found[name]["text"]


def test_one_bad_name_does_not_hide_another(machine):
    report = machine.examine(SGLANG_DRAFT_EXT_BACKENDS="nobody,accel=provider:BACKEND,x=missing:y")
    assert [bool(backend["error"]) for backend in report["backends"]] == [True, False, True]
    assert sum(f["name"] == "backend-refused" for f in report["findings"]) == 2


def test_a_misspelt_variable(machine):
    found = machine.found(SGLANG_DRAFT_EXT_BACKEND="wave")["unknown-variable"]
    assert found["level"] == "note"
    assert "did you mean SGLANG_DRAFT_EXT_BACKENDS" in found["text"]


def test_switched_off_although_something_is_asked(machine):
    report = machine.examine(SGLANG_DRAFT_EXT_BACKENDS="nobody", SGLANG_DRAFT_EXT_DISABLE="1")
    assert report["ok"], "a launch is SGLang's own affair then"
    (found,) = (f for f in report["findings"] if f["name"] == "switched-off")
    assert "although SGLANG_DRAFT_EXT_BACKENDS asks something of it" in found["text"]


# Broken ones: other processes, other packages

IN_CHILDREN = "import sys\nif '--multiprocessing-fork' in sys.orig_argv:\n    "


def test_children_that_lose_the_variables(machine):
    write_files(
        machine.site,
        {"sitecustomize.py": IN_CHILDREN + "import os; del os.environ['SGLANG_DRAFT_EXT_BACKENDS']\n"},
    )
    found = machine.found(**ASKING)["child-differs"]
    assert "another variables: nothing there" in found["text"]


def test_children_that_do_not_start_the_package(machine):
    write_files(machine.site, {"sitecustomize.py": IN_CHILDREN + "sys.meta_path.pop(0)\n"})
    assert "another running: False there, True here" in machine.found(**ASKING)["child-differs"]["text"]


def test_children_that_die(machine):
    write_files(machine.site, {"sitecustomize.py": IN_CHILDREN + "import os; os._exit(7)\n"})
    assert "exit code 7" in machine.found(**ASKING)["child-fails"]["text"]


PATCHER = """
def load():
    import sglang.srt.speculative.draft_utils as module
    module.DraftBackendFactory.create_decode_backend = None
"""


def test_a_plugin_that_patches_the_same_place(machine):
    write_files(
        machine.site,
        {
            "rival/__init__.py": "",
            "rival/plugin.py": PATCHER,
            "harmless.py": "from sglang.srt.speculative import draft_utils\n"
            "draft_utils.DraftBackendFactory.create_decode_backend()\n",
            "rival-1.0.dist-info/METADATA": METADATA.format("rival", "1.0"),
            "rival-1.0.dist-info/entry_points.txt": "[sglang.srt.plugins]\n"
            "rival = rival.plugin:load\nharmless = harmless:load\n",
        },
    )
    report = machine.examine()
    assert report["ok"]
    touched = {n["name"]: n["touches"] for n in report["neighbours"] if n["kind"] == "SGLang plugin"}
    target = "sglang.srt.speculative.draft_utils:DraftBackendFactory.create_decode_backend"
    assert touched == {
        "rival of rival 1.0 (rival.plugin:load)": [target],
        "harmless of rival 1.0 (harmless:load)": [],
    }
    (found,) = (f for f in report["findings"] if f["name"] == "same-target")
    assert target in found["text"]


def test_a_pth_file_that_patches_the_same_place(machine):
    write_files(machine.site, {"rival.pth": "import rival\n", "rival.py": PATCHER, "paths.pth": "/nowhere\n"})
    neighbours = machine.examine()["neighbours"]
    assert [Path(n["name"]).name for n in neighbours if n["kind"] == ".pth file"] == ["rival.pth"]
    assert neighbours[0]["touches"]


# On a terminal


@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_only_where_somebody_looks(machine, environ, coloured):
    primary, secondary = os.openpty()
    try:
        process = subprocess.Popen(
            [machine.environment.python, "-m", "sglang_draft_ext", "doctor"],
            stdout=secondary,
            stderr=subprocess.PIPE,
            env={**clean_environ(TERM="xterm"), **environ},
            cwd=machine.environment.folder,
        )
        os.close(secondary)
        said = b""
        while True:
            try:
                part = os.read(primary, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            said += part
        assert process.wait(timeout=60) == 0, process.stderr.read()
        process.stderr.close()
    finally:
        os.close(primary)
    assert (b"\033[" in said) is coloured


def test_without_a_release_the_other_commands_say_so(tmp_path):
    code = "import sys; from sglang_draft_ext.cli import main; sys.exit(main({}))"
    for command in ("['backends']", "['explain', '--model-path', 'x']"):
        done = python(tmp_path, code.format(command))
        assert done.returncode == 2
        assert "SGLang is not installed" in done.stderr
