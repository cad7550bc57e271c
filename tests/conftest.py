import builtins
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings

settings.register_profile("opencrate", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("opencrate")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background: then Ctrl-C would reach nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    interpreted = item.get_closest_marker("interpreted") and os.environ.get("TRITON_INTERPRET") == "1"
    if item.get_closest_marker("gpu") and not interpreted and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Interpreted kernels that were all skipped are not tested: that is no success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # xdist's workers have none
    if os.environ.get("TRITON_INTERPRET") == "1" and reporter and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def rng() -> torch.Generator:
    """Random numbers that are the same in every run."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def without_matplotlib(monkeypatch):
    """As on a machine that does not have it."""
    importing = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return importing(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in place of every repository of the Hub."""
    folder = tmp_path / "hub"

    class Hub:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def file_exists(self, repo_id, filename, revision=None):
            return (folder / filename).exists()

        def hf_hub_download(self, repo_id, filename, revision=None):
            return str(folder / filename)

        def upload_folder(self, folder_path, **_):
            shutil.copytree(folder_path, folder, dirs_exist_ok=True)

    monkeypatch.setattr("opencrate.checkpoints.save.HfApi", Hub)
    return folder
