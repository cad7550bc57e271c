"""The section on what the network gets right and wrong, of CRATEs and of other networks alike."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import figures
from ..study import Study
from .data import NotApplicable, ReportData
from .sections import Section, Table, prose

PICTURES = 1000  # on which accuracy is measured, spread over all classes
EACH = 30  # the most classes of which every one is shown; of more, the worst and the best
WORST, BEST = 15, 5
MATRIX = 25  # the most classes of a confusion matrix
CONFUSIONS, MISTAKES = 5, 8


@dataclass(frozen=True, eq=False)
class Classified:
    """Pictures by their classes and predictions (n,), by the network's numbers; and the worst mistakes, worst first."""

    targets: Tensor
    predictions: Tensor
    mistakes: list["Mistake"]


@dataclass(frozen=True, eq=False)
class Mistake:
    """A picture (H, W, 3) that was not recognised, and the probability of the class that was predicted."""

    picture: np.ndarray
    target: int
    prediction: int
    probability: float
    loss: float


@torch.inference_mode()
def classify(study: Study) -> Classified:
    """One pass of the network over validation pictures of all classes."""
    if study.model.num_classes < 1:
        raise NotApplicable("the network has no classifier")
    if isinstance(match := study.match, str):
        raise NotApplicable(match)
    source, numbers = study.pictures[0], torch.tensor(match.numbers)
    targets, predictions, mistakes = list[Tensor](), list[Tensor](), list[Mistake]()
    for images, classes in source.feed.sample(PICTURES, study.batch):
        probabilities = study.model(images.to(study.device)).double().softmax(-1).cpu()
        target, (highest, prediction) = numbers[classes.cpu()], probabilities.max(-1)
        losses = -probabilities.gather(1, target[:, None])[:, 0].log()
        targets.append(target)
        predictions.append(prediction)
        wrong = (prediction != target).nonzero().flatten()
        shown = source.pixels(images[wrong.to(images.device)])
        values = (values[wrong].tolist() for values in (target, prediction, highest, losses))
        mistakes += [Mistake(picture, *row) for picture, *row in zip(shown, *values, strict=True)]
        mistakes = sorted(mistakes, key=lambda mistake: -mistake.loss)[:MISTAKES]
    return Classified(torch.cat(targets), torch.cat(predictions), mistakes)


def accuracy(data: ReportData, section: Section) -> None:
    """Accuracy by class, what is taken for what, and the worst mistakes."""
    study, result = data.study, classify(data.study)
    names, total = study.class_name, len(result.targets)
    right = int((result.targets == result.predictions).sum())
    low, high = interval(right, total)
    section.headline = [
        (f"accuracy on {total:,} {study.pictures[0].name}", f"{right / total:.1%} ({low:.1%}–{high:.1%})")
    ]
    counts = np.zeros((study.model.num_classes,) * 2, int)
    np.add.at(counts, (result.targets.numpy(), result.predictions.numpy()), 1)
    section.csv("classes", _class_rows(study, counts))

    known: list[int] = counts.sum(1).nonzero()[0].tolist()
    ranked = sorted(known, key=lambda number: (counts[number, number] / counts[number].sum(), number))
    drawn = ranked if len(ranked) <= EACH else ranked[:WORST] + ranked[-BEST:]
    which = "Every class" if drawn is ranked else f"The {WORST} worst and the {BEST} best of {len(ranked):,} classes"
    bars = figures.class_bars([names(number) for number in drawn], counts.diagonal()[drawn], counts[drawn].sum(1))
    section.figure(bars, "classes", f"{which}, the worst first.")
    if result.mistakes:
        words = [f"{names(one.prediction)}, {one.probability:.0%}\nis {names(one.target)}" for one in result.mistakes]
        drawn_mistakes = figures.worded_pictures([one.picture for one in result.mistakes], words)
        section.figure(drawn_mistakes, "mistakes", prose()["results"]["mistakes"])
    if len(known) <= MATRIX and counts.shape[0] <= MATRIX:
        matrix = figures.confusion([names(number) for number in range(len(counts))], counts)
        section.figure(matrix, "confusion", "Right predictions are on the diagonal.")
    elif pairs := _confusions(counts):
        rows = [[names(t), names(p), f"{counts[t, p]} of {counts[t].sum()}"] for t, p in pairs]
        section.items.append(Table(["class", "is taken for", "pictures"], rows, "The most frequent confusions."))


def interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    from scipy.stats import binomtest

    ends = binomtest(right, total).proportion_ci(0.95, method="wilson")
    return float(ends.low), float(ends.high)


def _confusions(counts: np.ndarray) -> list[tuple[int, int]]:
    """The pairs (class, prediction) of the most pictures that are wrong."""
    wrong = counts - np.diag(counts.diagonal())
    order = wrong.ravel().argsort(kind="stable")[::-1][:CONFUSIONS]
    return [divmod(int(place), len(counts)) for place in order if wrong.ravel()[place]]


def _class_rows(study: Study, counts: np.ndarray) -> list[dict[str, object]]:
    rows = []
    for number in counts.sum(1).nonzero()[0].tolist():
        wrong = counts[number].copy()
        wrong[number] = 0
        most = study.class_name(int(wrong.argmax())) if wrong.any() else ""
        right, total = int(counts[number, number]), int(counts[number].sum())
        rows.append(
            {
                "class": study.class_name(number),
                "pictures": total,
                "recognised": right,
                "accuracy": right / total,
                "most_taken_for": most,
            }
        )
    return rows
