"""Starting several processes with torchrun, which starts them again when one dies."""

import os
import sys
from typing import NoReturn

__all__ = ["is_main", "launch", "under_torchrun"]

RESTARTS = 3


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(arguments: list[str], processes: int) -> NoReturn:
    """Become torchrun, with this command on several processes of this machine: signals and exit codes are its own.

    With the store that torchrun shares with its workers by default, a restart after a crash waits forever.
    """
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={RESTARTS}"]
    command = [*torchrun, f"--nproc-per-node={processes}", "-m", "opencrate", *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)
