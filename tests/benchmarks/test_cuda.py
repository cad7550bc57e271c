import pytest
import torch

from benchmarks import measure
from benchmarks.__main__ import main
from benchmarks.attention import Shape
from benchmarks.report_file import read
from benchmarks.timing import record_graph

from .families import SmallFamily

pytestmark = [pytest.mark.gpu, pytest.mark.unhooked]


def test_a_recorded_call_reads_what_is_in_its_memory_now():
    given, found = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    replay = record_graph(lambda: found.copy_(2 * given))
    given.fill_(5.0)
    replay()
    assert found.tolist() == [10.0] * 8


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # the products are to be float32's
def test_every_part_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "Family", SmallFamily)
    monkeypatch.setattr(measure, "shapes_for", lambda *_: [("sweep", Shape(2, n, 2, 64)) for n in (65, 128)])
    variants = ["pseudocode-eager", "opencrate-eager", "opencrate-compiled", "folded-eager", "vit-eager"]
    options = ["--device", "cuda", "--precision", "fp32", "--rounds", "2", "--seconds", "0.01", "--out", str(tmp_path)]
    main(["--quick", "--variants", *variants, *options])
    report = read(tmp_path / "bench.json")
    for comparison in report["comparisons"]:
        for row in comparison["rows"]:
            assert (row["status"], row["why"]) == ("measured", "")
            assert ("recorded pass" in row["timings"]) == (comparison["task"] == "latency")
            assert (row["peak_bytes"] is None) == (comparison["task"] == "latency")
    for shape in report["attention"]:
        assert [(row["implementation"], row["status"]) for row in shape["rows"]] == [
            ("kernel", "measured"),
            ("sdpa", "measured"),
            ("plain", "measured"),
        ]
        assert shape["rows"][0]["same_bits"] is True
