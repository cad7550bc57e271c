import csv
import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from opencrate import layerwise, load, save_pretrained
from opencrate.checkpoints.key_maps import to_authors
from opencrate.cli import main
from opencrate.measures.audit import audit
from opencrate.measures.nulls import CODES, MOVES
from opencrate.measures.verdicts import null_rows, signed, summary, verdicts
from opencrate.report import Analysis, analyze, audit_of, sections
from opencrate.report.sections import Section, labels, prepared
from opencrate.settings import SECTIONS, Studying
from opencrate.sources import open_sources

from ..networks import small

FEW = Analysis(samples=4, batch=3, device="cpu")


def test_everything_is_written(report):
    folder = report.parent
    assert report.name == "report.html"
    figures = {file.stem for file in (folder / "figures").glob("*.png")}
    assert figures == {file.stem for file in (folder / "figures").glob("*.pdf")}
    assert figures >= {
        "layers_paper",
        "layers_official",
        "layers_unit",
        "audit",
        "subspaces",
        "subspaces_full",
        "tokens_1",
        "tokens_1_full",
    }
    assert figures >= {"token_colours", "attention_1", "head_patches", "atom_patches", "head_importance"}
    assert {file.name for file in (folder / "tables").iterdir()} == {
        "COLUMNS.txt",
        "audit.csv",
        "audit.json",
        "audit_nulls.csv",
        "audit_samples.csv",
        "head_importance.csv",
        "layers.json",
        "layers_official.csv",
        "layers_paper.csv",
        "layers_unit.csv",
        "subspaces.csv",
    }
    told = json.loads((folder / "analysis.json").read_text())
    # a checkpoint in no run has no epochs, and these pictures have no classes
    assert told["parts"] == [name for name in SECTIONS if name not in ("accuracy", "epochs")]


def test_tables_hold_what_the_functions_measure(report, checkpoint, pictures):
    model = load(checkpoint)
    (source,) = open_sources(checkpoint, model, Studying(images=str(pictures)))
    for name in ("paper", "official", "unit"):
        table = layerwise(model, source.batches(9, 4), name)
        found = json.loads((report.parent / "tables/layers.json").read_text())[name]
        curve = found[f"folder {pictures.name}"]
        assert curve["definition"]["name"] == name
        assert curve["samples"] == 9
        for row, expected in zip(curve["rows"], table.rows, strict=True):
            assert row == pytest.approx(expected, rel=1e-4)
        lines = list(csv.DictReader((report.parent / f"tables/layers_{name}.csv").read_text().splitlines()))
        assert {line["definition"] for line in lines} == {name}
        assert {line["curve"] for line in lines} == {f"folder {pictures.name}", "untrained"}
    found = json.loads((report.parent / "tables/audit.json").read_text())
    expected = audit(model, source.batches(9, 4))
    assert [row["verdict"] for row in found["rows"]] == [verdict.text for verdict in verdicts(expected)]
    assert found["summary"][:2] == list(summary(expected))[:2]
    nulls = list(csv.DictReader((report.parent / "tables/audit_nulls.csv").read_text().splitlines()))
    own = [row for row in nulls if row["network"] == "trained"]
    assert [float(row["mean"]) for row in own] == pytest.approx([row["mean"] for row in null_rows(expected)], rel=1e-6)
    assert {row["network"] for row in nulls} == {"trained", "untrained"}


def test_every_column_is_explained(report):
    told = (report.parent / "tables/COLUMNS.txt").read_text()
    row = json.loads((report.parent / "tables/audit.json").read_text())["rows"][0]
    for name in row:
        plain = re.sub(r"@.*$", "", re.sub(r"(_std|_low|_high)$", "", name))
        stem = re.sub(r"^(neumann|softmax|compress_null|compress_spread|sparsify_null)_.*$", r"\1_", plain)
        stem = re.sub(r"^(compress|sparsify)_after$", r"\1_before, _after", stem)
        assert stem in told or plain in ("layer", "verdict", "grades"), name


def test_the_page_says_what_the_network_is_and_explains_its_words(report):
    page = report.read_text(encoding="utf-8")
    for words in ("3 of 4 heads", "4 × 4 patches and the class token", "ista (eta = 0.1, lam = 0.1)", "not known"):
        assert words in page
    for words in (
        "Does each layer do what it was designed for?",
        "R<sup>c</sup>",
        "U<sub>k</sub>",
        "9 of 9",
        "16 × 16",
    ):
        assert words in page
    assert "R^c" not in re.sub(r'alt="[^"]*"', "", page)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"base64,[^\"]*", "", page), re.IGNORECASE)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert "<script" not in page


