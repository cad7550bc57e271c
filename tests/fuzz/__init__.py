"""Files from strangers: crafted and mutated inputs for every reader, in processes that are watched.

python -m tests.fuzz --count 10000 --workers 2     many, with a table of counts
python -m tests.fuzz --only recipe --case 'mutated 17' --seed 5     one case again, with its traceback
"""
