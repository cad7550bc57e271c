"""Help texts are plain, whole and fast: they do not import torch and timm; and timm knows crate_* all the same."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opencrate.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
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


def options_in(text):
    """The help of every option of a help text, by its name; what stands in boxes is read without their borders."""
    boxes = re.split(r"^\W*(?:positional arguments|options)\b", text, maxsplit=1, flags=re.MULTILINE)[1]
    lines = (line[1:].rstrip(" │") for line in boxes.splitlines())
    inside = "\n".join(line for line in lines if re.match(" +[^ ─-]| --?[a-z]", line))  # without titles and rules
    entries = re.split(r"^ (?=--?[a-z]|[A-Z\[])", inside, flags=re.MULTILINE)[1:]
    parted = (re.split(r" {2,}|\n", entry, maxsplit=1) for entry in entries)
    return {name: " ".join(text.split()) for name, text in parted}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", ["", "train digits", "finetune pets x", *COMMANDS])
def test_a_help_text_is_plain(command, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    if command in ("", "train", "finetune"):  # lists of commands and recipes
        return
    options = options_in(text)
    assert options.pop("-h, --help") == "show this help message and exit"
    assert len(options) > 1 or command in ("recipes", "completion")
    for name, about in options.items():
        assert not re.search(r"None|\||''|\(default: \)", f"{name} {about}".replace("None for none", "")), name
        sentence = re.sub(r" \((default: .*|required)\)$", "", about)
        assert re.fullmatch(r"[\da-zR].{5,}[.…]", sentence), (name, sentence)


def test_the_commands_and_the_version_are_listed():
    printed = python(LOOK, "--help").stdout
    for word in COMMANDS:
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


@pytest.mark.parametrize("command", ["recipes", "train digits --help", "describe opencrate/shipped/crate_tiny_cifar10"])
def test_a_reader_who_leaves_is_no_error(command):
    """As `| head -1` does, here before the first line."""
    code = "import sys; from opencrate.cli import main; main(sys.argv[1:])"
    writer = subprocess.Popen(
        [sys.executable, "-c", code, *command.split()], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.close()
    with writer.stderr:
        assert writer.stderr.read() == b""
    assert writer.wait() == 1


def test_the_shell_completes_commands_recipes_and_options(tmp_path, capsys):
    """A function stands in for the command, and prints the help text of `eval` if it is asked for it."""
    main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    (tmp_path / "help").write_text(capsys.readouterr().out)
    code = (
        "source ./script; opencrate() { [[ $1 == eval && ${@: -1} == --help ]] && cat help; };"
        'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _opencrate; echo ${COMPREPLY[@]}'
    )

    def complete(*words):
        command = ["bash", "-c", code, "bash", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split(), done.stderr

    assert complete("opencrate", "expl") == (["explore"], "")
    assert complete("opencrate", "train", "dig") == (["digits"], "")
    assert complete("opencrate", "finetune", "pets") == (["pets", "pets_64"], "")
    assert complete("opencrate", "train", "runs/") == ([], "")  # the shell completes files
    assert complete("opencrate", "eval", "--kn")[0] == ["--knn"]
    assert complete("opencrate", "eval", "runs/x", "--no-r")[0] == ["--no-real"]
    main(["completion", "zsh"])
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit && bashcompinit\n_opencrate()")