def test_only_some_parts_and_one_definition(checkpoint, pictures, tmp_path, capsys):
    options = [
        "--images",
        str(pictures),
        "--samples",
        "3",
        "--device",
        "cpu",
        "--only",
        "layers",
        "--definitions",
        "paper",
    ]
    main(["analyze", checkpoint, *options, "--out", str(tmp_path / "a")])
    assert capsys.readouterr().out.startswith(str(tmp_path / "a/report.html"))
    assert {file.stem for file in (tmp_path / "a/figures").iterdir()} == {"layers_paper"}
    main(["analyze", checkpoint, *options, "--out", str(tmp_path / "a")])  # an earlier analysis gives way


def test_curves_of_several_networks(checkpoint, pictures, tmp_path):
    wider = small(seed=1, embed_dim=32)
    save_pretrained(wider, tmp_path / "wider")
    chosen = replace(FEW, images=str(pictures), only=("layers",), definitions=("paper",), out=tmp_path / "a")
    analyze(checkpoint, replace(chosen, against=(str(tmp_path / "wider"),)))
    found = json.loads((tmp_path / "a/tables/layers.json").read_text())["paper"]
    assert list(found) == ["model", "wider", "untrained"]
    with pytest.raises(ValueError, match="networks to compare must differ"):
        analyze(checkpoint, replace(chosen, against=(checkpoint,)))


def test_networks_of_one_name_get_longer_ones():
    assert labels(["a/model", "b/model"]) == ["a/model", "b/model"]
    assert labels(["runs/tiny", "runs/small"]) == ["tiny", "small"]
    assert labels(["runs/untrained"]) == ["runs/untrained"]


def test_pictures_come_from_all_over_the_set(checkpoint, pictures):
    (source,) = open_sources(checkpoint, load(checkpoint), Studying(images=str(pictures)))
    everything = torch.cat(list(source.batches(9)))
    for samples, numbers in ((3, [0, 3, 6]), (6, [0, 1, 3, 4, 6, 7]), (20, list(range(9)))):
        assert torch.equal(torch.cat(list(source.batches(samples, 2))), everything[numbers])


def test_an_earlier_analysis_leaves_nothing_behind(checkpoint, pictures, tmp_path):
    chosen = replace(FEW, images=str(pictures), only=("layers",), out=tmp_path / "a")
    analyze(checkpoint, chosen)
    analyze(checkpoint, replace(chosen, only=("subspaces",)))
    assert {file.name for file in (tmp_path / "a/tables").iterdir()} == {"COLUMNS.txt", "subspaces.csv"}


def test_the_page_tells_the_command_that_makes_it_again(checkpoint, pictures, tmp_path):
    out = tmp_path / "a b"
    chosen = replace(FEW, images=str(pictures), samples=2, only=("subspaces",), pictures=(3, 1), out=out)
    page = html.unescape(analyze(checkpoint, chosen).read_text())
    assert (
        f"opencrate analyze {checkpoint} --images {pictures} --samples 2 --pictures 3 1 --only subspaces --out '{out}'"
        in page
    )


def test_classes_of_another_set_are_not_the_networks(tmp_path):
    model = small(in_chans=1, num_classes=1000)
    save_pretrained(model, tmp_path / "model")
    page = analyze(
        str(tmp_path / "model"), replace(FEW, data="digits", only=("attention",), out=tmp_path / "a")
    ).read_text()
    assert "predicted" in page
    assert ": it is" not in page


def test_a_network_that_pools_nothing(pictures, tmp_path):
    save_pretrained(small(global_pool=""), tmp_path / "model")
    page = analyze(
        str(tmp_path / "model"), replace(FEW, images=str(pictures), only=("attention", "ablation"), out=tmp_path / "a")
    )
    assert "predicted" not in page.read_text()


def test_another_eps_gives_the_definition_another_name(checkpoint, pictures, tmp_path):
    chosen = replace(FEW, images=str(pictures), only=("layers",), eps=0.5, out=tmp_path / "a")
    page = analyze(checkpoint, chosen).read_text()
    assert "definition “paper, ε = 0.5”" in page
    found = json.loads((tmp_path / "a/tables/layers.json").read_text())["official, ε = 0.5"]["untrained"]["definition"]
    assert (found["name"], found["eps"]) == ("official, ε = 0.5", 0.5)


