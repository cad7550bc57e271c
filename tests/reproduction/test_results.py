"""The file of results: what is done, by which recipe, and what it comes to."""

import csv
import json
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from opencrate.recipes import Expected, Objective
from reproduction.plan import Plan
from reproduction.results import Results, Sample, fingerprint
from reproduction.scales import plan_for

from .filling import filled, row_of

PLAN = plan_for("smoke", {})
RUNS = {run.key: run for run in PLAN.runs}
RUN, TUNED = RUNS["digits/crate-t/light/seed0"], RUNS["digits-to-digits-again/crate-t/light/seed0"]
LOOKS = {"fig3": 1, "fig4": 2, "tokens": 3, "subspaces": 4, "audit": 5, "probe": 6}

# For every field of a recipe that decides what is computed, another value than the smoke plan's.
OTHERS = {
    "model": {
        "name": "crate_small_patch4_32",
        "start": "elsewhere",
        "embed_dim": 64,
        "depth": 3,
        "num_heads": 4,
        "patch_size": 8,
        "compress": "mssa_tied",
        "compress_args": {"eps": 0.5},
        "sparsify": "prox_mm",
        "sparsify_args": {"eta": 0.2},
        "global_pool": "avg",
        "drop_path_rate": 0.1,
        "proj_drop_rate": 0.1,
        "imports": ("timm",),
    },
    "data": {
        "train": "a",
        "validation": "b",
        "num_classes": 11,
        "size": 32,
        "in_chans": 3,
        "mean": (0.1,),
        "std": (0.2,),
        "crop_pct": 0.5,
        "max_decode_failures": 0.5,
    },
    "augment": {
        "crop": "none",
        "scale": (0.5, 1.0),
        "ratio": (1.0, 1.0),
        "padding": 0.2,
        "flip": 0.3,
        "randaugment": "torchvision-n2-m9",
        "erase": 0.1,
        "mixup": 0.4,
        "cutmix": 0.5,
        "interpolation": "bilinear",
    },
    "optim": {
        "name": "adamw",
        "lr": 0.1,
        "weight_decay": 0.1,
        "betas": (0.8, 0.9),
        "decay": "matrices",
        "batch": 32,
        "clip": 1.0,
        "ema": 0.9,
        "bad_steps": 1,
    },
    "schedule": {"epochs": 9, "warmup_epochs": 1, "warmup_lr": 0.1, "min_lr": 0.1},
    "objective": {"weight": 0.1, "layers": (1,), "eps": 0.2, "lam": 0.3, "orthogonal_U": 0.4, "orthogonal_D": 0.5},
    "label_smoothing": 0.2,
    "precision": "bf16",
    "definition": "official",
    "probe": 3,
    "seed": 7,
}
PATHS = [(part, name) for part, of in OTHERS.items() for name in (of if isinstance(of, dict) else [None])]


def changed(run, part, name):
    other = OTHERS[part] if name is None else OTHERS[part][name]
    if name == "in_chans":
        new = replace(run.recipe.data, in_chans=3, mean=run.recipe.data.mean * 3, std=run.recipe.data.std * 3)
    else:
        new = other if name is None else replace(getattr(run.recipe, part), **{name: other})
    return replace(run, recipe=replace(run.recipe, **{part: new}))


@pytest.mark.parametrize("values", [(80.0, 81.5), (79.1, 80.7, 80.2), (70.25,) * 3])
def test_mean_and_deviation(values):
    sample = Sample(values)
    assert sample.mean == pytest.approx(np.mean(values), rel=1e-14)
    assert sample.std == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert str(sample) == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def test_one_seed_has_no_deviation():
    assert Sample((80.126,)).std is None
    assert str(Sample((80.126,))) == "80.13"


def test_accuracies_are_those_of_a_network_a_set_and_a_variant(tmp_path):
    """Every run's accuracy tells which it is, so that one of another run would show."""
    numbers = {run.key: float(i) for i, run in enumerate(PLAN.runs)}
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, numbers[run.key]))
    for run in PLAN.runs:
        keys = [run.key.replace(f"seed{run.recipe.seed}", f"seed{seed}") for seed in (0, 1)]
        assert results.accuracy(run.model, run.task, run.variant).values == tuple(numbers[key] for key in keys)
    assert results.accuracy("CRATE-T", "digits") == results.accuracy("CRATE-T", "digits", "light")
    assert results.accuracy("CRATE-X", "digits") is None


@pytest.mark.parametrize(("best", "mark"), [(50.0, ""), (60.0, ""), (60.1, " †")])
def test_a_seed_that_ends_far_below_its_best_epoch_is_marked(tmp_path, best, mark):
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, 50.0, **{"best": best} if run == RUN else {}))
    assert str(results.accuracy(RUN.model, RUN.task)) == f"50.00 ± 0.00{mark}"
    assert "†" not in str(results.accuracy(RUN.model, RUN.task, "strong"))


