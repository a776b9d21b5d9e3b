"""The README's first command, as far as one shape of the draft tree."""

import json
import subprocess
import sys

import _environment


def test_the_demo_works(servers, tmp_path):
    report = tmp_path / "demo.json"
    command = [sys.executable, "scripts/demo", "--release", servers.release, "--topk", "1", "--json", report]
    done = subprocess.run(command, cwd=_environment.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict: works" in done.stdout
    told = json.loads(report.read_text())
    assert all(check["passed"] for check in told["checks"])
    served = [run for run in told["runs"] if "tokens" in run]
    assert [run["tokens"] for run in served] == [served[0]["tokens"]] * 3
    assert [run.get("accept_length") for run in served] == [None, 4.0, 4.0]
