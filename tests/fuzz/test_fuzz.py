"""Some of what `make fuzz` reads, with another seed each time; FUZZ_SEED repeats one."""

import itertools
import os
import random
import time

import pytest

from .harness import Target, fixed_cases, mutated_cases, run, targets

SEED = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(10**6))
SECONDS = 50  # for all mutated inputs together; the crafted ones are all read


@pytest.mark.parametrize("target", targets().values(), ids=lambda target: target.name)
def test_strange_files_are_read_or_refused_with_a_sentence(target: Target, tmp_path):
    print(f"FUZZ_SEED={SEED}")
    results = list(run(fixed_cases(target), tmp_path))
    assert len(results) == len(target.seeds) + len(target.crafted)
    until = time.monotonic() + SECONDS / len(targets())
    results += run(mutated_cases(target, SEED, itertools.count()), tmp_path, until=until)
    bad = [str(result) for result in results if result.outcome == "bad"]
    assert len(results) > len(fixed_cases(target)), "no mutated input was read"
    assert not bad, f"FUZZ_SEED={SEED}: {len(bad)} of {len(results)} inputs\n" + "\n".join(bad[:5])
