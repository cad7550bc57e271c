"""RESULTS.md from made-up results: every number at its place, beside the paper's."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opencrate import figures
from opencrate.recipes import RECIPES
from reproduction.document import write_document
from reproduction.plan import PARTS, Plan
from reproduction.results import Results
from reproduction.scales import plan_for
from reproduction.tables import table1

from .filling import curve, filled, layers, row_of

PLAN = plan_for("smoke", {})
MISSING = ("digits-to-digits-again/vit-s/light/seed0", "digits-to-digits-again/vit-s/light/seed1")
FAILED = ("digits/crate-t/prox_mm/seed0", "digits/crate-t/prox_mm/seed1")

# The paper's tables 1 to 3, as they are printed.
MODELS = ("CRATE-T", "CRATE-S", "CRATE-B", "CRATE-L", "ViT-T", "ViT-S")
TABLE_1 = {
    "ImageNet": "66.7 69.2 70.8 71.3 71.5 72.4",
    "ImageNet ReaL": "74.0 76.0 76.5 77.4 78.3 78.4",
    "ImageNet → CIFAR-10": "95.5 96.0 96.8 97.2 96.6 97.2",
    "ImageNet → CIFAR-100": "78.9 81.0 82.7 83.6 81.8 83.2",
    "ImageNet → Flowers-102": "84.6 87.1 88.7 88.3 85.1 88.5",
    "ImageNet → Pets": "81.4 84.9 85.3 87.4 88.5 88.6",
}
TABLE_2 = {
    "η = 0.02 (0.1)": ("eta_0.02", "70.7", "−0.1"),
    "η = 0.5 (0.1)": ("eta_0.5", "66.7", "−4.1"),
    "λ = 0.02 (0.1)": ("lam_0.02", "70.8", "+0.0"),
    "λ = 0.5 (0.1)": ("lam_0.5", "70.5", "−0.3"),
    "0.6 × the epochs": ("epochs_90", "69.5", "−1.3"),
    "2 × the epochs": ("epochs_300", "70.9", "+0.1"),
    "weight decay 1.0 (0.5)": ("wd_1.0", "70.3", "−0.5"),
    "weight decay 0.05 (0.5)": ("wd_0.05", "70.2", "−0.6"),
    "2 × the learning rate": ("lr_4.8e-4", "70.2", "−0.6"),
    "½ × the learning rate": ("lr_1.2e-4", "70.3", "−0.5"),
}
TABLE_3 = {
    "tied MSSA, without a free output map": ("mssa_tied", "63.3", "−7.5"),
    "proximal majorisation instead of ISTA": ("prox_mm", "68.6", "−2.2"),
    "the same with the tight bound (ours)": ("prox_mm_tight", "–", ""),
    "tied, −κγ Y beside κγ MSSA(Y) (ours)": ("softmax_step", "–", ""),
    "tied, a step of the same length, without −κγ Y (ours)": ("mssa_tied_short", "–", ""),
    "the exact gradient of R^c (ours)": ("gradient_step", "–", ""),
}
LAYERS = {
    "fig3": layers([1200.4, 900, 700, 600], [1300, 1301, 1302, 1299.6], [0.5, 0.4, 0.301, 0.45]),
    "fig4": {"0": curve([9, 8], [0.5, 0.4]), "2": curve([8, 5], [0.4, 0.3])},
    "tokens": {"figure": "tokens.png"},
    "subspaces": {"figure": "subspaces.png", "coherence": [0.25, 0.125, 0.0625, 0.03125]},
    "probe": {"knn_20": 61.25, "linear": 72.5},
    "audit": {
        "samples": 64,
        "summary": ["Compression: so.", "Sparsification: so.", "Altogether: so."],
        "trained_layers": [
            {
                "compress": {
                    "grade": "no",
                    "change": -0.25,
                    "best": "common",
                    "difference": 0.02,
                    "interval": [-0.01, 0.05],
                },
                "sparsify": {
                    "grade": "yes",
                    "change": -0.5,
                    "best": "zero",
                    "difference": -0.125,
                    "interval": [-0.25, -0.0625],
                },
            },
            {"compress": {"grade": "unknown"}, "sparsify": {"grade": "too few"}},
        ],
        "untrained_layers": [
            {"compress": {"grade": "no"}, "sparsify": {"grade": "no"}},
            {"compress": {"grade": "yes"}, "sparsify": {"grade": "no"}},
        ],
        "gradient_cosine": [0.5, -0.25],
        "unit_cosine": [0.125, -0.0625],
    },
}
NUMBERS = {run.key: 40 + np.sqrt(i) for i, run in enumerate(PLAN.runs)}
"""Accuracies that no two runs share."""


def row(run):
    if run.key in MISSING:
        return None
    if run.key in FAILED:
        return {"error": "no disk"}
    looks = {look: LAYERS[look] for look in run.looks}
    parameters = 5_380_000 if run.variant == "light" else 1  # tied MSSA has other weights than the table's networks
    return row_of(run, PLAN, NUMBERS[run.key], looks=looks, parameters=parameters)


def accuracies(model, task, variant):
    return [NUMBERS[r.key] for r in PLAN.runs if (r.model, r.task, r.variant) == (model, task, variant)]


def told(values):
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def tables(text):
    """Of every section, its tables, each a list of lines of cells."""
    found, head = {}, ""
    for block in text.split("\n\n"):
        if block.startswith("#"):
            head = block.lstrip("# ")
        elif block.startswith("|"):
            lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.split("\n")]
            assert {len(line) for line in lines} == {len(lines[0])}, lines
            assert set(lines.pop(1)) == {"---"}
            found.setdefault(head.partition(":")[0], []).append(lines)
    return found


def links(text):
    return re.findall(r"\]\(([^)]*png)\)", text)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder of results with figures that need networks."""
    folder = tmp_path_factory.mktemp("out")
    filled(PLAN, folder, row)
    (folder / "figures").mkdir()
    for name in ("tokens.png", "subspaces.png"):
        (folder / "figures" / name).write_bytes(name.encode())
    return folder


