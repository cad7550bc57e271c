"""Where a run is carried out: the plan's folder, a device, and the names of what a run writes."""

from dataclasses import dataclass
from pathlib import Path

RUNS, FIGURES = "runs", "figures"
LOG, ROW = "log.txt", "row.json"  # of a run: what it printed, and its row until the parent process has read it


@dataclass(frozen=True)
class Place:
    """Where a run is carried out.

    Args:
        out: the folder of the plan.
        device: the device of the run.
        processes: the number of processes of the run, started by torchrun if there are several.
        threads: the number of CPU threads of the run.
        samples: the number of pictures on which layers are measured.
    """

    out: Path
    device: str = "auto"
    processes: int = 1
    threads: int = 1
    samples: int = 64

    def folder(self, key: str) -> Path:
        return self.out.resolve() / RUNS / key

    def row(self, key: str) -> Path:
        return self.folder(key) / ROW

    def has_network(self, key: str) -> bool:
        return (self.folder(key) / "model" / "config.json").is_file()
