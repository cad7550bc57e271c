"""Starts several processes with torchrun, which restarts them when one dies."""

import os
import sys
from typing import NoReturn

RESTARTS = 3


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(arguments: list[str], processes: int) -> NoReturn:
    """Replace this process by torchrun, which runs the command on several processes of this machine.

    So signals and exit codes are torchrun's own. The store that torchrun shares with its workers by default is switched
    off, because with it a restart after a crash waits forever.
    """
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={RESTARTS}"]
    command = [*torchrun, f"--nproc-per-node={processes}", "-m", "opencrate", *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)
