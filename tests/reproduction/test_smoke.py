"""All of `python -m reproduction`, on the embedded digits."""

import json
import re
import subprocess
import sys

import pytest

from reproduction.plan import PARTS
from reproduction.scales import plan_for


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_everything_runs_on_digits(tmp_path):
    command = [sys.executable, "-m", "reproduction", "--scale", "smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert rows.keys() == {run.key for run in plan_for("smoke", {}).runs}
    assert all(0 <= row["top1"] <= 100 for row in rows.values())

    document = (tmp_path / "RESULTS.md").read_text()
    for part, words in PARTS.items():
        if part == "masks":  # digits have none
            continue
        assert words in document.lower() or words in document, part
    ours = [line for line in document.splitlines() if line.startswith("|") and "paper" not in line]
    assert not [line for line in ours if re.search(r"^\| (digits|CRATE|ViT)[^|]*\| –", line)]
    assert "**not run**" not in document
    figures = re.findall(r"!\[.*?\]\((.*?)\)", document)
    assert len(figures) == 12
    for figure in figures:
        content = (tmp_path / figure).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5000