@pytest.fixture(scope="module")
def text(out):
    file = write_document(PLAN, Results(out / "results.json", "smoke"), out, out)
    assert file == out / "RESULTS.md"
    return file.read_text(encoding="utf-8")


@pytest.fixture
def drawn(monkeypatch):
    """The curves by title and keys, from which no pictures are made: empty files stand for them."""
    found = {}

    def draw(curves, title):
        found[title, *curves] = curves

    def save(figure, folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
        for file in files:
            file.touch()
        return files

    monkeypatch.setattr(figures, "layer_curves", draw)
    monkeypatch.setattr(figures, "save", save)
    return found


def test_table_1_beside_the_papers(text):
    ours, paper = tables(text)["Table 1"]
    models = ["CRATE-T", "CRATE-S", "ViT-T", "ViT-S"]
    assert ours[0] == ["", *models]
    assert ours[1] == ["parameters", *["5.38 M"] * 4]
    tasks = ["digits", "digits → digits again", "digits again", "digits again → digits"]
    for line, task in zip(ours[2:], tasks, strict=True):
        expected = [told(accuracies(model, task, "light")) for model in models]
        if task == "digits → digits again":
            expected[-1] = "–"
        assert line == [task, *expected]
    sizes = [f"{millions} M" for millions in ["6.09", "13.12", "22.80", "77.64", "5.72", "22.05"]]
    assert paper[:2] == [["", *MODELS], ["parameters", *sizes]]
    assert paper[2:] == [[task, *values.split()] for task, values in TABLE_1.items()]


def test_table_1_of_half_the_learning_rate(tmp_path):
    plan = plan_for("small", {})
    results = filled(plan, tmp_path, lambda run: row_of(run, plan, {"light": 10.0}.get(run.variant, 80.0)))
    lines = table1(plan, results).splitlines()
    assert "| Fashion-MNIST | " + "10.00 ± 0.00 | " * 6 in " ".join(lines)
    for first, then in (("CIFAR-10", " → Fashion-MNIST"), ("Fashion-MNIST", " → CIFAR-10")):
        for task in ("", then):
            assert f"| {first}, ½ × the learning rate{task} | " + " | ".join(["80.00"] * 6) + " |" in lines


@pytest.mark.parametrize(
    ("scale", "told"),
    [
        (
            "small",
            "Fashion-MNIST from scratch: 10 epochs, 1 of them warm-up. An arrow is fine-tuning of the network that",
        ),
        ("small", "10 epochs, `adamw`, learning rate 5e-05, weight decay 0.01, crops, flips. ViT-T+ is"),
        ("full", "50 epochs, `adamw`, learning rate 5e-05, weight decay 0.01, crops, flips, torchvision-n2-m14. The"),
    ],
)
def test_table_1_tells_how(tmp_path, scale, told):
    assert told in table1(plan_for(scale, {}), Results(tmp_path / "results.json", scale))


def test_reassessed_labels_have_a_row_of_their_own(tmp_path, drawn):
    plan = plan_for("full", {}).only(["table1"], ["imagenet/*"])
    found = {"CRATE-T": {"top1": 74.25}, "ViT-T": {"why": "other pictures"}}

    def row(run):
        looks = {"real": found[run.model]} if run.model in found else {}
        return row_of(run, plan, 66.0, looks=looks)

    text = write_document(plan, filled(plan, tmp_path, row), tmp_path, tmp_path).read_text()
    assert "| ImageNet | 66.00 | 66.00 | 66.00 | 66.00 | 66.00 | 66.00 |\n" in text
    assert "| ImageNet ReaL | 74.25 | – | – | – | – | – |\n" in text


@pytest.mark.parametrize(("head", "table"), [("Table 2", TABLE_2), ("Table 3", TABLE_3)])
def test_what_is_varied_beside_the_papers(text, head, table):
    (lines,) = tables(text)[head]
    if head == "Table 3":
        assert [line.pop(1) for line in lines[:4]] == ["parameters", "5.38 M", "0.00 M", "–"]
        assert {line.pop(1) for line in lines[4:]} == {"0.00 M"}
    assert lines[0] == ["", "CRATE-T, digits", "difference ± its error", "paper, CRATE-B, ImageNet", "difference"]
    base = accuracies("CRATE-T", "digits", "light")
    assert lines[1] == ["CRATE-T as it is", told(base), "", "70.8", ""]
    for line, (words, (variant, *theirs)) in zip(lines[2:], table.items(), strict=True):
        values = accuracies("CRATE-T", "digits", variant)
        error = np.sqrt((np.var(values, ddof=1) + np.var(base, ddof=1)) / 2)
        ours = [told(values), f"{np.mean(values) - np.mean(base):+.2f} ± {error:.2f}".replace("-", "−")]
        assert line == [words, *(["–", "–"] if variant == "prox_mm" else ours), *theirs]


def test_the_strong_recipe(text):
    (lines,) = tables(text)["Accuracy with strong recipes"]
    assert lines[0] == ["", "the paper's settings", "our strong recipe", "our strong recipe and mixing"]
    for line, model in zip(lines[1:], ("CRATE-T", "ViT-T"), strict=True):
        assert line == [
            model,
            *(told(accuracies(model, "digits", variant)) for variant in ("light", "strong", "mixed")),
        ]
    assert "\n\nOur strong recipe: schedule.epochs 2 → 3.\n\n" in text
    assert "\n\nOur strong recipe and mixing: augment.cutmix 0.0 → 1.0; schedule.epochs 2 → 3.\n\n" in text


def test_layers_and_half_steps(text):
    found = tables(text)
    lines, light, strong, mixed = found["Figure 3"]
    assert lines[0] == ["layer", "1", "2", "3", "4"]
    assert [line[0] for line in light[1::4]] == ["CRATE-T (2 seeds): R^c, paper", "CRATE-S (2 seeds): R^c, paper"]
    for of in (strong, mixed):
        assert [line[:2] for line in of[1::4]] == [["CRATE-T (2 seeds): R^c, paper", "−50 %"]]
    assert lines[1:5] == [
        ["CRATE-T, untrained: R^c, unit", "1300", "1301", "1302", "1300"],
        ["CRATE-T, untrained: non-zero", ".50", ".50", ".50", ".50"],
        ["CRATE-T, trained: R^c, unit", "1200", "900", "700", "600"],
        ["CRATE-T, trained: non-zero", ".50", ".40", ".30", ".45"],
    ]
    assert [line[0].partition(",")[0] for line in lines[5:]] == ["CRATE-S"] * 4
    (audited,) = found["The effect of every half-step (CRATE-T)"]
    common, zero = "+2.0 % (−1.0 … +5.0), common", "−12.5 % (−25.0 … −6.2), zero"
    assert audited[1:] == [
        ["1", "no, −25.0 %", common, "no", "yes, −50.0 %", zero, "no", "+0.500", "+0.125"],
        ["2", "unknown", "–", "yes", "too few", "–", "no", "−0.250", "−0.062"],
    ]
    assert "- Compression: so.\n- Sparsification: so.\n" in text
    assert "by layer: 0.250, 0.125, 0.062, 0.031." in text


def test_networks_of_other_depths_share_a_table(tmp_path, drawn):
    """As the paper's large one, which has 24 layers where the others have 12."""

    def deeper(run):
        if run.model == "CRATE-S" and run.looks:
            return row(run) | {"looks": {"fig3": layers(range(9, 3, -1), [9] * 6, [0.5] * 6)}}
        return row(run)

    file = write_document(PLAN, filled(PLAN, tmp_path, deeper), tmp_path, tmp_path)
    lines, *_ = tables(file.read_text(encoding="utf-8"))["Figure 3"]
    assert lines[0] == ["layer", *"123456"]
    assert lines[3] == ["CRATE-T, trained: R^c, unit", "1200", "900", "700", "600", "", ""]
    assert lines[7] == ["CRATE-S, trained: R^c, unit", *"987654"]


def test_every_claim_has_a_verdict_and_its_evidence(text):
    (lines,) = tables(text)["What holds"]
    assert len(lines) == 1 + 29
    verdicts = {claim: (verdict, evidence) for claim, verdict, evidence in lines[1:]}
    assert verdicts["R^c falls with depth"][0] == "**holds**"
    assert verdicts["the proximal majorisation step costs accuracy"] == ("**not run**", "no run for it is done")
    assert verdicts["subspaces are more incoherent in later layers"] == (
        "**holds**",
        r"CRATE-T, seed 0: mean \|cos\| between their directions 0.188 in the first half of the layers,"
        " 0.047 in the second",
    )


def test_what_made_it(text):
    done = len(PLAN.runs) - len(MISSING) - len(FAILED)
    assert (
        f"{done} of {len(PLAN.runs)} runs on an abacus (torch 2.11, timm 1.0), {done} min in total, 60 s elapsed"
        " (several runs shared a GPU or CPU, which makes each slower), 2026-11-16." in text
    )  # of a minute each, all begun at one time
    assert "`python -m reproduction --scale smoke`" in text
    assert "Revisions 0123456; [results.csv](results.csv)" in text
    assert "**This scale only shows that everything runs." in text
    optim = "Lion with learning rate 0.002 and weight decay 0.5, batch 128 (2048 in the paper)"
    assert f"{optim}, 2 epochs (150), pictures of 16 pixels (224), mixup." in text


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([("01:00", 120), ("01:02", 60), ("05:00", 60)], "4 min in total, "),  # one after another, with a pause
        ([("01:00", 600), ("01:02", 60), ("01:09", 120)], "13 min in total, 11 min elapsed ("),
    ],
)
def test_time_of_runs_beside_each_other(spans, words, tmp_path):
    runs = iter(spans)

    def row(run):
        if (span := next(runs, None)) is None:
            return None
        begin, seconds = span
        row = row_of(run, PLAN, 80.0, seconds=seconds)
        return row | {"made": row["made"] | {"started": f"2026-11-16T{begin}:00+00:00"}}

    assert words in write_document(PLAN, filled(PLAN, tmp_path, row), tmp_path, tmp_path).read_text()


