"""Call admission webhooks as the real server does.

Sources: k8s.io/apiserver/pkg/admission/plugin/webhook (dispatching, messages, reinvocation) and the AdmissionReview
v1 wire format.
"""

import asyncio
import base64
import copy
import hashlib
import ssl
import uuid
from collections.abc import Mapping

import aiohttp
import msgspec

from simulator.apiserver import cel, failures, jsonpatch, selectors
from simulator.apiserver.admission import rules
from simulator.apiserver.admission.rules import Write
from simulator.apiserver.calls import State
from simulator.apiserver.failures import Object, StatusError

_GROUP = "admissionregistration.k8s.io"
_OPTION_KINDS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class _Unreachable(Exception):
    """The webhook gave no usable answer; failurePolicy decides what that means."""


class Webhooks:
    """Both kinds of webhooks of one server."""

    def __init__(self, state: State, services: Mapping[str, str]) -> None:
        self._state = state
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[bytes, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close connections to webhooks."""
        if self._session is not None:
            await self._session.close()

    def _hooks(self, plural: str) -> list[tuple[str, Object]]:
        collection = self._state.store.collection((_GROUP, plural))
        if not collection.entries:
            return []
        found = []
        for entry in collection.select("", selectors.EVERYTHING):
            found += [(entry.name, hook) for hook in entry.decode().get("webhooks") or []]
        return found

    async def mutate(self, write: Write) -> Object | None:
        """Run the mutating webhooks one after another; returns the object as they leave it."""
        obj = write.new
        hooks = self._hooks("mutatingwebhookconfigurations")
        changed_after: set[str] = set()
        for _, hook in hooks:
            changed = await self._mutate_once(hook, Write(write.call, write.operation, obj, write.old))
            if changed is not None and changed != obj:
                obj = changed
                changed_after = {
                    h["name"] for _, h in hooks[: self._place(hooks, hook)] if h.get("reinvocationPolicy") == "IfNeeded"
                }
        for _, hook in hooks:
            if hook["name"] in changed_after:
                changed = await self._mutate_once(hook, Write(write.call, write.operation, obj, write.old))
                obj = obj if changed is None else changed
        return obj

    @staticmethod
    def _place(hooks: list[tuple[str, Object]], hook: Object) -> int:
        return next(index for index, (_, other) in enumerate(hooks) if other is hook)

    async def _mutate_once(self, hook: Object, write: Write) -> Object | None:
        response = await self._ask(hook, write)
        if response is None or not response.get("patch") or write.new is None:
            return None
        if response.get("patchType") != "JSONPatch":
            raise failures.internal(
                f'webhook "{hook["name"]}" answered with unknown patchType {response.get("patchType")!r}'
            )
        try:
            operations = msgspec.json.decode(base64.b64decode(response["patch"]))
            return jsonpatch.apply_json_patch(copy.deepcopy(write.new), operations)
        except (ValueError, msgspec.DecodeError) as error:
            raise failures.internal(f'webhook "{hook["name"]}" answered with an unreadable patch: {error}') from error
        except StatusError as error:
            raise failures.internal(str(error.__cause__ or error)) from error

    async def validate(self, write: Write) -> None:
        """Ask all validating webhooks at once; the first refusal in their order counts."""
        hooks = [hook for _, hook in self._hooks("validatingwebhookconfigurations")]
        if not hooks:
            return
        results = await asyncio.gather(*(self._ask(hook, write) for hook in hooks), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _ask(self, hook: Object, write: Write) -> Object | None:
        """Call one webhook if the write concerns it; None if not, or if its failure is ignored."""
        if not self._concerns(hook, write):
            return None
        review = _review(write)
        try:
            response = await self._post(hook, review)
        except _Unreachable as error:
            if hook.get("failurePolicy") == "Ignore":
                return None
            raise failures.internal(f'failed calling webhook "{hook["name"]}": {error}') from error
        for text in response.get("warnings") or []:
            write.call.warnings.append(str(text))
        if not response.get("allowed"):
            raise _denied(hook["name"], response.get("status") or {})
        return response

    def _concerns(self, hook: Object, write: Write) -> bool:
        if not any(rules.rule_matches(rule, write) for rule in hook.get("rules") or ()):
            return False
        if not rules.namespace_matches(self._state, hook.get("namespaceSelector"), write):
            return False
        if not rules.object_matches(hook.get("objectSelector"), write):
            return False
        return _conditions_hold(hook, write)

    async def _post(self, hook: Object, review: Object) -> Object:
        client = hook.get("clientConfig") or {}
        url, host = self._address(client)
        seconds = hook.get("timeoutSeconds") or 10
        try:
            session = self._session = self._session or aiohttp.ClientSession()
            async with session.post(
                f"{url}?timeout={seconds}s",
                data=msgspec.json.encode(review),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                ssl=self._context(client),
                server_hostname=host,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise _Unreachable(f"failed to call webhook: the server answered {answer.status}: {body[:200]!r}")
        except TimeoutError:
            raise _Unreachable(
                f'failed to call webhook: Post "{url}?timeout={seconds}s": context deadline exceeded'
            ) from None
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise _Unreachable(f'failed to call webhook: Post "{url}?timeout={seconds}s": {error}') from error
        return _response(body, review["request"]["uid"])

    def _address(self, client: Object) -> tuple[str, str | None]:
        if client.get("url"):
            return str(client["url"]), None
        service = client.get("service") or {}
        name = f"{service.get('namespace')}/{service.get('name')}"
        port = service.get("port", 443)
        address = self._services.get(f"{name}:{port}") or self._services.get(name)
        if address is None:
            raise _Unreachable(f"service {name}:{port} is not in the server's resolver map (Options.services)")
        host = f"{service.get('name')}.{service.get('namespace')}.svc"
        return f"https://{address}{service.get('path') or '/'}", host

    def _context(self, client: Object) -> ssl.SSLContext:
        bundle = base64.b64decode(client.get("caBundle") or "")
        key = hashlib.sha256(bundle).digest()
        if key not in self._contexts:
            self._contexts[key] = ssl.create_default_context(cadata=bundle.decode() if bundle else None)
        return self._contexts[key]


def _conditions_hold(hook: Object, write: Write) -> bool:
    """Evaluate matchConditions: one false skips the webhook; else an error is a failure of the webhook."""
    conditions = hook.get("matchConditions") or ()
    if not conditions:
        return True
    variables = rules.request_variables(write)
    broken = ""
    for condition in conditions:
        try:
            if not cel.holds(condition["expression"], variables):
                return False
        except cel.CelError as error:
            broken = broken or f"expression '{condition['expression']}' resulted in error: {error}"
    if broken:
        if hook.get("failurePolicy") == "Ignore":
            return False
        raise failures.forbidden(write.call.resource.plural, write.call.resource.group, write.name, broken)
    return True


def _review(write: Write) -> Object:
    request = rules.request_variables(write)["request"]
    options: Object = {"kind": _OPTION_KINDS.get(write.operation, ""), "apiVersion": "meta.k8s.io/v1"}
    if write.call.dry_run:
        options["dryRun"] = ["All"]
    request |= {
        "uid": str(uuid.uuid4()),
        "object": write.new,
        "oldObject": write.old,
        "options": options | write.call.options,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _response(body: bytes, uid: str) -> Object:
    try:
        review = msgspec.json.decode(body)
        response = review["response"]
        if review.get("kind") != "AdmissionReview" or review.get("apiVersion") != "admission.k8s.io/v1":
            raise _Unreachable(f"expected AdmissionReview admission.k8s.io/v1, got {review.get('apiVersion')!r}")
        if response["uid"] != uid:
            raise _Unreachable(
                f'received invalid webhook response: expected response.uid="{uid}", got "{response["uid"]}"'
            )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise _Unreachable(f"the answer is not an AdmissionReview: {error}") from error
    found: Object = response
    return found


def _denied(name: str, status: Object) -> StatusError:
    """Word a refusal: code and reason are the webhook's, the sentence around its message is the server's."""
    prefix = f'admission webhook "{name}" denied the request'
    if status.get("message"):
        message = f"{prefix}: {status['message']}"
    elif status.get("reason"):
        message = f"{prefix}: {status['reason']}"
    else:
        message = f"{prefix} without explanation"
    code: int = status.get("code") or 0
    return StatusError(max(code, 400), status.get("reason") or "", message, details=status.get("details"))