def test_so_is_one_that_starts_from_it(tmp_path):
    tuned = next(run for run in PLAN.runs if run.start == RUN.key)
    assert tuned.recipe.seed == RUN.recipe.seed
    for lost, mark in ((RUN, " †"), (replace(RUN, variant="strong"), ""), (replace(RUN, model="ViT-T"), "")):
        bests = {lost.key: 99.0}
        results = filled(
            PLAN, tmp_path / lost.key, lambda run, b=bests: row_of(run, PLAN, 50.0, best=b.get(run.key, 50.0))
        )
        assert str(results.accuracy(tuned.model, tuned.task)) == f"50.00 ± 0.00{mark}"


def test_no_field_of_a_recipe_is_forgotten_here():
    recipe = RUN.recipe
    paths = set()
    for field in fields(recipe):
        part = getattr(recipe, field.name)
        paths |= {(field.name, f.name) for f in fields(part)} if is_dataclass(part) else {(field.name, None)}
    ignored = {("name", None), ("data", "name"), ("data", "root")} | {("expected", f.name) for f in fields(Expected)}
    ignored |= {("data", "holdout"), ("data", "holdout_seed")}  # no run of a plan holds pictures out
    assert set(PATHS) == paths - ignored
    assert recipe.objective == Objective()


@pytest.mark.parametrize(("part", "name"), PATHS)
def test_another_recipe_has_another_mark(part, name):
    assert fingerprint(changed(RUN, part, name), PLAN.runs) != fingerprint(RUN, PLAN.runs)


def test_names_and_places_do_not_make_another_recipe():
    recipe = RUN.recipe
    same = replace(
        recipe,
        name="another",
        expected=Expected(1.0, "a", "b", "c"),
        data=replace(recipe.data, name="packed", root="elsewhere"),
    )
    assert fingerprint(replace(RUN, recipe=same), PLAN.runs) == fingerprint(RUN, PLAN.runs)
    assert fingerprint(replace(RUN, parts=frozenset(), variant="x"), ()) == fingerprint(RUN, PLAN.runs)


def test_a_run_that_starts_from_another_recipe_is_another():
    start = changed(RUN, "optim", "lr")
    runs = [start if run.key == RUN.key else run for run in PLAN.runs]
    assert fingerprint(TUNED, runs) != fingerprint(TUNED, PLAN.runs)
    renamed = [replace(run, recipe=replace(run.recipe, name="x")) if run.key == RUN.key else run for run in PLAN.runs]
    assert fingerprint(TUNED, renamed) == fingerprint(TUNED, PLAN.runs)


def test_a_run_is_done_with_all_that_is_looked_at(tmp_path):
    results, mark = Results(tmp_path / "results.json", "smoke"), fingerprint(RUN, PLAN.runs)
    assert not results.has(RUN, mark)
    results.add(RUN, row_of(RUN, PLAN, 90.0, looks={"fig3": 1}))
    assert not results.has(RUN, mark)
    assert results.has(replace(RUN, parts=frozenset({"table1", "fig3"})), mark)
    results.add(RUN, row_of(RUN, PLAN, 90.0, looks=LOOKS))
    assert results.has(RUN, mark)
    assert Results(tmp_path / "results.json", "smoke").has(RUN, mark)


def test_a_row_of_another_recipe_is_not_done_and_not_current(tmp_path):
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, 90.0, looks=LOOKS))
    assert results.current(PLAN).rows == results.rows
    newer = Plan("smoke", tuple(changed(run, "optim", "lr") if run.key == RUN.key else run for run in PLAN.runs), 16)
    mark = fingerprint(newer.runs[0], newer.runs)
    assert not results.has(newer.runs[0], mark)
    current = results.current(newer)
    assert results.rows.keys() - current.rows.keys() == {RUN.key, TUNED.key}
    assert current.accuracy("CRATE-T", "digits").values == (90.0,)
    assert RUN.key in results.rows  # it stays in the file until the run is run again


def test_rows_of_runs_that_the_plan_has_not_are_not_current(tmp_path):
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, 90.0))
    assert results.current(PLAN.only(["table3"])).rows.keys() == {run.key for run in PLAN.only(["table3"]).runs}


