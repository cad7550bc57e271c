"""Starting several processes with torchrun, which starts them again when one dies."""

import os
import subprocess
import sys

__all__ = ["is_main", "launch", "under_torchrun"]

RESTARTS = 3


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def launch(processes: int) -> int:
    """This command again, on several processes of this machine; returns torchrun's exit code.

    With the store that torchrun shares with its workers by default, a restart after a crash waits forever.
    """
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={RESTARTS}"]
    command = [*torchrun, f"--nproc-per-node={processes}", "-m", "opencrate", *sys.argv[1:]]
    return subprocess.run(command, env=environment).returncode
