"""Random changes of the code, each of which some test should notice.

python -m tests.mutants --count 160 --workers 2    mutants drawn with a new seed, and a table of those caught
python -m tests.mutants --seed 5 --only 17 23      some of them again
python -m tests.mutants --seed 5 --show            what would be changed

Which tests run a line is measured once, by coverage (.cache/mutants); `--measure` does it again. docs/MUTANTS.md has
what was found.
"""
