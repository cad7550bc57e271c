"""Help texts do not import torch and timm, which take seconds; and timm knows crate_* all the same."""

import subprocess
import sys
import time

import pytest

HELPS = [
    ["--help"],
    ["train", "--help"],
    ["train", "digits", "--help"],
    ["finetune", "pets", "--help"],
    ["eval", "--help"],
    ["eval", "nowhere", "--help"],
    ["eval", "nowhere", "--recipe", "digits", "--help"],
    ["audit", "--help"],
    ["analyze", "--help"],
    ["explore", "--help"],
    ["pack", "--help"],
    ["describe", "--help"],
    ["convert", "--help"],
    ["recipes", "--help"],
    ["recipes"],
    ["--version"],
]
LOOK = (
    "import sys\n"
    "from opencrate.cli import main\n"
    "try:\n"
    "    main(sys.argv[1:])\n"
    "finally:\n"
    "    print(sorted({'torch', 'timm', 'torchvision'} & sys.modules.keys()), file=sys.stderr)\n"
)


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_nothing_heavy_is_imported_for_a_help_text(arguments):
    done = python(LOOK, *arguments)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    if arguments[-1] == "--help":
        assert done.stdout.startswith("usage: opencrate ")


def test_help_takes_a_small_share_of_the_time_of_importing_torch_and_timm():
    """On an idle machine 0.2 s; a busy one slows both, so the least of a few tries is compared."""

    def least(code, *words, tries):
        times = []
        for _ in range(tries):
            begun = time.perf_counter()
            assert python(code, *words).returncode == 0
            times.append(time.perf_counter() - begun)
        return min(times)

    heavy = least("import torch, timm", tries=1)
    for arguments in (["--help"], ["train", "--help"]):
        assert least(LOOK, *arguments, tries=5) < max(0.7, 0.5 * heavy), arguments


def test_the_commands_and_the_version_are_listed():
    printed = python(LOOK, "--help").stdout
    for word in ("train", "finetune", "eval", "recipes", "pack", "analyze", "audit", "explore", "describe", "convert"):
        assert f"\n  {word} " in printed
    assert "-V, --version" in printed
    assert python(LOOK, "-V").stdout == python(LOOK, "--version").stdout


@pytest.mark.parametrize(
    "imports",
    [
        "import timm, opencrate",
        "import opencrate, timm",
        "import opencrate, timm.optim",
        "import opencrate.operators, timm",  # which imports timm itself, before CRATE can be defined
        "import opencrate, importlib.util; importlib.util.find_spec('timm'); import timm",
        "import opencrate; opencrate.CRATE; import timm",
    ],
)
def test_timm_knows_crate_whatever_is_imported_first(imports):
    build = "print(type(timm.create_model('crate_tiny_patch4_32', depth=1)).__name__, len(timm.list_models('crate_*')))"
    done = python(f"{imports}\n{build}")
    assert (done.stdout, done.stderr) == ("CRATE 10\n", "")


def test_the_public_names_are_imported_at_their_first_use():
    code = (
        "import sys, opencrate\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(opencrate.__all__) <= set(dir(opencrate))\n"
        "for name in opencrate.__all__:\n"
        "    getattr(opencrate, name)\n"
        "assert opencrate.stems.patches and opencrate.models.VARIANTS\n"
        "assert callable(opencrate.layerwise) and callable(opencrate.load)\n"
        "from opencrate import *\n"
        "assert CRATE is opencrate.models.CRATE and trajectory is opencrate.stack.trajectory\n"
        "opencrate.nothing\n"
    )
    done = python(code)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'opencrate' has no attribute 'nothing'"


def test_commands_that_left_say_where_they_are():
    done = python(LOOK, "bench", "--quick")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "opencrate: 'opencrate bench' is now 'python -m benchmarks', with the same options,"
        " in a checkout of the repository"
    )
