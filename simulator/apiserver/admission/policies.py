"""ValidatingAdmissionPolicies: CEL rules that the server itself evaluates."""

from simulator.apiserver import cel, failures, selectors
from simulator.apiserver.admission import rules
from simulator.apiserver.admission.rules import Write
from simulator.apiserver.calls import State
from simulator.apiserver.failures import Object, StatusError

_GROUP = "admissionregistration.k8s.io"


def _all(state: State, plural: str) -> list[Object]:
    collection = state.store.collection((_GROUP, plural))
    if not collection.entries:
        return []
    return [entry.decode() for entry in collection.select("", selectors.EVERYTHING)]


def validate(state: State, write: Write) -> None:
    """Evaluate every bound policy that matches.

    Raises:
        StatusError: 422 (or the reason's code) for the first denial.
    """
    bindings = _all(state, "validatingadmissionpolicybindings")
    if not bindings:
        return
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in _all(state, "validatingadmissionpolicies")}
    for binding in bindings:
        spec = binding.get("spec") or {}
        policy = policies.get(spec.get("policyName", ""))
        if policy is None or not _matches(state, policy.get("matchConstraints"), write):
            continue
        if spec.get("matchResources") and not _matches(state, spec["matchResources"], write):
            continue
        _evaluate(spec, binding["metadata"]["name"], policy, write)


def _matches(state: State, constraints: Object | None, write: Write) -> bool:
    found = constraints or {}
    listed = found.get("resourceRules")
    if listed is not None and not any(rules.rule_matches(rule, write) for rule in listed):
        return False
    if any(rules.rule_matches(rule, write) for rule in found.get("excludeResourceRules") or ()):
        return False
    return rules.namespace_matches(state, found.get("namespaceSelector"), write) and rules.object_matches(
        found.get("objectSelector"), write
    )


def _evaluate(binding: Object, binding_name: str, policy: Object, write: Write) -> None:
    variables = rules.request_variables(write)
    ignore = policy.get("failurePolicy") == "Ignore"
    try:
        conditions = policy.get("matchConditions") or ()
        if not all(cel.holds(condition["expression"], variables) for condition in conditions):
            return
        variables["variables"] = _Lazy(policy.get("variables") or [], variables)
    except cel.CelError as error:
        if not ignore:
            raise _refused(binding, binding_name, write, f"expression resulted in error: {error}", "Invalid") from error
        return
    for validation in policy.get("validations") or ():
        problem = _problem(validation, variables, ignore=ignore)
        if problem is None:
            continue
        if "Deny" in (binding.get("validationActions") or ["Deny"]):
            raise _refused(binding, binding_name, write, problem, validation.get("reason", "Invalid"))
        if "Warn" in binding["validationActions"]:
            source = f"ValidatingAdmissionPolicy '{binding['policyName']}' with binding '{binding_name}'"
            write.call.warnings.append(f"Validation failed for {source}: {problem}")


def _problem(validation: Object, variables: Object, *, ignore: bool) -> str | None:
    try:
        if cel.holds(validation["expression"], variables):
            return None
    except cel.CelError as error:
        return None if ignore else f"expression '{validation['expression']}' resulted in error: {error}"
    if validation.get("messageExpression"):
        try:
            return str(cel.evaluate(validation["messageExpression"], variables))
        except cel.CelError:
            pass
    return str(validation.get("message") or f"failed expression: {validation['expression'].strip()}")


_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


def _refused(binding: Object, binding_name: str, write: Write, problem: str, reason: str) -> StatusError:
    said = (
        f"ValidatingAdmissionPolicy '{binding['policyName']}' with binding '{binding_name}' denied request: {problem}"
    )
    resource = write.call.resource
    message = f'{failures.qualified(resource.plural, resource.group)} "{write.name}" is forbidden: {said}'
    details: Object = {"name": write.name, "kind": resource.plural, "causes": [{"message": said}]}
    if resource.group:
        details["group"] = resource.group
    return StatusError(_CODES.get(reason, 422), reason, message, details=details)


class _Lazy(dict[str, object]):
    """The policy's variables, each evaluated when first read."""

    def __init__(self, definitions: list[Object], scope: Object) -> None:
        super().__init__()
        self._expressions = {item["name"]: item["expression"] for item in definitions}
        self._scope = {**scope, "variables": self}

    def __contains__(self, name: object) -> bool:
        return name in self._expressions

    def __getitem__(self, name: str) -> object:
        if not super().__contains__(name):
            self[name] = cel.evaluate(self._expressions[name], self._scope)
        return super().__getitem__(name)
