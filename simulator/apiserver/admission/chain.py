"""The order of admission: mutating plugins, mutating webhooks; then policies, validating webhooks, quota."""

from collections.abc import Mapping

from simulator.apiserver.admission import plugins, policies
from simulator.apiserver.admission.rules import Write
from simulator.apiserver.admission.webhooks import Webhooks
from simulator.apiserver.calls import Call, Operation, State
from simulator.apiserver.failures import Object

# A broken webhook must not keep its own configuration from being repaired.
_EXEMPT = frozenset(
    {
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)


class Chain:
    """All admission of one server."""

    def __init__(self, state: State, services: Mapping[str, str]) -> None:
        self._state = state
        self._webhooks = Webhooks(state, services)

    async def close(self) -> None:
        """Close connections to webhooks."""
        await self._webhooks.close()

    async def mutate(self, call: Call, operation: Operation, new: Object | None, old: Object | None) -> Object | None:
        """Run everything that may change the object."""
        if new is not None and call.storage == ("", "pods") and operation == "CREATE" and not call.target.subresource:
            plugins.mutate_pod(self._state, call, new)
        if new is not None and old is not None and call.storage == ("", "pods") and not call.target.subresource:
            plugins.mutate_updated_pod(new, old)
        if call.resource.plural in _EXEMPT:
            return new
        return await self._webhooks.mutate(Write(call, operation, new, old))

    async def validate(self, call: Call, operation: Operation, new: Object | None, old: Object | None) -> None:
        """Run everything that may only refuse."""
        if call.resource.plural in _EXEMPT:
            return
        write = Write(call, operation, new, old)
        policies.validate(self._state, write)
        await self._webhooks.validate(write)
        if new is not None and call.storage == ("", "pods") and operation == "CREATE" and not call.target.subresource:
            plugins.check_limit_ranges(self._state, call, new)
            plugins.check_quota(self._state, call, operation, new)