def test_chosen_pictures_come_first(checkpoint, pictures):
    model = load(checkpoint)
    (source,) = open_sources(checkpoint, model, Studying(images=str(pictures)))
    everything = torch.cat(list(source.batches(9, 9)))
    gallery = source.gallery(4, chosen=(7, 2))
    assert torch.equal(gallery.images[:2], everything[[7, 2]])
    assert gallery.shown.shape == (4, 16, 16, 3)
    assert gallery.targets == (None,) * 4


def test_the_audit_on_the_command_line(checkpoint, pictures, capsys):
    main(["audit", checkpoint, "--images", str(pictures), "--samples", "4", "--device", "cpu"])
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "opencrate: audit (0 of 4 pictures done)",
        "opencrate: audit of the untrained network (0 of 4 pictures done)",
    ]
    assert printed.out.startswith("audit of 4 pictures, ε = 0.1\n\nCompression: not graded")
    assert max(map(len, printed.out.splitlines())) <= 80
    assert re.findall(r"^ +(\d)   too few", printed.out, re.MULTILINE) == ["1", "2", "3"]
    trained, untrained = audit_of(checkpoint, replace(FEW, images=str(pictures)))
    assert trained.samples == untrained.samples == 4
    main(["audit", checkpoint, "--images", str(pictures), "--samples", "4", "--device", "cpu", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["summary"] == list(summary(trained, untrained))


def test_the_table_of_nulls_on_the_command_line(checkpoint, pictures, capsys):
    options = ["--images", str(pictures), "--samples", "4", "--device", "cpu"]
    main(["audit", checkpoint, *options, "--nulls"])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    titles = re.findall(r"^(.*(?:compress|sparsify)): ", printed, re.MULTILINE)
    halves = [*["compress"] * 2, "sparsify"]  # five nulls abreast
    assert titles == [*halves, *[f"untrained network, {half}" for half in halves]]
    shown = printed[printed.index("Means over") :]
    for name in ("opposite", "shuffled", "noise", *CODES):  # the others may collapse the tokens
        assert len(re.findall(rf" {name}\b", shown)) >= 2
    assert {*re.findall(r"[a-z]+", shown)} & MOVES.keys() > {"opposite", "shuffled", "noise"}
    assert len(re.findall(r"± +[\d.]+ *$", printed, re.MULTILINE)) >= 12  # nothing is cut off
    trained, _ = audit_of(checkpoint, replace(FEW, images=str(pictures)))
    first = signed(trained.differences("compress")["opposite"][0].mean().item()).removesuffix(" %")
    assert re.search(rf"^ +1 +{re.escape(first)} ± ", printed, re.MULTILINE)


def test_an_authors_checkpoint(pictures, tmp_path):
    model = timm.create_model("crate_tiny_patch16_224", img_size=32, num_classes=3)
    torch.save({"state_dict": to_authors(model.state_dict())}, tmp_path / "model_best.pth.tar")
    page = analyze(
        str(tmp_path / "model_best.pth.tar"), replace(FEW, images=str(pictures), only=("layers",), out=tmp_path / "a")
    )
    assert "12 of 6 heads" in page.read_text()


def test_a_vit_shows_what_can_be_compared(pictures, tmp_path):
    page = analyze("vit_tiny_patch16_224", replace(FEW, images=str(pictures), samples=2, out=tmp_path / "a"))
    text = page.read_text()
    assert "need a layer" in text
    assert "fresh weights" in text
    rows = list(csv.DictReader((tmp_path / "a/tables/tokens.csv").read_text().splitlines()))
    assert len(rows) == 12
    assert {row["nonzero"] for row in rows} == {"1.0"}


@pytest.mark.parametrize("kind", ["one", "constant", "dead", "half"])
def test_odd_networks_and_pictures(kind, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "save", lambda *arguments: None)  # the page draws every figure once more
    model = small()
    if kind == "dead":
        with torch.no_grad():
            model.blocks[1].compress.operator.UT[:6] = 0
    if kind == "half":
        model = model.half()
    save_pretrained(model, tmp_path / "model")
    if kind == "constant":
        pictures = tmp_path / "grey"
        pictures.mkdir()
        for i in range(2):
            Image.fromarray(np.full((20, 20, 3), 128, np.uint8)).save(pictures / f"{i}.png")
    chosen = replace(FEW, images=str(pictures), samples=1 if kind == "one" else 4, out=tmp_path / "a")
    page = analyze(str(tmp_path / "model"), chosen).read_text()
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"base64,[^\"]*", "", page), re.IGNORECASE)
    if kind == "dead":
        assert "Dead heads, onto which everything projects to zero: layer 2, head 1." in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["MODEL"], "so its dataset is unknown; pass --images FOLDER, --recipe NAME or --data NAME"),
        (["MODEL", "--images", "EMPTY"], "there is no picture in"),
        (["MODEL", "--images", "NOWHERE"], "is not a folder"),
        (["MODEL", "--images", "PICTURES", "--out", "PICTURES"], "contains files that are not an analysis"),
        (["MODEL", "--images", "PICTURES", "--out", "FILE"], "is a file; choose a folder"),
        (["MODEL", "--images", "PICTURES", "--out", "FILE/below"], "cannot be written"),
        (["MODEL", "--images", "PICTURES", "--only", "layer"], "unknown section 'layer'; did you mean 'layers'?"),
        (["MODEL", "--images", "PICTURES", "--definitions", "offical"], "unknown definition 'offical'"),
        (["MODEL", "--images", "PICTURES", "--samples", "0"], "samples must be at least 1, got 0"),
        (["MODEL", "--images", "PICTURES", "--recipe", "digits"], "both name pictures; pass one of them"),
        (["MODEL", "--images", "PICTURES", "--pictures", "9", "--only", "tokens"], "there is no picture 9: the folder"),
        (["MODEL", "--images", "PICTURES", "--eps", "0"], "eps must be positive"),
        (["MODEL", "--images", "PICTURES", "--token", "99", "--only", "attention"], "token must be a whole number"),
        (["resnet18", "--images", "PICTURES", "--samples", "1"], "does not hand out tokens"),
        (
            ["vit_tiny_patch16_224", "--images", "PICTURES", "--only", "audit"],
            "--only needs a network with CRATE",
        ),
        (["MODEL", "--data", "torch/cifar10", "--root", "NOWHERE"], "its folder, --root FOLDER"),
        (["crate_tiny_patch16_22"], "did you mean 'crate_tiny_patch16_224'?"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, checkpoint, pictures, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = {"MODEL": checkpoint, "PICTURES": str(pictures), "EMPTY": str(tmp_path / "empty"), "NOWHERE": "/nowhere"}
    places |= {"FILE": str(tmp_path / "file"), "FILE/below": str(tmp_path / "file" / "below")}
    with pytest.raises(SystemExit):
        main(["analyze", *(places.get(word, word) for word in arguments)])
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert sentence in told
    assert "Traceback" not in told


def test_weights_that_are_no_numbers_are_named(pictures, tmp_path, capsys):
    model = small()
    with torch.no_grad():
        model.blocks[1].sparsify.operator.D[0, 0] = torch.nan
    save_pretrained(model, tmp_path / "model")
    with pytest.raises(SystemExit):
        main(
            [
                "analyze",
                str(tmp_path / "model"),
                "--images",
                str(pictures),
                "--samples",
                "2",
                "--out",
                str(tmp_path / "a"),
            ]
        )
    assert "finite" in capsys.readouterr().err


def test_no_nan_in_a_table_without_a_name(tmp_path):
    section = Section("layers", prepared(tmp_path / "a"))
    section.json("x", {"Rc": float("nan")})
    section.csv("x", [{"Rc": float("nan"), "nonzero": float("-inf")}])
    assert json.loads((tmp_path / "a/tables/x.json").read_text()) == {"Rc": None}
    assert (tmp_path / "a/tables/x.csv").read_text() == "Rc,nonzero\nnot a number,minus infinite\n"


def test_the_first_pictures_of_a_gallery_see_all_classes(monkeypatch):
    """Of a set that is sorted by class, every prefix that was asked for is a stratified sample."""
    model = small(in_chans=1, num_classes=10)
    source, *_ = open_sources("digits", model, Studying(data="digits"), training=False)
    order = source.feed.targets.argsort(stable=True)
    for name in ("images", "targets"):
        monkeypatch.setattr(source.feed, name, getattr(source.feed, name)[order])
    gallery = source.gallery(64, prefixes=(10, 24))
    assert len(gallery.targets) == 64
    for size in (10, 24, 64):
        assert set(gallery.targets[:size]) == set(range(10))
    chosen = source.gallery(20, chosen=(5, 3), prefixes=(12,))
    assert len(set(map(bytes, chosen.shown))) == 20
    assert set(chosen.targets[2:12]) == set(range(10))
