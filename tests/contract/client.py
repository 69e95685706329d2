"""A plain HTTP client that hides nothing: the contract is about status codes, headers and bytes."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response; `body` is decoded when it is JSON, else text."""

    code: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def refusal(self) -> tuple[int, str, str]:
        """Code, reason and message of a Status."""
        return (self.code, self.body.get("reason", ""), self.body.get("message", ""))

    @property
    def meta(self) -> Any:
        """Metadata of the object."""
        return self.body["metadata"]


class Client:
    """Requests to one API server as one user."""

    def __init__(self, url: str, token: str, ca_file: str | None = None) -> None:
        self._parts = urlsplit(url)
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file) if self._parts.scheme == "https" else None

    def with_token(self, token: str) -> "Client":
        """Return a client for the same server as another user."""
        other = Client(self._parts.geturl(), token)
        other._tls = self._tls
        return other

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, context=self._tls, timeout=SECONDS)
        return http.client.HTTPConnection(host, port, timeout=SECONDS)

    def _headers(self, content_type: str, accept: str) -> dict[str, str]:
        headers = {"Content-Type": content_type, "Accept": accept, "User-Agent": "contract/1"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON, *, accept: str = JSON
    ) -> Answer:
        """Send one request and read the whole answer."""
        connection = self._connect()
        try:
            payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, self._headers(content_type, accept))
            response = connection.getresponse()
            data = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
            decoded = json.loads(data) if "json" in headers.get("content-type", "") else data.decode(errors="replace")
            return Answer(response.status, decoded, headers)
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """GET."""
        return self.call("GET", path)

    def post(self, path: str, body: object) -> Answer:
        """POST a JSON object."""
        return self.call("POST", path, body)

    def post_until(self, path: str, body: object, code: int) -> Answer:
        """POST again and again until the answer has a code: a new type takes a moment to be served."""
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.post(path, body)
            if answer.code == code or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def put(self, path: str, body: object) -> Answer:
        """PUT a JSON object."""
        return self.call("PUT", path, body)

    def patch(self, path: str, body: object, content_type: str = MERGE) -> Answer:
        """PATCH."""
        return self.call("PATCH", path, body, content_type)

    def delete(self, path: str, body: object = None) -> Answer:
        """DELETE with optional DeleteOptions."""
        return self.call("DELETE", path, body)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Open a watch; iterate its events until the server ends it (or SECONDS pass without any)."""
        connection = self._connect()
        try:
            connection.request("GET", path, headers=self._headers(JSON, JSON))
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"watch refused: {response.status} {response.read()!r}")
            yield (json.loads(line) for line in iter(response.readline, b"") if line.strip())
        finally:
            connection.close()
