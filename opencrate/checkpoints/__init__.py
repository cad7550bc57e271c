"""Checkpoints: ours, a Hub repository's and the authors', read without running code and written atomically."""

from .card import Card
from .intact import damage, require_intact
from .load import Checkpoint, load, load_any, read
from .save import convert, network_folder, operator_modules, push_to_hub, save_authors, save_pretrained
