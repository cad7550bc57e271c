"""The documents are true: their code runs, their names exist, the tree is complete, and the import order holds."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

import opencrate
from opencrate.cli import COMMANDS
from opencrate.operators import compressions, solve_lasso, sparsifications
from opencrate.recipes import FINETUNING, RECIPES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "opencrate"
FILES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [str(file.relative_to(ROOT)) for file in FILES if file.name != "notes.md"]  # a part of RESULTS.md


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


README, NOTATION, ARCHITECTURE = map(read, ("README.md", "docs/NOTATION.md", "docs/ARCHITECTURE.md"))


@pytest.fixture
def operators_restored():
    before = dict(sparsifications)
    sparsifications.pop("dictionary", None)  # a test's own, of the same name
    yield
    sparsifications.clear()
    sparsifications.update(before)


def run_snippets(page: str) -> list[dict[str, object]]:
    namespaces = []
    for snippet in re.findall(r"```python\n(.*?)```", read(page), re.DOTALL):
        namespaces.append({"__name__": "snippet"})
        exec(compile(snippet, page, "exec"), namespaces[-1])
    return namespaces


@pytest.mark.unhooked
def test_python_in_the_readme_runs(capsys):
    assert len(run_snippets("README.md")) == 2
    printed = capsys.readouterr().out.splitlines()
    layers, recipe = printed[:12], printed[12:]  # those of CRATE-Tiny; the changed recipe
    assert all(re.fullmatch(r"layer +\d+  R\^c +[\d.]+  non-zero 0\.\d\d", line) for line in layers)
    assert recipe[0] == "name: longer"


@pytest.mark.unhooked
def test_the_operator_in_the_documents_runs_and_is_the_lasso_solver(operators_restored):
    (namespace,) = run_snippets("docs/OPERATORS.md")
    model = namespace["model"]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 1000)
    operator = model.layers[0].sparsify.operator.double()
    Y = torch.randn(2, 5, 48, dtype=torch.float64)
    expected = solve_lasso(Y, operator.D, 0.1, 2, 0.1) @ operator.D1.mT
    assert (operator(Y) - expected).abs().max() < 1e-12


@pytest.mark.unhooked
def test_the_audit_gives_what_the_document_says(capsys):
    (namespace,) = run_snippets("docs/AUDIT.md")
    assert "at 0 of 12 layers; at 2 the tokens collapse" in capsys.readouterr().out
    block = re.search(r"^compress: .*?(?=^untrained network)", read("docs/AUDIT.md"), re.MULTILINE | re.DOTALL)[0]
    found, names, shown = {(row["layer"], row["null"]): 100 * row["mean"] for row in namespace["rows"]}, [], set()
    for line in block.splitlines():
        if line.startswith(" layer"):
            names = line.split()[1:]
        elif re.match(r"^ +\d+ ", line):
            layer, cells = line.split()[0], re.findall(r"[+−][\d.]+(?= ±)|–", line)
            for name, cell in zip(names, cells, strict=True):
                if cell != "–":  # there the null collapses the tokens
                    mean = float(cell.replace("−", "-"))
                    assert found[int(layer), name] == pytest.approx(mean, abs=0.2), (layer, name)
                    shown.add((int(layer), name))
    assert shown == found.keys()


def test_every_operator_is_listed():
    operators = {**compressions, **sparsifications}
    own = {name for name, operator in operators.items() if operator.__module__.startswith("opencrate.")}
    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", read("docs/OPERATORS.md"), re.MULTILINE)) == own


def test_the_models_have_the_sizes_in_the_readme():
    listed = []
    for names, d, depth, heads, counts in re.findall(
        r"^\| (`crate_.*?) \| (\d+) \| (\d+) \| (\d+) \| (.*) \|", README, re.MULTILINE
    ):
        first = re.match(r"`(\w+patch)", names)[1]
        for name, count in zip(re.findall(r"`([\w…]+)`", names), counts.split(", "), strict=True):
            name = name.replace("…", first)
            model = timm.create_model(name, device="meta")
            assert (model.embed_dim, len(model.blocks), model.num_heads) == (int(d), int(depth), int(heads))
            assert f"{sum(weight.numel() for weight in model.parameters()):,}" == count
            listed.append(name)
    assert sorted(listed) == sorted(timm.list_models("crate_*"))


def commands_in(page: str) -> list[tuple[str, str]]:
    """Every `opencrate COMMAND ARGUMENT` in code, with an empty argument where there is none."""
    pieces = re.findall(r"```[^`\n]*\n(.*?)```|`([^`\n]+)`", read(page), re.DOTALL)
    code = "\n".join(block or inline for block, inline in pieces)
    return re.findall(r"^opencrate ([a-z]+) ?([\w./]*)", code, re.MULTILINE)


def test_the_commands_in_the_documents_exist():
    assert {command for command, _ in commands_in("README.md")} == set(COMMANDS)
    for page in set(PAGES) - {"CHANGELOG.md", "docs/RESULTS.md"}:  # the first has old ones too, the second is generated
        for command, argument in commands_in(page):
            assert command in COMMANDS, f"{page}: opencrate {command}"
            recipes = {"train": RECIPES, "finetune": FINETUNING}.get(command)
            known = recipes is None or argument in ("", "NAME", "FILE", "FOLDER") or argument.endswith(".yaml")
            assert known or argument in recipes, f"{page}: opencrate {command} {argument}"


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


def test_links_lead_to_files():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", read(page)):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def names_in(file: Path) -> set[str]:
    """What a file defines: functions, classes, their methods, constants."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{part.name}" for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", ["docs/ARCHITECTURE.md", "docs/NOTATION.md"])
