"""The first losses of a small recipe, kept: whatever changes what is computed, by design or not, changes them."""

import pytest

from opencrate.training import train
from tests.runs import losses, small_options, small_recipe

# Written by `python -m tests.training.test_golden`. Another processor or version of torch may round otherwise, which
# twenty steps of Lion make visible in the fifth digit; another order, crop, weight or rate, in the second.
GOLDEN = [
    2.603440,
    2.598763,
    2.567638,
    2.670857,
    2.523118,
    2.478598,
    2.567080,
    2.421477,
    2.561171,
    2.561536,
    2.410968,
    2.498954,
    2.605110,
    2.356537,
    2.436624,
    2.384245,
    2.456353,
    2.344460,
    2.416141,
    2.384987,
]


@pytest.mark.unhooked
def test_the_first_twenty_losses(tmp_path):
    train(small_recipe(), small_options(tmp_path))
    assert losses(tmp_path)[:20] == pytest.approx(GOLDEN, abs=2e-4, rel=0)


if __name__ == "__main__":
    import sys
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        train(small_recipe(), small_options(Path(folder)))
        print(*(f"    {loss:.6f}," for loss in losses(Path(folder))[:20]), sep="\n", file=sys.stderr)