def test_what_was_looked_at_before_stays(tmp_path):
    results = Results(tmp_path / "results.json", "smoke")
    results.add(RUN, row_of(RUN, PLAN, 90.0, looks={"fig3": 1, "audit": 2}))
    results.add(RUN, row_of(RUN, PLAN, 91.0, looks={"audit": 3}))
    assert results.rows[RUN.key]["top1"] == 91.0
    assert results.rows[RUN.key]["looks"] == {"fig3": 1, "audit": 3}
    results.add(RUN, row_of(RUN, PLAN, 92.0, looks={"tokens": 4}, recipe="another"))
    assert results.rows[RUN.key]["looks"] == {"tokens": 4}


def test_a_failure_takes_nothing_away(tmp_path):
    results, mark = Results(tmp_path / "results.json", "smoke"), fingerprint(RUN, PLAN.runs)
    row = row_of(RUN, PLAN, 90.0, looks=LOOKS)
    results.add(RUN, row)
    results.add(RUN, {"error": "no disk", "recipe": mark})
    kept = Results(tmp_path / "results.json", "smoke")
    assert kept.rows[RUN.key].items() >= (row | {"error": "no disk"}).items()
    assert kept.accuracy("CRATE-T", "digits").values == (90.0,)
    assert kept.failures() == {RUN.key: "no disk"}
    assert not kept.has(RUN, mark)
    kept.add(RUN, row)
    assert kept.failures() == {}
    assert kept.has(RUN, mark)


def test_a_failure_of_a_new_recipe_leaves_the_old_ones_result_and_is_current(tmp_path):
    results = Results(tmp_path / "results.json", "smoke")
    results.add(RUN, row_of(RUN, PLAN, 90.0, recipe="old"))
    results.add(RUN, {"error": "no disk", "recipe": fingerprint(RUN, PLAN.runs)})
    assert (results.rows[RUN.key]["top1"], results.rows[RUN.key]["recipe"]) == (90.0, "old")
    current = results.current(PLAN)
    assert current.failures() == {RUN.key: "no disk"}
    assert list(current.of(PLAN)) == []
    assert current.accuracy("CRATE-T", "digits") is None


def test_a_failure_that_is_the_first_thing_known(tmp_path):
    results = Results(tmp_path / "results.json", "smoke")
    results.add(RUN, {"error": "no disk", "recipe": "x"})
    assert results.rows[RUN.key] == {
        "task": "digits",
        "model": "CRATE-T",
        "variant": "light",
        "seed": 0,
        "error": "no disk",
        "recipe": "x",
        "looks": {},
    }
    assert results.accuracy("CRATE-T", "digits") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"rows": {}}', '{"scale": "smoke"}', '{"scale": "smoke", "rows": []}'],
)
def test_one_sentence_for_a_file_that_is_none(tmp_path, text):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"^.+ is not a file of results \(.+\); remove it, or give another --out$"):
        Results(file, "smoke")
    assert file.read_text() == text


@pytest.mark.parametrize("row", ["3", '"done"', "null", "[1]"])
def test_one_sentence_for_a_row_that_is_none(tmp_path, row):
    (tmp_path / "results.json").write_text(f'{{"scale": "smoke", "rows": {{"a": {row}}}}}')
    with pytest.raises(ValueError, match=r"results\.json is not a file of results"):
        Results(tmp_path / "results.json", "smoke")


def test_one_sentence_for_bytes_that_are_no_text(tmp_path):
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"results\.json is not a file of results"):
        Results(tmp_path / "results.json", "smoke")


def test_one_sentence_for_results_of_another_scale(tmp_path):
    file = tmp_path / "results.json"
    Results(file, "small").write()
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        Results(file, "smoke")
    assert str(caught.value) == f"{file} has results of scale small, not smoke; give another --out"


def test_a_file_that_every_reader_of_json_reads(tmp_path):
    """Of numbers that JSON does not know, nothing is left."""
    results = Results(tmp_path / "results.json", "smoke")
    results.add(RUN, row_of(RUN, PLAN, 90.0, looks={"fig3": {"Rc": [1.0, float("nan"), float("inf")]}}))
    content = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert content["rows"][RUN.key]["looks"] == {"fig3": {"Rc": [1.0, None, None]}}


def test_the_table_has_a_line_for_every_run(tmp_path):
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, 90.0) if run.start is None else None)
    results.add(TUNED, {"error": 'it said "no", twice'})
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        lines = {line["run"]: line for line in csv.DictReader(file)}
    assert list(lines) == list(results.rows)
    assert lines[RUN.key] == {
        "run": RUN.key,
        "task": "digits",
        "model": "CRATE-T",
        "variant": "light",
        "seed": "0",
        "top1": "90.0",
        "best": "90.0",
        "epochs": "2",
        "parameters": "1",
        "seconds": "60.0",
        "error": "",
        "revision": "0123456789abcdef",
        "hardware": "an abacus",
    }
    assert (lines[TUNED.key]["top1"], lines[TUNED.key]["error"]) == ("", 'it said "no", twice')
