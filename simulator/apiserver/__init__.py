"""An API server in memory that speaks real Kubernetes HTTP, for the demo, tests and benchmarks.

    async with running(Options()) as server: ...        # in this event loop
    with ServerThread(Options(tls=True)) as handle: ... # from synchronous code
    python -m simulator.apiserver --listen 127.0.0.1:0 --data DIR

What it answers is checked by tests/contract against a real kube-apiserver.
"""

from simulator.apiserver.faults import matching
from simulator.apiserver.identity import ADMIN, User, node, service_account
from simulator.apiserver.server import ApiServer, Options, ServerThread, running

__all__ = ["ADMIN", "ApiServer", "Options", "ServerThread", "User", "matching", "node", "running", "service_account"]