@pytest.mark.parametrize(("best", "told"), [(60.0, False), (60.1, True)])
def test_a_mark_is_explained_where_there_is_one(tmp_path, best, told):
    results = filled(PLAN, tmp_path, lambda run: row_of(run, PLAN, 50.0, best=best))
    text = write_document(PLAN, results, tmp_path, tmp_path).read_text()
    assert (
        ("†: a seed ended more than 10 points below its best epoch, or started" in text)
        == ("50.00 ± 0.00 †" in text)
        == told
    )


def test_failed_and_missing_runs_are_named(text):
    for key in FAILED:
        assert f"- `{key}`: no disk" in text
    assert f"Not run yet: 2 of {len(PLAN.runs)} runs; the first is `{MISSING[0]}`." in text
    waiting = [run for run in PLAN.runs if run.key in (*MISSING, *FAILED)]
    counts = [(part, sum(part in run.parts for run in waiting)) for part in PARTS]
    told = ", ".join(f"{count} for {part}" for part, count in counts if count)
    assert f"**Still to be run: 4 ({told}).**" in text


def test_figures_are_there_and_say_what_they_show(out, text):
    shown = links(text)
    names = [
        *(f"layers_{name}" for name in ("paper", "official", "unit", "sizes", "strong", "mixed")),
        "epochs",
        "tokens",
        "subspaces",
    ]
    assert shown == [f"figures/{name}.png" for name in names]
    for name in names[:7]:
        assert (out / f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "figures/tokens.png").read_bytes() == b"tokens.png"
    assert len(re.findall(r"!\[[^]]+\]\(", text)) == len(shown)


