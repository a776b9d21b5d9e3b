"""The example provider's own tests, in the environment that its README tells a vendor to make."""

import subprocess
import sys

import _environment
from _server import run_group

EXAMPLE = _environment.ROOT / "examples" / "imaginary-accelerator"


def test_its_own_tests_pass(servers, tmp_path):
    make = [sys.executable, _environment.SCRIPTS / "environment", servers.release, EXAMPLE]
    python = subprocess.check_output(make, text=True).strip()
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "tests"]
    code, output = run_group(command, tmp_path / "log", timeout=600)
    assert code == 0, output[-3000:]
