"""Run timm's own model tests on every crate_* model: `make timm-suite`.

The tests are in timm's source distribution and not in its wheel, so the one of the installed version is fetched once.
Those of TorchScript are left out: torch deprecates it, and networks are exported by torch.export.
The same file is the pytest plugin that makes `timm.list_models` answer with our models, in every worker.
"""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import timm

import opencrate  # noqa: F401 (registers crate_*)

CACHE = Path(__file__).parents[1] / ".cache" / "timm-suite"
TESTS_PER_MODEL = 8  # at least: newer versions have more


def our_models(
    filter: str | list[str] = "",
    exclude_filters: str | list[str] = "",
    pretrained: bool = False,
    **_: Any,
) -> list[str]:
    """Our models wherever timm lists a ViT: among those whose features are tokens, with no weights to fetch."""
    listed = (not filter or "vit_*" in filter) and "vit_*" not in exclude_filters
    return timm.models.list_models("crate_*") if listed and not pretrained else []


def pytest_configure() -> None:
    timm.list_models = our_models
    timm.list_pretrained = lambda *_, **__: []


def fetch() -> Path:
    folder = CACHE / f"timm-{timm.__version__}"
    if not folder.is_dir():
        requirement = f"timm=={timm.__version__}"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps"]
        subprocess.run([*download, "--dest", str(CACHE), requirement], check=True)
        with tarfile.open(folder.with_name(folder.name + ".tar.gz")) as archive:
            archive.extractall(CACHE, filter="data")
    return folder


class Count:
    passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent))  # where the workers find this file as a plugin
    folder, count = fetch(), Count()
    config = ["-c", str(folder / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    plugin = [
        "-p",
        "timm_suite",
        "-n",
        "auto",
        "-q",
        "-k",
        "crate_ and not torchscript",
    ]  # TorchScript is given up for torch.export
    code = pytest.main([*config, *plugin, str(folder / "tests" / "test_models.py")], plugins=[count])
    expected = TESTS_PER_MODEL * len(timm.models.list_models("crate_*"))
    if code == 0 and count.passed < expected:
        print(f"timm's suite ran {count.passed} tests on our models, at least {expected} were expected")
        return 1
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
