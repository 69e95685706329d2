"""Binding: one decision, one write, and a certain end to every attempt.

The share is taken in the ledger first, then the binding with the decision in its annotations is posted. When no answer
comes the pod itself is read: it tells whether the write was carried out. When it cannot be read either, or does not
show the binding *yet*, the share stays taken until the ledger's deadline: a late binding must not find its slices in
other hands.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from extender.gate import BUSY, Gate
from extender.promises import BindingPlan
from extender.wire import ExtenderBindingArgs
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, NotFound, Unreachable
from gpuslice.cluster.resources import PODS
from gpuslice.devices.annotations import ALLOCATION
from gpuslice.devices.pods import Pod
from gpuslice.devices.value import Value

log = structlog.get_logger(__name__)


class Outcome(Value, frozen=True):
    """How an attempt ended; an empty error means bound."""

    error: str = ""
    api_seconds: float = 0.0
    """How much of the time was spent waiting for the API server."""


NOT_LEADING = "this replica does not lead any more"


class Desk(Protocol):
    """What binding needs of the promises; see extender.promises."""

    def bound_to(self, uid: str) -> str:
        """Node to which the pod is certainly bound; empty otherwise."""

    def knows(self, uid: str) -> bool:
        """Whether the pod was filtered here."""

    def learn(self, pod: Pod) -> None:
        """Read the request of a pod that was not."""

    def plan(self, uid: str, node: str) -> BindingPlan | str:
        """Take a share on the node, or say in words why there is none."""

    def confirm(self, uid: str) -> None:
        """The binding is written."""

    def forget(self, uid: str) -> None:
        """The binding is certainly not written and never will be."""

    def doubt(self, uid: str) -> None:
        """The binding may still be written: keep the share until its deadline."""

    def observe_pod(self, pod: Pod) -> None:
        """This is what the API server has."""


class Binder:
    """Carries out /bind. One attempt per pod at a time; a repeated call joins the one that is under way."""

    def __init__(
        self,
        client: KubeClient,
        desk: Desk,
        gate: Gate,
        *,
        leads: Callable[[], bool],
        timeout_seconds: float,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; ``waiting`` is called each time that the API server has been asked and not answered yet."""
        self._waiting = waiting
        self._client = client
        self._desk = desk
        self._gate = gate
        self._leads = leads
        self._timeout_seconds = timeout_seconds
        self._running: dict[str, tuple[str, asyncio.Future[Outcome | None]]] = {}
        """Attempts under way by pod UID: the node, and how it ended (None: by an error of ours)."""

    async def bind(self, args: ExtenderBindingArgs) -> Outcome:
        """Bind a pod, or say why not. The caller must not be cancelled, or the attempt stops halfway."""
        while (running := self._running.get(args.pod_uid)) is not None:
            node, ended = running
            result = await asyncio.shield(ended)
            if node == args.node and result is not None:
                return result
        ended = asyncio.get_running_loop().create_future()
        self._running[args.pod_uid] = (args.node, ended)
        outcome = None
        try:
            outcome = await self._attempt(args)
        finally:
            # Whoever waits finds the place free.
            del self._running[args.pod_uid]
            ended.set_result(outcome)
        return outcome

    async def _attempt(self, args: ExtenderBindingArgs) -> Outcome:
        uid = args.pod_uid
        if bound_to := self._desk.bound_to(uid):
            # A call repeated after its time-out: the first one did it.
            return Outcome("" if bound_to == args.node else f"pod {_name(args)} is bound to {bound_to}")
        if not self._desk.knows(uid):
            problem = await self._learn(args)
            if problem is not None:
                return Outcome(problem)
        plan = self._desk.plan(uid, args.node)
        if isinstance(plan, str):
            log.info("bind_refused", pod=_name(args), node=args.node, reason=plan)
            return Outcome(plan)
        if not plan.identity_known:
            wait_seconds = self._timeout_seconds * 0.5
            if not await self._gate.pass_through(uid, plan.allocation, seconds=wait_seconds):
                self._desk.forget(uid)
                return Outcome(f"node {args.node}: {BUSY}")
        # The last question before the write: a process that was paused must not act on a leadership it has lost.
        if not self._leads():
            self._desk.forget(uid)
            return Outcome(NOT_LEADING)
        return await self._write(args, plan)

    async def _write(self, args: ExtenderBindingArgs, plan: BindingPlan) -> Outcome:
        asyncio.get_running_loop().call_soon(self._waiting)
        started = time.perf_counter()
        try:
            await self._client.bind_pod(
                args.pod_namespace,
                args.pod_name,
                uid=args.pod_uid,
                node=args.node,
                annotations=plan.annotations,
                timeout_seconds=self._timeout_seconds * 0.75,
            )
        except (ApiError, Unreachable) as error:
            problem = await self._settle(args, plan, error)
            return Outcome(problem, time.perf_counter() - started)
        api_seconds = time.perf_counter() - started
        self._desk.confirm(args.pod_uid)
        log.info("bound", pod=_name(args), node=args.node, slices=[s.slice for _, s in plan.allocation.shares()])
        return Outcome(api_seconds=api_seconds)

    async def _learn(self, args: ExtenderBindingArgs) -> str | None:
        """Read a pod that was not filtered here; gives how the attempt ends already, or None to go on."""
        try:
            pod = await self._read(args)
        except NotFound:
            return f"pod {_name(args)} is gone"
        except (ApiError, Unreachable) as error:
            return str(error)
        if pod.metadata.uid != args.pod_uid:
            return f"pod {_name(args)} has uid {pod.metadata.uid} now"
        if pod.spec.node_name:
            self._desk.observe_pod(pod)
            return "" if pod.spec.node_name == args.node else f"pod {_name(args)} is bound to {pod.spec.node_name}"
        self._desk.learn(pod)
        return None

    async def _read(self, args: ExtenderBindingArgs) -> Pod:
        return await self._client.get(PODS, args.pod_name, Pod, namespace=args.pod_namespace)

    async def _settle(self, args: ExtenderBindingArgs, plan: BindingPlan, error: ApiError | Unreachable) -> str:
        """Find out what became of a binding that was not answered with success."""
        uid, refused = args.pod_uid, isinstance(error, ApiError) and error.status < 500
        log.warning("binding_failed", pod=_name(args), node=args.node, error=str(error))
        try:
            async with asyncio.timeout(self._timeout_seconds * 0.25):
                pod = await self._read(args)
        except NotFound:
            self._desk.forget(uid)
            return f"pod {_name(args)} is gone"
        except (ApiError, Unreachable, TimeoutError):
            self._drop(uid, certain=refused and error_is_final(error))
            return str(error)
        if pod.metadata.uid != uid:
            self._desk.forget(uid)
            return f"pod {_name(args)} has uid {pod.metadata.uid} now"
        if not pod.spec.node_name:
            self._drop(uid, certain=refused)
            return str(error)
        self._desk.observe_pod(pod)
        if pod.spec.node_name != args.node:
            return f"pod {_name(args)} is bound to {pod.spec.node_name}"
        ours = pod.metadata.annotations.get(ALLOCATION) == plan.annotations[ALLOCATION]
        log.info("binding_found", pod=_name(args), node=args.node, ours=ours)
        return ""

    def _drop(self, uid: str, *, certain: bool) -> None:
        if certain:
            self._desk.forget(uid)
        else:
            self._desk.doubt(uid)


def error_is_final(error: ApiError | Unreachable) -> bool:
    """Whether the write is certainly not there, without reading: refused, and not because somebody wrote first."""
    return isinstance(error, ApiError) and error.status < 500 and error.status != 409


def _name(args: ExtenderBindingArgs) -> str:
    return f"{args.pod_namespace}/{args.pod_name}"
