"""The documents are true: their code runs, the names they use exist, and the map of imports is kept."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm

import opencrate
from opencrate.cli import COMMANDS
from opencrate.operators import compressions, sparsifications
from opencrate.recipes import FINETUNING, RECIPES
from tests.networks import own

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTATION = (ROOT / "docs" / "NOTATION.md").read_text(encoding="utf-8")


@pytest.fixture
def operators_restored():
    tables = [dict(table) for table in (compressions, sparsifications)]
    yield
    for table, before in zip((compressions, sparsifications), tables, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.unhooked
def test_python_in_the_readme_runs(capsys, operators_restored):
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(snippets) == 5
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    layers, recipe = printed[:12], printed[12:]  # of CRATE-Tiny; the changed one
    assert all(re.fullmatch(r"layer +\d+  R\^c +[\d.]+  non-zero 0\.\d\d", line) for line in layers)
    assert recipe[0] == "name: longer"


def test_the_readme_lists_every_operator():
    rows = re.findall(r"^\| `((?!crate_)\w+)` \|", README, re.MULTILINE)
    assert set(rows) == {*own(compressions), *own(sparsifications)}


def test_the_readmes_models_have_the_sizes_it_says():
    listed = []
    for names, d, depth, heads, counts in re.findall(
        r"^\| (`crate_.*?) \| (\d+) \| (\d+) \| (\d+) \| (.*) \|", README, re.MULTILINE
    ):
        for name, count in zip(re.findall(r"`(\w+)`", names), counts.split(", "), strict=True):
            model = timm.create_model(name, device="meta")
            assert (model.embed_dim, len(model.blocks), model.num_heads) == (int(d), int(depth), int(heads))
            assert f"{sum(weight.numel() for weight in model.parameters()):,}" == count
            listed.append(name)
    assert sorted(listed) == sorted(timm.list_models("crate_*"))


def test_the_commands_in_the_readme_exist():
    commands = re.findall(r"^opencrate (\w+)", README, re.MULTILINE)
    assert set(commands) == set(COMMANDS)
    for name, table in (("train", RECIPES), ("finetune", FINETUNING)):
        for recipe in re.findall(rf"^opencrate {name} ([\w./]+)", README, re.MULTILINE):
            assert recipe.endswith(".yaml") or recipe in table


def test_names_in_the_notation_exist():
    names = set(re.findall(r"`(?:opencrate\.)?((?:objective|operators|models|layers|stems)\.[\w.]+)", NOTATION))
    assert len(names) > 30
    for name in names:
        found = opencrate
        for part in name.split("."):
            assert hasattr(found, part), name
            found = getattr(found, part)
    for module in ("compression", "sparsification"):
        for name in re.findall(rf"`{module}\.(\w+)`", NOTATION):
            assert hasattr(getattr(opencrate.operators, module), name), name


def test_the_notation_names_every_public_function():
    for part in (opencrate.objective, opencrate.operators):
        for name in part.__all__:
            if name.islower() and name not in ("compression", "sparsification"):
                assert re.search(rf"\b{name}\b", NOTATION), f"{name} is not in docs/NOTATION.md"


def test_every_erratum_has_its_test():
    errata = (ROOT / "docs" / "ERRATA.md").read_text(encoding="utf-8")
    numbers = set(re.findall(r"^\| (\d\.\d) \|", errata, re.MULTILINE)) - {"1.5", "1.6"}
    tests = re.findall(r"^def test_(\d)_(\d)_", (ROOT / "tests" / "test_errata.py").read_text(), re.MULTILINE)
    assert numbers == {f"{section}.{entry}" for section, entry in tests}


PARTS = ["shapes", "errors", "lazy", "imports", "definitions", "files"]
PARTS += ["objective", "operators", "layers", "stack", "stems", "models", "timm_hook"]
PARTS += ["checkpoints", "speed", "measures", "inspection", "data", "settings", "recipes", "tasks"]
PARTS += ["run_folder", "run_recipe", "distributed"]
PARTS += ["evaluation", "training", "sources", "study", "figures", "report", "explorer", "shipped", "cli", "__main__"]


ALLOWED = {"layers": {"speed"}, "models": {"speed", "checkpoints"}}  # inside functions, when they are called


def test_each_part_imports_only_from_parts_above_it():
    for file in (ROOT / "opencrate").rglob("*.py"):
        parts = file.relative_to(ROOT / "opencrate").with_suffix("").parts
        if parts[0] == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == len(parts):
                targets = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                for target in set(targets) & set(PARTS) - ALLOWED.get(parts[0], set()):
                    assert PARTS.index(target) < PARTS.index(parts[0]), f"{file} imports {target}"


def test_the_package_imports_neither_benchmarks_nor_reproduction():
    for file in (ROOT / "opencrate").rglob("*.py"):
        assert not re.search(
            r"^\s*(from|import) (benchmarks|reproduction)\b", file.read_text(encoding="utf-8"), re.M
        ), file


def test_denoising_example(tmp_path):
    picture = tmp_path / "folder" / "picture.png"
    example = ROOT / "examples" / "denoising.py"
    assert len(example.read_text().splitlines()) <= 60
    run = subprocess.run([sys.executable, example, picture], capture_output=True, text=True, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    errors = [float(error) for error in re.findall(r"^ *0\.\d+ +(\d\.\d+)$", run.stdout, re.MULTILINE)]
    assert len(errors) == 6
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01 * errors[0]
