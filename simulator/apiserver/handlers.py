"""From an HTTP request to the operation it asks for, and back to bytes."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable

import msgspec

from simulator.apiserver import (
    apply,
    deletion,
    discovery,
    eventviews,
    failures,
    jsonpatch,
    openapi,
    reads,
    reviews,
    strategic,
    strategies,
    subresources,
    tables,
    writes,
)
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object, StatusError
from simulator.apiserver.faults import Disconnect, Faults
from simulator.apiserver.identity import Tokens
from simulator.apiserver.paths import Target, parse_target
from simulator.apiserver.resources import Resource
from simulator.apiserver.watches import Watches
from simulator.apiserver.wire import Request, Response

log = logging.getLogger(__name__)

GZIP_MINIMUM_BYTES = 128 * 1024
"""The real server compresses from this size on (k8s.io/apiserver, responsewriters: defaultGzipThresholdBytes)."""


class Api:
    """Answers every request of one server."""

    def __init__(self, state: State, tokens: Tokens, faults: Faults, watches: Watches, *, gzip: bool = True) -> None:
        self._state = state
        self._tokens = tokens
        self._faults = faults
        self._watches = watches
        self._gzip = gzip

    async def handle(self, request: Request) -> Response | None:
        """Answer one request; refusals become Status objects, bugs a 500 that is logged."""
        try:
            if request.path in discovery.HEALTH_PATHS:
                return Response(200, (b"ok",), "text/plain; charset=utf-8")
            self._tokens.authenticate(request)
            await self._faults.before(request)
            response = await self._route(request)
            self._faults.after(request)
            return await self._compress(request, response)
        except StatusError as error:
            return _refusal(request, error)
        except Disconnect:
            request.connection.cut()
            return None
        except Exception as error:
            log.exception("bug while answering %s %s", request.method, request.path)
            return _refusal(request, failures.internal(f"{type(error).__name__}: {error}"))

    async def _compress(self, request: Request, response: Response | None) -> Response | None:
        if response is None or not self._gzip or "gzip" not in request.headers.get("accept-encoding", ""):
            return response
        if sum(map(len, response.body)) < GZIP_MINIMUM_BYTES:
            return response
        body = await asyncio.to_thread(_gzip, response.body)
        headers = (*response.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
        return Response(response.status, (body,), response.content_type, headers)

    async def _route(self, request: Request) -> Response | None:
        if request.path.startswith("/openapi/"):
            return openapi.answer(self._state.registry, request)
        target = parse_target(request.path)
        if target is None:
            return discovery.answer(self._state.registry, request)
        resource = self._state.registry.find(target.group, target.version, target.plural)
        if resource is None and not self._state.registry.serves(target.group, target.version):
            return discovery.page_not_found()
        if resource is None or (target.namespace and not resource.namespaced):
            raise failures.no_such_path()
        if target.subresource and target.subresource not in resource.subresources:
            raise failures.no_such_path()
        call = _call(request, resource, target)
        return await self._dispatch(request, call)

    async def _dispatch(self, request: Request, call: Call) -> Response | None:
        if request.method in {"GET", "HEAD"}:
            return await self._read(request, call)
        operations: dict[str, Callable[[Request, Call], Awaitable[Response]]] = {
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        operation = operations.get(request.method)
        if operation is None or (call.resource.verbs == ("create",) and request.method != "POST"):
            raise failures.method_not_supported()
        return await operation(request, call)

    async def _read(self, request: Request, call: Call) -> Response | None:
        if call.resource.verbs == ("create",):
            raise failures.method_not_supported()
        if call.target.watch or (request.flag("watch") and not call.name):
            await self._watches.serve(call, request)
            return None
        if not call.name:
            query = reads.read_list_query(self._state, call, request.query)
            page, metadata = reads.list_page(self._state, call, query)
            if tables.wanted(request):
                return _json(200, tables.render(call.resource, page, metadata, self._state.clock()))
            return Response(200, reads.encode_list(call.resource, page, metadata))
        if call.target.subresource not in {"", "status", "scale", "ephemeralcontainers", "resize"}:
            raise failures.method_not_supported()
        entry = writes.existing(self._state, call)
        if call.target.subresource == "scale":
            return _json(200, subresources.show_scale(call.show(entry)))
        if tables.wanted(request):
            metadata = {"resourceVersion": str(entry.revision)}
            return _json(200, tables.render(call.resource, [entry], metadata, self._state.clock()))
        return Response(200, (call.resource.head, eventviews.tail(call.resource, entry)))

    async def _post(self, request: Request, call: Call) -> Response:
        body = writes.decode_body(request.body, request.headers.get("content-type", ""))
        if call.resource.plural == "bindings" and not call.resource.group:
            name = (body.get("metadata") or {}).get("name", "")
            call = _rebased(self._state, call, Target("", "v1", "pods", call.target.namespace, name, "binding"))
        if call.resource.verbs == ("create",):
            return _json(201, reviews.answer(self._tokens, call, body))
        match call.target.subresource:
            case "binding":
                return _json(201, await subresources.bind(self._state, call, body))
            case "eviction":
                return _json(201, await subresources.evict(self._state, call, body))
            case "token":
                return _json(201, reviews.issue_token(self._state, self._tokens, call, body))
            case "":
                if call.name:
                    raise failures.method_not_supported()
                if call.resource.group == eventviews.GROUP:
                    return await self._post_event(call, body)
                return _json(201, await writes.create(self._state, call, body), call)
        raise failures.method_not_supported()

    def _core_event(self, call: Call) -> Call:
        """Turn a call on an events.k8s.io event into the same on the core event behind it."""
        target = Target("", "v1", "events", call.target.namespace, call.target.name)
        return _rebased(self._state, call, target)

    async def _post_event(self, call: Call, body: Object) -> Response:
        writes.check_type(call, body)
        core = eventviews.to_core(body) | {"apiVersion": "v1"}
        made = await writes.create(self._state, self._core_event(call), core)
        return _json(201, eventviews.from_core(made) | {"apiVersion": call.resource.api_version}, call)

    async def _change_event(self, call: Call, transform: writes.Transform) -> Response:
        def change(core: Object) -> Object:
            seen = eventviews.from_core(core) | {"apiVersion": call.resource.api_version}
            return eventviews.to_core(transform(seen)) | {"apiVersion": "v1"}

        found, _ = await writes.update(self._state, self._core_event(call), change)
        return _json(200, eventviews.from_core(found) | {"apiVersion": call.resource.api_version}, call)

    async def _put(self, request: Request, call: Call) -> Response:
        if not call.name or call.target.subresource in {"binding", "eviction", "token"}:
            raise failures.method_not_supported()
        body = writes.decode_body(request.body, request.headers.get("content-type", ""))
        if call.target.subresource == "scale":
            found, _ = await writes.update(self._state, call, lambda obj: subresources.apply_scale(obj, body))
            return _json(200, subresources.show_scale(found), call)
        writes.check_put(self._state, call, body)
        if call.resource.group == eventviews.GROUP:
            return await self._change_event(call, writes.replacement(body))
        creates = call.storage in strategies.CREATED_BY_PUT and not call.target.subresource
        found, created = await writes.update(self._state, call, writes.replacement(body), create_missing=creates)
        return _json(201 if created else 200, found, call)

    async def _patch(self, request: Request, call: Call) -> Response:
        if not call.name:
            raise failures.method_not_supported()
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        patched, create_missing = _patcher(self._state, call, kind, request)
        if call.resource.group == eventviews.GROUP:
            return await self._change_event(call, patched)
        if call.target.subresource == "scale":
            scaled = patched

            def transform(obj: Object) -> Object:
                return subresources.apply_scale(obj, scaled(subresources.show_scale(obj)))

            found, _ = await writes.update(self._state, call, transform)
            return _json(200, subresources.show_scale(found), call)
        found, created = await writes.update(self._state, call, patched, create_missing=create_missing)
        return _json(201 if created else 200, found, call)

    async def _delete(self, request: Request, call: Call) -> Response:
        if call.target.subresource:
            raise failures.method_not_supported()
        body = writes.decode_body(request.body, request.headers.get("content-type", "")) if request.body else {}
        options = deletion.read_options(body, request.query)
        call.options = options
        call.dry_run = call.dry_run or "All" in (options.get("dryRun") or [])
        if call.name:
            return _json(200, await deletion.delete(self._state, call, options), call)
        query = reads.read_list_query(self._state, call, request.query)
        page, metadata = reads.list_page(self._state, call, query)
        for entry in page:
            one = _rebased(
                self._state,
                call,
                Target(call.target.group, call.target.version, call.target.plural, entry.namespace, entry.name),
            )
            try:
                await deletion.delete(self._state, one, options)
            except StatusError as error:
                if error.code != 404:
                    raise
        return Response(200, reads.encode_list(call.resource, page, metadata))


def _call(request: Request, resource: Resource, target: Target) -> Call:
    dry_run = request.query.get("dryRun", "")
    if dry_run not in {"", "All"}:
        problem = failures.FieldError("NotSupported", "dryRun", [dry_run], 'supported values: "All"')
        raise failures.invalid("CreateOptions", "meta.k8s.io", "", [problem])
    manager = request.query.get("fieldManager") or request.headers.get("user-agent", "unknown").partition("/")[0]
    return Call(resource, target, request.user, request.groups, dry_run == "All", manager, warnings=request.warnings)


def _rebased(state: State, call: Call, target: Target) -> Call:
    resource = state.registry.find(target.group, target.version, target.plural)
    if resource is None:
        raise failures.no_such_path()
    return Call(
        resource,
        target,
        call.user,
        call.groups,
        call.dry_run,
        call.field_manager,
        options=call.options,
        warnings=call.warnings,
    )


def _patcher(state: State, call: Call, kind: str, request: Request) -> tuple[Callable[[Object], Object], bool]:
    """Return what a PATCH does to the object, and whether it may create it."""
    if kind == "application/json-patch+json":
        try:
            operations = msgspec.json.decode(request.body)
        except msgspec.DecodeError as error:
            raise failures.bad_request(f"error decoding patch: {error}") from error
        return (lambda obj: jsonpatch.apply_json_patch(obj, operations)), False
    if kind == "application/merge-patch+json":
        body = _patch_body(request)
        return (lambda obj: _object(jsonpatch.apply_merge_patch(obj, body))), False
    if kind == "application/strategic-merge-patch+json" and not call.resource.custom:
        body = _patch_body(request)
        return (lambda obj: strategic.apply_strategic_patch(obj, body)), False
    if kind == "application/apply-patch+yaml":
        config = writes.decode_body(request.body, kind)
        writes.check_type(call, config)
        call.field_manager = request.query.get("fieldManager", "")
        call.applying = True
        force = request.flag("force")
        create = not call.target.subresource
        return (lambda obj: apply.apply(state, call, obj, config, force=force)), create
    raise failures.unsupported_media("415: Unsupported Media Type", details={})


def _patch_body(request: Request) -> Object:
    try:
        return writes.decode_body(request.body)
    except StatusError as error:
        text = error.message.rpartition("json parse error: ")[2]
        raise failures.bad_request(f"error decoding patch: {text}") from error


def _object(value: object) -> Object:
    assert isinstance(value, dict)
    return value


def _json(status: int, body: Object, call: Call | None = None) -> Response:
    headers = tuple(("Warning", _warning(text)) for text in call.warnings) if call else ()
    return Response(status, (msgspec.json.encode(body),), headers=headers)


def _refusal(request: Request, error: StatusError) -> Response:
    headers = [("Warning", _warning(text)) for text in request.warnings]
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    if error.code == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    return Response(error.code, (msgspec.json.encode(error.status()),), headers=tuple(headers))


def _warning(text: str) -> str:
    """Write a Warning header's value, quoted as RFC 7234 wants it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'299 - "{escaped}"'


def _gzip(parts: object) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    assert isinstance(parts, (list, tuple))
    return b"".join([packer.compress(part) for part in parts] + [packer.flush()])
