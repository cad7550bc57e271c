"""A picture passes through a network once: whatever is asked about it afterwards is answered from the recording."""

from collections import Counter

import pytest
import torch

pytest.importorskip("uvicorn")

from opencrate import CRATE, layerwise
from opencrate.explorer import open_subject, reference
from opencrate.explorer.picture_store import LRUCache, PictureStore
from opencrate.explorer.server import _Questions
from opencrate.explorer.subject import Variant
from opencrate.inspection.recording import record
from opencrate.layers import HalfStep

from .files import encoded, noise

LAYERS, CLICKS = 3, [("attention", {"token": 5}), ("head", {"layer": 2, "head": 3})]
CLICKS += [("coordinate", {"layer": 3, "coordinate": 7}), ("look", {})]
OFF = {"heads": [[1, 2]], "atoms": [[2, 5]]}


@pytest.fixture
def passes(monkeypatch):
    """Pictures that were embedded, and calls of half-steps, in any network; `passes` counts from its last `clear`."""
    counted = Counter()

    def counting(name, method):
        def counted_method(self, tokens, *rest):
            counted[name] += len(tokens) if name == "pictures" else 1
            return method(self, tokens, *rest)

        return counted_method

    monkeypatch.setattr(CRATE, "embed", counting("pictures", CRATE.embed))
    monkeypatch.setattr(HalfStep, "skip", counting("half-steps", HalfStep.skip))
    return counted


@pytest.fixture
def questions(checkpoint, settings):
    """Of a subject whose reference pictures were not measured yet."""
    return _Questions(open_subject(checkpoint, settings))


@pytest.mark.parametrize("how", ["upload", "sample"])
def test_a_click_makes_no_pass(questions, passes, how):
    questions.subject.measure_reference().join()
    assert passes == {"pictures": 6, "half-steps": 2 * LAYERS}  # all six reference pictures together
    passes.clear()
    answer = questions.upload(encoded(noise())) if how == "upload" else questions.sample({"number": 2})
    assert passes == {"pictures": 1, "half-steps": 2 * LAYERS}
    passes.clear()
    for name, asked in CLICKS:
        assert questions.by_name[name]({"key": answer["key"], **asked})
    assert passes == {}


@pytest.mark.parametrize("variant", [{"network": "untrained"}, {"off": OFF}])
def test_a_variant_makes_one_pass(questions, passes, variant):
    questions.subject.measure_reference().join()
    key = questions.sample({"number": 0})["key"]
    passes.clear()
    questions.look({"key": key, **variant})
    assert passes == {"pictures": 1, "half-steps": 2 * LAYERS}
    questions.head({"key": key, "layer": 1, "head": 1, **variant})
    assert passes == {"pictures": 1 + 6, "half-steps": 4 * LAYERS}  # the reference pictures, in this variant
    passes.clear()
    for name, asked in CLICKS:
        assert questions.by_name[name]({"key": key, **asked, **variant})
    questions.look(
        {"key": key, "off": {"heads": OFF["heads"][::-1], "atoms": OFF["atoms"] * 2}}
        if "off" in variant
        else {"key": key}
    )
    assert passes == {}
    questions.look({"key": key, "off": {"heads": [[1, 3]]}})
    assert passes["pictures"] == 1


def test_a_click_before_the_reference_is_measured_makes_its_pass(questions, passes):
    key = questions.sample({"number": 0})["key"]
    passes.clear()
    questions.head({"key": key, "layer": 1, "head": 1})
    assert passes["pictures"] == 6
    questions.subject.measure_reference().join()
    assert passes["pictures"] == 6
    assert questions.subject.reference.means["samples"] == 6


@pytest.mark.parametrize(("gallery", "searched", "passed"), [(64, 2, 6), (4, 2, 2 + 6)])
def test_a_larger_reference_set(checkpoint, settings, passes, monkeypatch, gallery, searched, passed):
    """Pictures beyond those in which patches are looked for are measured in batches, and all enter the mean."""
    monkeypatch.setattr(reference, "GALLERY", gallery)
    monkeypatch.setattr(reference, "SEARCHED", searched)
    subject = open_subject(checkpoint, settings)
    subject.measure_reference().join()
    assert passes["pictures"] == passed
    assert subject.reference.means["samples"] == 6
    rows = layerwise(subject.model, torch.cat(list(subject.study.batches())), "paper").rows
    assert subject.reference.means["curves"]["paper"] == pytest.approx([row["Rc"] for row in rows], rel=1e-5)


def test_the_patches_of_few_variants_are_kept(questions, passes, monkeypatch):
    monkeypatch.setattr(questions.subject.reference._patches, "limit", 2)
    variants = [Variant(heads=((1, head),)) for head in (1, 2, 3)]
    for variant in (variants[0], variants[1], variants[0], variants[2], variants[0]):
        questions.subject.crops(variant, 1, "head", 1)
    assert passes["pictures"] == 3 * 6
    questions.subject.crops(variants[1], 1, "head", 1)
    assert passes["pictures"] == 4 * 6


def test_a_recordings_size(subject):
    tokens = 4 * 17 * 24  # bytes: n · d of float32
    recording = record(subject.model, subject.sample(0).images)
    assert recording.nbytes == (1 + 2 * LAYERS) * tokens  # Z¹, and Z½ and Z⁺ of every layer


def test_recordings_are_kept_up_to_a_number_of_bytes(questions):
    size = record(questions.subject.model, questions.subject.sample(0).images).nbytes
    questions.store = PictureStore(max_recording_bytes=2 * size)
    first, second = (questions.sample({"number": number})["key"] for number in (0, 1))
    questions.look({"key": first})
    questions.look({"key": first, "off": OFF})  # the second picture's was not used for the longest time
    kept = [(first, Variant()), (first, Variant(heads=((1, 2),), atoms=((2, 5),)))]
    assert [questions.store.recordings.get(place) is not None for place in (*kept, (second, Variant()))] == [1, 1, 0]
    assert questions.store.recordings.size == 2 * size
    assert questions.look({"key": second})


def test_the_cache_drops_what_was_not_used_for_the_longest_time():
    cache = LRUCache(10, len)
    for key, value in (("a", "aaaa"), ("b", "bbb"), ("c", "ccc")):
        assert cache.put(key, value) == value
    assert cache.get("a") == "aaaa"
    cache.put("d", "dd")
    assert [cache.get(key) for key in "abcd"] == ["aaaa", None, "ccc", "dd"]
    cache.put("a", "a")
    assert cache.size == 6
    cache.put("e", 20 * "e")  # the newest stays, whatever its size
    assert [cache.get(key) for key in "acde"] == [None, None, None, 20 * "e"]


def test_a_dropped_recording_is_made_again(questions, passes):
    key = questions.sample({"number": 0})["key"]
    before = questions.attention({"key": key, "token": 3})
    questions.store.recordings = LRUCache(1)
    passes.clear()
    assert questions.attention({"key": key, "token": 3}) == before
    assert passes["pictures"] == 1
