import pytest
import torch

from benchmarks import attention
from benchmarks.attention import NETWORK_SHAPES, Shape, measure_attention, shapes_for

CPU = torch.device("cpu")


def test_the_sweep_has_a_fixed_number_of_tokens():
    shapes = shapes_for(cuda=True, quick=False)
    assert [tuple(shape) for kind, shape in shapes if kind == "network"] == list(NETWORK_SHAPES)
    sweep = [shape for kind, shape in shapes if kind == "sweep"]
    assert [shape.n for shape in sweep] == [2**i for i in range(6, 15)]
    assert {shape.b * shape.n for shape in sweep} == {65_536}
    assert all(shape.b >= 1 for _, shape in shapes_for(cuda=False, quick=False))


def test_what_is_measured():
    found = measure_attention("sweep", Shape(2, 17, 3, 8), CPU, "fp32", 2.0, 0.001, 2)
    kernel, sdpa, plain = found["rows"]
    assert (found["b"], found["n"], found["k"], found["p"]) == (2, 17, 3, 8)
    assert (kernel["status"], kernel["why"]) == ("left out", "needs a GPU")
    for row in (sdpa, plain):
        assert row["status"] == "measured"
        assert row["same_bits"] is True
        assert max(row["output_error"], row["gradient_error"]) < 1e-6
        assert row["timings"]["forward"]["ms"] > 0
        assert row["timings"]["forward_backward"]["times_as_fast_as"].keys() == {"sdpa", "plain"}


def test_maps_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setattr(attention, "_memory", lambda _: 2**20)
    _, sdpa, plain = measure_attention("sweep", Shape(1, 200, 1, 8), CPU, "fp32", 2.0, 0.001, 1)["rows"]
    assert (plain["status"], plain["why"]) == ("left out", "its n × n maps do not fit")
    assert (sdpa["status"], sdpa["gradient_error"]) == ("measured", None)


@pytest.mark.parametrize("wrong", ["outputs", "gradients"])
def test_attention_that_computes_something_else_has_no_speed(monkeypatch, wrong):
    right = attention.attend

    def broken(V, scale, attention="auto"):
        if attention == "sdpa" and wrong == "outputs":
            return right(V, 1.01 * scale, attention=attention)
        output = right(V, scale, attention=attention)
        return output + 0.01 * (V - V.detach()) if attention == "sdpa" else output

    monkeypatch.setattr(attention, "attend", broken)
    _, sdpa, plain = measure_attention("sweep", Shape(2, 17, 3, 8), CPU, "fp32", 2.0, 0.001, 1)["rows"]
    assert sdpa["status"] == "disagrees"
    assert sdpa["timings"] == {}
    assert plain["status"] == "measured"
