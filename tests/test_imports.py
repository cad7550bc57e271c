import sys

import pytest

from opencrate.imports import import_modules


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with modules in it that no other test can see."""
    (tmp_path / "own_operator.py").write_text("VALUE = 1\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "inner.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_modules_of_the_current_folder_are_found(folder):
    import_modules(["own_operator", "json.decoder"])
    assert sys.modules["own_operator"].VALUE == 1
    assert sys.path[0] == str(folder)


def test_what_python_knows_is_found_without_the_folder(folder):
    before = list(sys.path)
    import_modules(("json.decoder", "own_operator")[:1])
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "own_operatr",
            "there is no module own_operatr, neither installed nor in {}: run from its folder, or install it",
        ),
        (
            "own_package.x",
            "there is no module own_package.x, neither installed nor in {}: run from its folder, or install it",
        ),
        ("own_package.inner", "the module own_package.inner needs no_such_library, which is not installed"),
        (
            "own_operator.py/..",
            "'own_operator.py/..' is not the name of a module: write package.module, not a file or an address",
        ),
        (
            "./own_operator",
            "'./own_operator' is not the name of a module: write package.module, not a file or an address",
        ),
        ("os; x", "'os; x' is not the name of a module: write package.module, not a file or an address"),
        ("", "'' is not the name of a module: write package.module, not a file or an address"),
    ],
)
def test_one_sentence_for_a_module_that_cannot_be_imported(folder, name, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        import_modules([name])
    assert str(caught.value) == sentence.format(folder)
