"""Recipes as YAML files: what is written is read, and what is wrong is one sentence."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from opencrate.data.settings import Dataset
from opencrate.recipes import (
    FINETUNING,
    RECIPES,
    RENAMED_FIELDS,
    Model,
    Objective,
    Optim,
    Recipe,
    differences,
    options_in,
    read_recipe,
    recipe_text,
)
from opencrate.training import Options

LEAST = "name: x\nmodel: {name: crate_tiny_patch4_32}\ndata: {num_classes: 10}\n"


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "recipe.yaml").write_text(text)
        return tmp_path / "recipe.yaml"

    return write


@pytest.mark.parametrize("maker", [*RECIPES.values(), *FINETUNING.values()], ids=lambda maker: maker.__name__)
def test_round_trip(written, maker):
    recipe = maker()
    again = read_recipe(written(recipe_text(recipe)))
    assert again == recipe
    assert recipe_text(again) == recipe_text(recipe)
    assert differences(recipe, again) == []


def test_every_field_in_another_state_comes_back(written):
    recipe = replace(
        RECIPES["digits"](),
        name="ünïcode: yes",
        model=Model(
            "crate_tiny_patch4_32",
            compress_args={"eps": 0.5, "kind": "free", "tied": True, "steps": 3},
            sparsify_args={"eta": 1e-7},
            global_pool="avg",
            imports=("my_operators", "package.module"),
        ),
        optim=Optim("adamw", lr=1e-5, betas=(0.9, 0.95), clip=1.0, ema=0.999),
        objective=Objective(0.01, (1, 12), eps=0.5, lam=0.0, orthogonal_U=1e-7, orthogonal_D=2.0),
    )
    assert read_recipe(written(recipe_text(recipe))) == recipe


def test_what_is_not_in_the_file_has_its_default(written):
    recipe = read_recipe(written(LEAST))
    assert recipe.optim == Optim()
    assert recipe.data.size == 224


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", '"1e-4"'])
def test_numbers_as_people_write_them(written, text):
    """YAML 1.1 takes 1e-4 for a string."""
    assert read_recipe(written(f"{LEAST}optim: {{lr: {text}}}")).optim.lr == 1e-4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optm: {lr: 1}", "there is no field 'optm'; did you mean 'optim'?"),
        ("optim: {lrr: 1}", "there is no field 'optim.lrr'; did you mean 'optim.lr'?"),
        ("model: {name: x, dept: 3}", "there is no field 'model.dept'; did you mean 'model.depth'?"),
        ("epochs: 3", "there is no field 'epochs'; did you mean 'schedule.epochs'?"),
        ("3: 4", "3: Keys should be strings, got 3"),
        (
            "optim: {lr: fast}",
            "optim.lr: Input should be a valid number, unable to parse string as a number, got 'fast'",
        ),
        (
            "schedule: {epochs: 1.5}",
            "schedule.epochs: Input should be a valid integer, got a number with a fractional part, got 1.5",
        ),
        ("optim: {decay: some}", "optim.decay: Input should be 'all' or 'matrices', got 'some'"),
        ("optim: 3", "optim: Input should be a dictionary or an instance of Optim, got 3"),
        (
            "model: {name: x, imports: [a/b.py]}",
            "'a/b.py' is not the name of a module: write package.module, not a file or an address",
        ),
        ("optim: {lr: .nan}", "optim.lr must be positive, got nan"),
        ("optim: {lr: .inf}", "optim.lr must be finite, got inf"),
        ("optim: {weight_decay: .inf}", "optim.weight_decay must be finite, got inf"),
        ("optim: {betas: [.nan, 0.9]}", "optim.betas must be finite, got nan"),
        ("optim: {clip: .inf}", "optim.clip must be finite, got inf"),
        ("schedule: {min_lr: .inf}", "schedule.min_lr must be finite, got inf"),
        ("label_smoothing: .nan", "label_smoothing must be in [0, 1), got nan"),
        ("model: {name: x, sparsify_args: {eta: .inf}}", "model.sparsify_args.eta must be finite, got inf"),
        ("data: {mean: [0, .nan, 0]}", "data.mean must be finite, got nan"),
        ("optim: {batch: 0}", "optim.batch must be at least 1, got 0"),
        ("optim: {ema: 1}", "optim.ema must be in [0, 1), got 1.0"),
        (
            "schedule: {epochs: 5}",
            "schedule.warmup_epochs must be less than schedule.epochs, got 5 and 5: set both, or no warm-up (0)",
        ),
        ("objective: {weight: -0.1}", "objective.weight must not be negative, got -0.1"),
        ("objective: {lam: .nan}", "objective.lam must not be negative, got nan"),
        ("objective: {orthogonal_U: -1}", "objective.orthogonal_U must not be negative, got -1.0"),
        ("objective: {orthogonal_D: .inf}", "objective.orthogonal_D must be finite, got inf"),
        ("objective: {eps: 0}", "objective.eps must be positive, got 0.0"),
        ("objective: {layers: [2, 0]}", "objective.layers counts layers from 1, got 0"),
        ("objective: {layers: [1, 3, 1]}", "objective.layers names a layer twice: 1, 3, 1"),
        (
            "objective: {wieght: 1}",
            "there is no field 'objective.wieght'; did you mean 'objective.weight'?",
        ),
        ("definition: papr", "unknown definition 'papr'; did you mean 'paper'?"),
        ("seed: -1", "seed must be between 0 and 2³² − 1, got -1"),
        ("model: {depth: 3}", "a recipe needs model.name, or model.start for the network in a checkpoint"),
    ],
    ids=lambda value: value.split(",")[0],
)
def test_one_sentence_for_a_wrong_field(written, text, sentence):
    file = written(LEAST + text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        read_recipe(file)
    assert str(caught.value) == f"{file}: {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- digits\n", "{} is not a recipe: it holds a list, not fields"),
        ("digits\n", "{} is not a recipe: it holds a str, not fields"),
        ("", "{} is not a recipe: it is empty"),
        ("name: x\nmodel: {name: y}\n", "{}: the field 'data' is missing"),
        (
            "a: b: c\n",
            "{} is not YAML that can be read: mapping values are not allowed here"
            ' in "<byte string>", line 1, column 5: a: b: c ^',
        ),
        *(
            (
                f"name: {value}\n",
                f"{{}} is not YAML that can be read: '{value.split()[-1]}' is no value of the type {kind}"
                ' in "<byte string>", line 1, column 7: '
                f"name: {value} ^",
            )
            for value, kind in (
                ("!!bool maybe", "bool"),
                ("!!int one", "int"),
                ("!!timestamp soon", "timestamp"),
                ("2025-02-31", "timestamp"),
            )
        ),
    ],
)
def test_one_sentence_for_a_file_that_is_no_recipe(written, text, sentence):
    file = written(text)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        read_recipe(file)
    assert str(caught.value) == sentence.format(file)


def test_a_file_of_other_bytes(tmp_path):
    (tmp_path / "recipe.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ValueError, match=r"recipe\.yaml is not YAML that can be read: unacceptable character #x00ff"):
        read_recipe(tmp_path / "recipe.yaml")


def test_differences_are_listed_by_their_paths():
    old = replace(RECIPES["digits"](), optim=Optim(lr=0.001), seed=0)
    new = replace(
        old,
        name="another",  # what a run is called, or expects, is not what it computes
        expected=replace(old.expected, top1=99.0),
        optim=replace(old.optim, lr=0.5),
        model=replace(old.model, sparsify_args={"eta": 0.2}),
        data=replace(old.data, mean=list(old.data.mean)),  # as from a file
        seed=3,
    )
    assert differences(old, new) == ["model.sparsify_args {} → {'eta': 0.2}", "optim.lr 0.001 → 0.5", "seed 0 → 3"]


def test_the_options_of_operators_keep_their_types(written):
    """1e-4 is a number to people, and a string to YAML 1.1."""
    text = "name: x\nmodel: {name: y, compress_args: {a: 1, b: 1.0, c: true, d: word, e: 1e-4, f: '2'}}\ndata: {}\n"
    values = read_recipe(written(text)).model.compress_args
    assert [(type(value), value) for value in values.values()] == [
        *((int, 1), (float, 1.0), (bool, True), (str, "word"), (float, 1e-4), (str, "2")),
    ]


# files of 0.1

OLD = Path(__file__).parent / "cifar10_tiny_0_1.yaml"


def test_a_recipe_of_0_1_is_read(written):
    recipe = read_recipe(OLD)
    assert recipe == RECIPES["cifar10_tiny"]()
    assert differences(recipe, RECIPES["cifar10_tiny"]()) == []
    assert options_in(OLD) == {"compile": "on", "graphs": "on", "attention": "auto"}
    other = OLD.read_text().replace("compile: true", "compile: false").replace("attention: null", "attention: sdpa")
    assert Options(**options_in(written(other))) == Options(compile="off", graphs="on", attention="sdpa")
    assert options_in(written(recipe_text(recipe))) == {}


def test_renamed_fields_are_today_where_the_table_says():
    """Every new path is a field, and no old one is."""
    parts = {"model": Model, "data": Dataset, "optim": Optim, "objective": Objective, "options": Options, "": Recipe}
    for old, new in RENAMED_FIELDS.items():
        for path, exists in ((old, False), (new, True)):
            part, _, name = path.rpartition(".")
            assert is_dataclass(parts[part])
            assert (name in {field.name for field in fields(parts[part])}) == exists, path


def test_a_wrong_option_in_an_old_file_is_one_sentence(written):
    with pytest.raises(ValueError, match=r"^compile must be auto, on or off, got 'maybe'$"):
        Options(**options_in(written(LEAST + "compile: maybe")))


def test_a_field_of_version_0_1_is_read_by_its_new_name(written):
    """Every old name in RENAMED_FIELDS; here data.broken, as a run of 0.1 wrote it."""
    assert RENAMED_FIELDS["data.broken"] == "data.max_decode_failures"
    recipe = RECIPES["digits"]()
    text = recipe_text(recipe).replace("max_decode_failures: 0.01", "broken: 0.25")
    assert "broken: 0.25" in text
    assert read_recipe(written(text)) == replace(recipe, data=replace(recipe.data, max_decode_failures=0.25))
