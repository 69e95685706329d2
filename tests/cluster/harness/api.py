"""A plain JSON client of the API server for the tests: it shares no code with the product's own client.

The tests judge the product by what this client reads, so a mistake in the product's client cannot hide itself.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Json = dict[str, Any]

CHUNK = 1 << 20
MERGE_PATCH = "application/merge-patch+json"
_CORE_KINDS = {
    "pods": "/api/v1", "nodes": "/api/v1", "namespaces": "/api/v1", "configmaps": "/api/v1", "events": "/api/v1",
    "serviceaccounts": "/api/v1", "secrets": "/api/v1", "resourcequotas": "/api/v1", "services": "/api/v1",
    "deployments": "/apis/apps/v1", "daemonsets": "/apis/apps/v1", "leases": "/apis/coordination.k8s.io/v1",
    "priorityclasses": "/apis/scheduling.k8s.io/v1", "poddisruptionbudgets": "/apis/policy/v1",
    "mutatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations": "/apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies": "/apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "/apis/admissionregistration.k8s.io/v1",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1", "roles": "/apis/rbac.authorization.k8s.io/v1",
}  # fmt: skip
"""Path prefix of each plural this client knows."""


class ApiError(Exception):
    """The API server answered with a status of 400 or more."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        self.status = status
        try:
            self.message = str(json.loads(body).get("message", body))
        except (ValueError, AttributeError):
            self.message = body
        super().__init__(f"{method} {path}: {status}: {self.message[:1500]}")


def path_of(plural: str, namespace: str | None = None, name: str | None = None, *rest: str) -> str:
    """Return the URL path of a collection, an object or a subresource."""
    parts = [_CORE_KINDS[plural]]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [plural, *([name] if name is not None else []), *rest]
    return "/".join(parts)


class Api:
    """Requests as one user; one connection per thread, reopened when the server closed it."""

    def __init__(self, *, host: str, port: int, authority: Path, token: str) -> None:
        self._host, self._port, self._token = host, port, token
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._local = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    def request(self, method: str, path: str, body: object = None, *, content: str = "application/json") -> Json:
        """Send one request and return the decoded answer.

        Raises:
            ApiError: The status is 400 or more.
            OSError: The server cannot be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Content-Type": content}
        try:
            status, answer = self._send(method, path, data, headers)
        except (http.client.HTTPException, ConnectionError, ssl.SSLError):
            self._close()
            status, answer = self._send(method, path, data, headers)
        if status >= 400:
            raise ApiError(method, path, status, answer)
        decoded: Json = json.loads(answer) if answer.startswith("{") else {"text": answer}
        return decoded

    def _send(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._connect(timeout_seconds=30)
            self._local.connection = connection
            self._connections.append(connection)
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def _connect(self, *, timeout_seconds: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=self._tls)

    def _close(self) -> None:
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            self._connections.remove(connection)
            connection.close()

    def close(self) -> None:
        """Close the connections of every thread."""
        while self._connections:
            self._connections.pop().close()
        self._local = threading.local()

    def ready(self) -> bool:
        """Whether /readyz answers ok; False while it does not answer at all."""
        try:
            return self.request("GET", "/readyz").get("text") == "ok"
        except (ApiError, OSError, http.client.HTTPException):
            return False

    def get(self, plural: str, namespace: str | None, name: str) -> Json:
        """Read one object."""
        return self.request("GET", path_of(plural, namespace, name))

    def find(self, plural: str, namespace: str | None, name: str) -> Json | None:
        """Read one object; None if there is none of this name."""
        try:
            return self.get(plural, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, plural: str, namespace: str | None = None, **query: str) -> list[Json]:
        """Read a whole collection; query names such as fieldSelector, labelSelector."""
        suffix = f"?{urlencode(query)}" if query else ""
        items: list[Json] = self.request("GET", path_of(plural, namespace) + suffix)["items"]
        return items

    def create(self, plural: str, namespace: str | None, body: Json) -> Json:
        """Create one object."""
        return self.request("POST", path_of(plural, namespace), body)

    def patch(self, plural: str, namespace: str | None, name: str, body: Json, *subresource: str) -> Json:
        """Merge-patch one object or subresource."""
        return self.request("PATCH", path_of(plural, namespace, name, *subresource), body, content=MERGE_PATCH)

    def delete(self, plural: str, namespace: str | None, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete one object; none of that name is fine."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            self.request("DELETE", path_of(plural, namespace, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def service_account_token(self, namespace: str, name: str, *, node: Json | None = None) -> str:
        """Return a token of a service account, bound to a Node object as a DaemonSet pod's token is."""
        spec: Json = {"expirationSeconds": 7200}
        if node is not None:
            metadata = node["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1", "kind": "Node", "name": metadata["name"], "uid": metadata["uid"],
            }  # fmt: skip
        answer = self.request(
            "POST",
            path_of("serviceaccounts", namespace, name, "token"),
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        return str(answer["status"]["token"])

    def watch(self, plural: str, namespace: str | None, *, version: str, seconds: int) -> Iterator[Json]:
        """Yield watch events of a collection from a resourceVersion on, for at most this many seconds."""
        query = urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)})
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        with closing(self._connect(timeout_seconds=seconds + 10)) as connection:
            connection.request("GET", f"{path_of(plural, namespace)}?{query}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError("WATCH", plural, response.status, response.read().decode())
            # Not readline(): on chunked answers it can take the end of a chunk for the end of the stream.
            rest = b""
            while data := response.read1(CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield _event(plural, line)


def _event(plural: str, line: bytes) -> Json:
    event: Json = json.loads(line)
    if event["type"] == "ERROR":
        raise ApiError("WATCH", plural, int(event["object"].get("code", 500)), json.dumps(event["object"]))
    return event