def test_the_curves_are_the_rows(tmp_path, drawn):
    write_document(PLAN, filled(PLAN, tmp_path, row), tmp_path, tmp_path)
    trained = drawn["CRATE-T", "validation", "training", "untrained"]
    assert [line["Rc"] for line in trained["untrained"].rows] == [1300, 1301, 1302, 1299.6]
    assert [line["layer"] for line in trained["validation"].rows] == [1, 2, 3, 4]
    assert [line["Rc"] for line in drawn["CRATE-T", "epoch 0", "epoch 2"]["epoch 2"].rows] == [8, 5]
    assert [line["nonzero"] for line in drawn["all sizes", "CRATE-T", "CRATE-S"]["CRATE-S"].rows][2] == 0.301


def test_the_strong_recipes_curves_are_its_own(tmp_path, drawn):
    """And are shown where no other network was opened."""

    def opened(run):
        if run.variant != "strong":
            return row_of(run, PLAN, 50.0)
        return row_of(
            run, PLAN, 50.0, looks={"fig3": layers([77.0, 66.0, 55.0, 44.0], [99.0] * 4)} if run.looks else {}
        )

    text = write_document(PLAN, filled(PLAN, tmp_path, opened), tmp_path, tmp_path).read_text(encoding="utf-8")
    assert [line["Rc"] for line in drawn["with our strong recipe", "CRATE-T"]["CRATE-T"].rows] == [77, 66, 55, 44]
    (changes,) = tables(text)["Figure 3"]
    assert changes[1][:3] == ["CRATE-T (2 seeds): R^c, paper", "−43 %", "−33 %"]


