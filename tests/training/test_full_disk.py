"""A disk of every size: a run on it ends well or with one sentence, and goes on when there is room."""

import re
import subprocess

import pytest

from tests.runs import SMALL, command
from tests.training.test_killing import require_equal_runs

ARGUMENTS = [
    *(argument for argument in SMALL if argument != "--no-tensorboard"),
    *("--schedule.epochs", "3", "--keep-epochs", "1", "--optim.ema", "0.5"),
]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    code, printed = command([*ARGUMENTS, "--out", folder / "run"], folder)
    assert code == 0, printed
    return folder / "run"


def mount(folder, *options):
    return subprocess.run(["mount", *options, folder], capture_output=True).returncode == 0


def filled(folder, log_folder, kilobytes, untouched):
    """Run on a disk of this size; once it was full, run again with room. Whether it was full."""
    folder.mkdir()
    if not mount(folder, "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs"):
        pytest.skip("mounting a small disk needs root")
    try:
        code, printed = command([*ARGUMENTS, "--out", folder / "run"], log_folder)
        assert "Traceback" not in printed, (kilobytes, printed)
        if code != 0:
            assert code == 2, (kilobytes, printed)
            last = printed.splitlines()[-1]
            assert re.search(r"opencrate: .*(disk is full|No space left on device)", last), (kilobytes, printed)
            assert mount(folder, "-o", "remount,size=64m")
            again, printed = command([*ARGUMENTS, "--out", folder / "run"], log_folder)
            assert again == 0, (kilobytes, printed)
        require_equal_runs(untouched, folder / "run")
        files = [{file.name for file in (run / "run").rglob(".*")} for run in (untouched.parent, folder)]
        assert files[0] == files[1], kilobytes
        return code != 0
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_disks_of_sixty_sizes(tmp_path, untouched):
    whole = sum(file.stat().st_size for file in untouched.rglob("*")) // 1024
    sizes = [4 + round(whole * 1.3) * i // 60 for i in range(60)]
    full = [filled(tmp_path / f"disk-{size}", tmp_path, size, untouched) for size in sizes]
    assert full[0]
    assert not full[-1]
    assert sum(full) >= 20


@pytest.mark.timeout(120)
def test_a_disk_for_half_a_run(tmp_path, untouched):
    whole = sum(file.stat().st_size for file in untouched.rglob("*")) // 1024
    assert filled(tmp_path / "disk", tmp_path, whole // 2, untouched)
