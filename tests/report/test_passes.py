"""A report makes few passes through the networks.

A pass is one set of pictures that goes through one network once: every picture of the set is embedded once. Switching
off heads embeds nothing: its partial runs start from recorded tokens, so they add no pass (and about K·L/2 of work).
"""

from collections import Counter

import pytest
import torch

from opencrate import CRATE
from opencrate.inspection.recording import record
from opencrate.report import Analysis, analyze, sections
from opencrate.training import train

from ..networks import small
from ..runs import small_options, small_recipe

SAMPLES, VALIDATION = 8, 359  # the digits' validation pictures


@pytest.fixture
def embedded(monkeypatch):
    """How often each picture goes through each network, by the network's weights and the picture's pixels."""
    counts = Counter()
    embed = CRATE.embed

    def counted_embed(model, images):
        network = model.layers[0].U.sum().item()
        counts.update((network, image.sum().item(), image.std().item()) for image in images)
        return embed(model, images)

    monkeypatch.setattr(CRATE, "embed", counted_embed)
    monkeypatch.setattr(sections, "save", lambda *arguments: None)  # files of figures take most of the time
    return counts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "small"
    train(small_recipe(), small_options(folder))
    return folder


def test_the_whole_report_makes_five_passes(run, embedded, tmp_path):
    """Validation pictures, training pictures and the gallery through the network; validation through the untrained.

    Then up to 1,000 validation pictures for the accuracy, here all.
    """
    page = analyze(str(run), Analysis(samples=SAMPLES, batch=5, device="cpu", out=tmp_path / "a"))
    assert all(f'<section id="{name}">' in page.read_text() for name in ("layers", "audit", "attention", "ablation"))
    assert embedded.total() == 4 * SAMPLES + VALIDATION
    trained, untrained = (network for network, _ in Counter(key[0] for key in embedded.elements()).most_common())
    by_network = {network: [key for key in embedded if key[0] == network] for network in (trained, untrained)}
    # The gallery is a sample of the validation pictures of the same size, so it has the same pictures.
    once = [1] * VALIDATION  # of the others for the accuracy, and of the training pictures
    assert sorted(embedded[key] for key in by_network[trained]) == once + [3] * SAMPLES
    assert [embedded[key] for key in by_network[untrained]] == [1] * SAMPLES


@pytest.mark.parametrize(
    ("only", "passes"),
    [("layers", 3), ("audit", 2), ("tokens", 1), ("ablation", 1), ("subspaces", 0), ("epochs", 0)],
)
def test_a_section_makes_its_own_passes_only(run, embedded, tmp_path, only, passes):
    analyze(str(run), Analysis(samples=SAMPLES, batch=5, device="cpu", only=(only,), out=tmp_path / "a"))
    assert embedded.total() == passes * SAMPLES


def test_a_recording_of_the_first_pictures():
    """It equals the first part of a recording of all pictures, while every layer of all of them is seen."""
    model, images, visited = small(dtype=torch.float64), torch.randn(7, 3, 16, 16, dtype=torch.float64), []
    part, complete = record(model, images, 2, visited.append), record(model, images)
    for kept, seen, expected in zip(part.steps, visited, complete.steps, strict=True):
        for name in ("Z", "Z_half", "Z_next", "code"):
            assert torch.equal(getattr(kept, name), getattr(expected, name)[:2])
            assert torch.equal(getattr(seen, name), getattr(expected, name))
            assert getattr(kept, name).untyped_storage().nbytes() == getattr(kept, name).nbytes  # no view of the rest
    torch.testing.assert_close(part.logits, complete.logits[:2])
