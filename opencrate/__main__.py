"""`python -m opencrate`, which torchrun starts: torchrun --nproc-per-node 8 -m opencrate train RECIPE."""

from .cli import main

main()
