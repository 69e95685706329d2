"""An HTTPS admission webhook on loopback, for tests of whoever calls it."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import trustme


@dataclass
class Hook:
    """A webhook server: answers as `respond` says, remembers what it was asked."""

    url: str
    ca_bundle: str
    asked: list[dict[str, Any]]
    respond: Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def serve_hook(name: str = "127.0.0.1") -> Iterator[Hook]:
    """Serve a webhook whose certificate is for this name."""
    authority = trustme.CA()
    certificate = authority.issue_cert(name)
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    state = Hook("", bundle, [], lambda request: {"allowed": True})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append(review["request"])
            response = {"uid": review["request"]["uid"], **state.respond(review["request"])}
            body = json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        state.url = f"https://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield state
        server.shutdown()
        thread.join()
