"""The HTTP surface. Every answer has a Content-Length: kube-scheduler opens a new connection for each chunked one.

The verbs of kube-scheduler are served straight from ASGI, a tenth of a millisecond sooner than through the router; at
three calls a pod that is worth it. The same verbs are routes of the FastAPI application as well, which documents them.
"""

from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from extender.openapi import BINDING_ARGS, EXTENDER_ARGS, PREEMPTION_ARGS, body_of
from extender.verbs import MAX_BODY_BYTES, Reply, TooLarge, Verbs, problem

_JSON = "application/json"


def build_app(verbs: Verbs) -> FastAPI:
    """Put the application together."""
    app = FastAPI(title="gpuslice scheduler extender", docs_url=None, redoc_url=None)

    @app.post("/filter", openapi_extra=body_of(EXTENDER_ARGS))
    async def filter_nodes(request: Request) -> Response:
        """Split candidate nodes into those that fit and those that do not, with reasons (ExtenderArgs)."""
        return _response(await verbs.call("/filter", await request.body()))

    @app.post("/prioritize", openapi_extra=body_of(EXTENDER_ARGS))
    async def prioritize(request: Request) -> Response:
        """Score nodes 0..10 (ExtenderArgs)."""
        return _response(await verbs.call("/prioritize", await request.body()))

    @app.post("/bind", openapi_extra=body_of(BINDING_ARGS))
    async def bind(request: Request) -> Response:
        """Bind a pod to a node with its exact slices (ExtenderBindingArgs)."""
        return _response(await verbs.call("/bind", await request.body()))

    @app.post("/preempt", openapi_extra=body_of(PREEMPTION_ARGS))
    async def preempt(request: Request) -> Response:
        """Choose whom to evict on which node (ExtenderPreemptionArgs)."""
        return _response(await verbs.call("/preempt", await request.body()))

    @app.get("/decisions/{namespace}/{pod}")
    async def decision(namespace: str, pod: str) -> Response:
        """Tell the last decision on a pod: each node's verdict, each card's score."""
        found = verbs.judge.explain(namespace, pod)
        if found is None:
            text = f"no decision on pod {namespace}/{pod} is remembered; it was not asked about lately"
            return _response(problem(404, text))
        return _response(Reply(200, found))

    return app


def _response(reply: Reply) -> Response:
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, media_type=_JSON)


class FastPath:
    """ASGI: the verbs at once, everything else through the application."""

    def __init__(self, app: FastAPI, verbs: Verbs) -> None:
        self._app = app
        self._verbs = verbs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._verbs:
            await self._app(scope, receive, send)
            return
        try:
            body = await read_body(scope, receive)
        except TooLarge as error:
            reply = problem(413, str(error))
        else:
            reply = await self._verbs.call(scope["path"], body)
        length = str(len(reply.body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), *reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Read the body up to :data:`extender.verbs.MAX_BODY_BYTES`.

    Raises:
        TooLarge: it is larger.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            raise TooLarge(value.decode())
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"more than {MAX_BODY_BYTES}")
        chunks.append(chunk)
        if not message.get("more_body"):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