def test_a_document_in_another_folder_has_all_it_needs(out, tmp_path, drawn):
    folder = tmp_path / "docs"
    file = write_document(PLAN, Results(out / "results.json", "smoke"), out, folder)
    assert file == folder / "RESULTS.md"
    shown = links(file.read_text(encoding="utf-8"))
    assert len(shown) == 9
    for link in shown:
        assert link.startswith("results/smoke/")
        assert (folder / link).is_file()
    copied = json.loads((folder / "results/smoke/results.json").read_text(encoding="utf-8"))
    assert copied == json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_what_a_person_noticed_is_in_it(out, tmp_path, drawn):
    folder, words = tmp_path / "docs", "## What surprised us\n\nThe abacus."
    (folder / "results/smoke").mkdir(parents=True)
    (folder / "results/smoke/notes.md").write_text(f"\n{words}\n", encoding="utf-8")
    file = write_document(PLAN, Results(out / "results.json", "smoke"), out, folder)
    assert f"\n\n{words}\n\n## Table 1" in file.read_text(encoding="utf-8")


def test_the_forms_of_the_pictures_are_told_by_set(tmp_path, drawn):
    forms = {"digits": "idx", "digits → digits again": "folder"}
    results = filled(PLAN, tmp_path, lambda run: (row(run) or {}) | {"pictures": forms.get(run.task, "packed")})
    text = write_document(PLAN, results, tmp_path, tmp_path).read_text(encoding="utf-8")
    assert ": digits idx and packed (may differ); digits again folder and packed (may differ)." in text


