"""The HTTP surface. Every answer has a Content-Length: kube-scheduler opens a new connection for each chunked one.

The verbs are routes here, which documents them, but most calls never get here: the daemon serves ``Verbs.direct``
straight from the parser (:mod:`gpuslice.service.direct`).
"""

from fastapi import FastAPI, Request, Response

from extender.openapi import BINDING_ARGS, EXTENDER_ARGS, PREEMPTION_ARGS, body_of
from extender.verbs import Verbs, problem
from gpuslice.service.direct import Reply

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