def test_every_place_in_the_documents_exists(page):
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", read(page))
    assert len(places) >= 9
    missing = [
        f"{file}:{name}"
        for file, name in places
        if not (PACKAGE / file).is_file() or name not in names_in(PACKAGE / file)
    ]
    assert not missing


def test_the_reading_list_names_ten_files():
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", ARCHITECTURE, re.MULTILINE)
    assert len(files) == 10
    assert [file for file in files if not (PACKAGE / file).is_file()] == []


def tree() -> list[str]:
    """The paths below opencrate/ in the tree of docs/ARCHITECTURE.md, folders with a slash at their end."""
    block = re.search(r"^opencrate/\n((?:  .*\n)+)", ARCHITECTURE, re.MULTILINE)[1]
    paths, folders = [], []
    for line in block.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2 - 1, line.split()[0]
        folders = folders[:depth]
        paths.append("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return paths


def test_the_tree_is_complete():
    files = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"}
    listed = {path for path in tree() if path.endswith(".py")}
    assert sorted(files - listed) == []
    assert sorted(listed - files) == []
    assert [path for path in tree() if not (PACKAGE / path).exists()] == []


ALLOWED = {"models": {"speed", "checkpoints"}}  # inside functions, when they are called


def test_each_part_imports_only_from_parts_above_it():
    order = [path.removesuffix("/").removesuffix(".py") for path in tree() if "/" not in path.removesuffix("/")]
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == len(parts):
                targets = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
                for target in set(targets) & set(order) - ALLOWED.get(parts[0], set()):
                    assert order.index(target) < order.index(parts[0]), f"{file} imports {target}"


def test_names_in_the_notation_exist():
    names = set(re.findall(r"`(?:opencrate\.)?((?:objective|operators|models|layers|stems)\.(?!py\b)[\w.]+)", NOTATION))
    assert len(names) > 30
    for name in names:
        part = opencrate
        for attribute in name.split("."):
            assert hasattr(part, attribute), name
            part = getattr(part, attribute)


def test_the_notation_names_every_public_function():
    for part in (opencrate.objective, opencrate.operators):
        for name in part.__all__:
            if inspect.isfunction(getattr(part, name)):
                assert re.search(rf"\b{name}\b", NOTATION), f"{name} is not in docs/NOTATION.md"


def test_every_erratum_has_its_test():
    numbers = set(re.findall(r"^\| (\d\.\d) \|", read("docs/ERRATA.md"), re.MULTILINE)) - {"1.5", "1.6"}
    tests = re.findall(r"^def test_(\d)_(\d)_", (ROOT / "tests" / "test_errata.py").read_text(), re.MULTILINE)
    assert numbers == {f"{section}.{entry}" for section, entry in tests}


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