def test_the_same_results_give_the_same_bytes(out, text):
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    write_document(PLAN, Results(out / "results.json", "smoke"), out, out)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_results_of_another_recipe_are_left_out(tmp_path, drawn):
    """An older plan's: its rows are in the file, and its runs are not run yet."""
    results = filled(PLAN, tmp_path, lambda run: row(run) if run.start is None else None)
    first = PLAN.runs[0]
    newer = replace(first, recipe=replace(first.recipe, label_smoothing=0.2))
    plan = Plan("smoke", (newer, *PLAN.runs[1:]), PLAN.samples)
    text = write_document(plan, results, tmp_path, tmp_path).read_text(encoding="utf-8")
    ours, _ = tables(text)["Table 1"]
    other = next(
        run.key for run in PLAN.runs[1:] if (run.model, run.task, run.variant) == ("CRATE-T", "digits", "light")
    )
    assert ours[2][1] == f"{NUMBERS[other]:.2f}"
    assert f"the first is `{first.key}`." in text


def test_a_document_of_nothing(tmp_path):
    """Tables without numbers, no figures, and no error."""
    file = write_document(PLAN, filled(PLAN, tmp_path, lambda run: None), tmp_path, tmp_path)
    text = file.read_text(encoding="utf-8")
    assert f"0 of {len(PLAN.runs)} runs. " in text
    assert "No run is done." in text
    assert links(text) == []
    ours, paper = tables(text)["Table 1"]
    assert {cell for line in ours[1:] for cell in line[1:]} == {"–"}
    assert paper[2][1] == "66.7"


def test_the_document_of_the_project_is_what_the_command_writes(tmp_path):
    """From the results that are committed, of the plan as it is now."""
    docs = Path(__file__).parents[2] / "docs"
    there = docs / "results" / "small"
    (tmp_path / "figures").mkdir()
    shutil.copy(there / "results.json", tmp_path)
    for figure in there.glob("*.png"):
        shutil.copy(figure, tmp_path / "figures")
    (tmp_path / "docs/results/small").mkdir(parents=True)
    if (there / "notes.md").is_file():
        shutil.copy(there / "notes.md", tmp_path / "docs/results/small")
    file = write_document(
        plan_for("small", {}), Results(tmp_path / "results.json", "small"), tmp_path, tmp_path / "docs"
    )
    assert file.read_text(encoding="utf-8") == (docs / "RESULTS.md").read_text(encoding="utf-8")
    assert (tmp_path / "docs/results/small/results.json").read_bytes() == (there / "results.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "model", "variant"),
    [
        *((f"cifar10_{size}", f"CRATE-{size[0].upper()}", "light") for size in ("tiny", "small", "base")),
        ("cifar10_vit_tiny", "ViT-T", "light"),
        ("cifar10_tiny_strong", "CRATE-T", "strong"),
        ("cifar10_base_strong", "CRATE-B", "mixed"),
        ("cifar10_vit_tiny_strong", "ViT-T", "strong"),
    ],
)
def test_recipes_expect_what_the_document_has(name, model, variant):
    """And by how many seeds it is known."""
    found = Results(Path(__file__).parents[2] / "docs/results/small/results.json", "small")
    sample, expected = found.accuracy(model, "CIFAR-10", variant), RECIPES[name]().expected
    assert expected.top1 == round(sample.mean, 1)
    assert expected.source.endswith({1: "one seed", 3: "mean of three seeds"}[len(sample.values)])
