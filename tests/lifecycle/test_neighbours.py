"""Others that reach into a process at its start, or into its imports: both they and this package still work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from environments import ROOT, Environment, write_files
from lifecycle.test_pythons import ASKING, CHOICES
from unit.fake_release import write

PEERS = ROOT / "scripts" / "requirements" / "neighbours.txt"
# Quiet and on their own: nothing is sent anywhere.
VARIABLES = {
    "DD_TRACE_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_CRASHTRACKING_ENABLED": "false",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
}
# A patcher of the kind that a user writes for autowrapt: it wraps one function that this package wraps as well.
OTHER_PATCHER = {
    "other_patcher.py": """
import wrapt

def patch(module):
    def counted(wrapped, instance, args, kwargs):
        module.counted = getattr(module, "counted", 0) + 1
        return wrapped(*args, **kwargs)
    wrapt.wrap_function_wrapper(module, "prepare_server_args", counted)
""",
    "other_patcher-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: other-patcher\nVersion: 1\n",
    "other_patcher-1.dist-info/entry_points.txt": "[other]\nsglang.srt.server_args = other_patcher:patch\n",
}
PARSED = "from sglang.srt import server_args; server_args.prepare_server_args([]); print(server_args.counted)"
OTHER_SITECUSTOMIZE = "import sys; sys.other_sitecustomize = True\n"


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """One environment with all of them and this package, and with a tiny SGLang."""
    environment = Environment.create(tmp_path_factory.mktemp("crowd") / "environment")
    environment.pip("install", "--only-binary", ":all:", wheels["from the tree"], "-r", PEERS)
    environment.write(OTHER_PATCHER)
    write(environment.site_packages)
    return environment


def bootstrap(crowd: Environment, peer: str) -> str:
    """The folder that *peer* puts on PYTHONPATH to be started."""
    folders = {
        "ddtrace": "ddtrace/bootstrap",
        "opentelemetry": "opentelemetry/instrumentation/auto_instrumentation",
    }
    folder = crowd.site_packages / folders[peer]
    assert (folder / "sitecustomize.py").is_file()
    return str(folder)


def patched(crowd: Environment, code: str, **variables: str) -> list[str]:
    """What *code* prints after a line that says that SGLang is patched."""
    done = crowd.run("-c", f"{CHOICES}\n{code}", **VARIABLES, **ASKING, **variables)
    first, *rest = done.stdout.splitlines()
    assert first == "True", done.stderr
    return rest


def test_coverage(crowd: Environment, tmp_path: Path) -> None:
    settings = tmp_path / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {tmp_path / 'data'}\nsource = sglang\n")
    assert patched(crowd, "", COVERAGE_PROCESS_START=str(settings)) == []
    report = crowd.run("-m", "coverage", "report", "--rcfile", settings, "--include", "*/choices.py")
    assert "choices.py" in report.stdout
    assert "100%" in report.stdout


def test_a_patcher_on_wrapt(crowd: Environment) -> None:
    assert patched(crowd, PARSED, AUTOWRAPT_BOOTSTRAP="other") == ["1"]


@pytest.mark.parametrize("claw", ["beartype_all()", "beartype_package('sglang')"])
def test_beartype_claw(claw: str, crowd: Environment) -> None:
    code = f"import beartype.claw; beartype.claw.{claw}; {CHOICES}; "
    code += "from sglang.srt import server_args; print(type(server_args.__loader__).__module__)"
    done = crowd.run("-c", code, **ASKING)
    patched, loader = done.stdout.splitlines()
    assert patched == "True"
    assert loader.startswith("beartype.claw")


@pytest.mark.parametrize("peer", ["ddtrace", "opentelemetry"])
@pytest.mark.parametrize("before", [False, True], ids=["alone", "after ours"])
def test_a_sitecustomize(peer: str, before: bool, crowd: Environment) -> None:
    folders = [str(ROOT / "sitecustomize")] if before else []
    path = ":".join([*folders, bootstrap(crowd, peer)])
    assert patched(crowd, f"import sys; print({peer!r} in sys.modules)", PYTHONPATH=path) == ["True"]


def test_all_at_once(crowd: Environment, tmp_path: Path) -> None:
    write_files(tmp_path / "other", {"sitecustomize.py": OTHER_SITECUSTOMIZE})
    settings = tmp_path / "coveragerc"
    settings.write_text(f"[run]\ndata_file = {tmp_path / 'data'}\nsource = sglang\n")
    shutil.copytree(ROOT / "sitecustomize", tmp_path / "ours")
    folders = (tmp_path / "ours", bootstrap(crowd, "ddtrace"), tmp_path / "other")
    code = f"{PARSED}\nimport sys; print('ddtrace' in sys.modules, sys.other_sitecustomize)"
    said = patched(
        crowd,
        code,
        PYTHONPATH=":".join(map(str, folders)),
        AUTOWRAPT_BOOTSTRAP="other",
        COVERAGE_PROCESS_START=str(settings),
    )
    assert said == ["1", "True True"]
    assert (tmp_path / "data").exists()
