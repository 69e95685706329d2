"""Stands in for nvidia-cuda-mps-control: the files and the socket of the protocol, no GPU.

In the foreground (-f) it makes `control` (a socket that answers get_server_list), `control_lock` and
`control_privileged` in CUDA_MPS_PIPE_DIRECTORY and writes control.log, as the real daemon does. A file `die` in the
pipe directory ends it.
"""

import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Serve until told to die."""
    if sys.argv[1:] != ["-f"]:
        sys.exit(f"usage: -f (got {sys.argv[1:]})")
    pipe, logs = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
    (logs / "control.log").write_text(f"Start on {os.environ['CUDA_VISIBLE_DEVICES']}\n")
    for name in ("control_lock", "control_privileged"):
        (pipe / name).touch()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(pipe)
        server.bind("control")
        server.listen()
        server.settimeout(0.05)
        while not (pipe / "die").exists():
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            with client:
                client.recv(100)
                client.sendall(f"{os.getpid()}\n".encode())
    sys.exit(3)


if __name__ == "__main__":
    main()
