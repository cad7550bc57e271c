"""Reports of networks with operators that a user wrote: what does not apply is left out with a sentence."""

import csv
import json
import re

import pytest
import torch

from opencrate import save_pretrained
from opencrate.operators import Compression, compressions
from opencrate.report import Analysis, analyze, sections
from opencrate.settings import SECTIONS

from .. import user_operators  # noqa: F401
from ..networks import small

ALWAYS = set(SECTIONS) - {"accuracy", "epochs"}


@compressions.register("mean_of_tokens")
class MeanOfTokens(Compression):
    """No subspaces, no maps, no heads to switch off."""

    def __init__(self, dim):
        super().__init__()
        self.W = torch.nn.Linear(dim, dim)

    def forward(self, Y):
        return self.W(Y.mean(-2, keepdim=True)).expand_as(Y)


@pytest.mark.parametrize(
    ("operators", "omitted", "sentence"),
    [
        ({"sparsify": "dictionary"}, set(), "dictionary"),
        ({"compress": "tssa"}, {"attention", "ablation"}, "the compression tssa has no attention maps."),
        ({"sparsify": "attention_only"}, set(), "The sparsification has no code."),
        ({"sparsify": "none"}, set(), "The sparsification has no code."),
        ({"compress": "mssa", "compress_args": {"basis": "orthonormal"}}, set(), "basis = orthonormal"),
        (
            {"compress": "mean_of_tokens"},
            {"subspaces", "attention", "ablation"},
            "The section “The subspaces” is left out: the compression has no subspaces.",
        ),
    ],
)
def test_the_report_of_a_users_operator(operators, omitted, sentence, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "save", lambda *arguments: None)
    model = small(**operators)
    save_pretrained(model, tmp_path / "model")
    settings = Analysis(images=str(pictures), samples=4, batch=3, device="cpu", out=tmp_path / "a")
    page = analyze(str(tmp_path / "model"), settings).read_text()
    assert set(json.loads((tmp_path / "a/analysis.json").read_text())["parts"]) == ALWAYS - omitted
    plain = re.sub(r"base64,[^\"]*", "", page)
    assert sentence in plain
    assert not re.search(r"\b(nan|inf|None)\b", plain)
    with (tmp_path / "a/tables/layers_paper.csv").open() as file:
        assert all(float(row["nonzero"]) > 0 for row in csv.DictReader(file))


def test_a_section_that_was_asked_for_alone_says_why_it_is_impossible(pictures, tmp_path):
    save_pretrained(small(compress="tssa"), tmp_path / "model")
    settings = Analysis(images=str(pictures), samples=2, device="cpu", only=("attention",), out=tmp_path / "a")
    with pytest.raises(ValueError, match="the compression tssa has no attention maps"):
        analyze(str(tmp_path / "model"), settings)
