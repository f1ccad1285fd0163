"""What there is, and what of it is still needed: told of all workers, and of the requests that wait for one."""

from collections import Counter
from collections.abc import Iterable

from codeexec_api import Phase, SessionPhase
from codeexec_api.names import EXECUTION_PLURAL, SESSION_PLURAL
from codeexec_operator.adapters.executions import ExecutionWorker
from codeexec_operator.adapters.pools import PoolWorker
from codeexec_operator.adapters.sessions import SessionWorker
from codeexec_operator.core.intake import Ticket
from codeexec_operator.core.measures import Census
from codeexec_operator.core.observed import Room


def payloads(executions: Iterable[ExecutionWorker], waiting: Iterable[Ticket]) -> set[str]:
    """Names of the Secrets that an execution still needs; of a payload in parts, that of the first: many may wait."""
    needed = [worker.awaited for worker in executions]
    named = [*(name for one in needed for name in (one.payload, one.review)), *(ticket.payload for ticket in waiting)]
    return set(filter(None, named))


def keys(executions: Iterable[ExecutionWorker], waiting: Iterable[Ticket]) -> frozenset[str]:
    """Names of the sealing keys that an execution still needs."""
    named = [*(worker.awaited.key for worker in executions), *(ticket.key for ticket in waiting)]
    return frozenset(filter(None, named))


def census(
    executions: Iterable[ExecutionWorker],
    sessions: Iterable[SessionWorker],
    pools: Iterable[PoolWorker],
    waiting: Iterable[Ticket],
) -> Census:
    """How many there are of what is not over."""
    tickets = Counter((ticket.plural, ticket.namespace) for ticket in waiting)
    runs = Counter((one.meta.namespace, one.phase) for one in executions if not one.phase.terminal)
    runs.update({(where, Phase.PENDING): n for (kind, where), n in tickets.items() if kind == EXECUTION_PLURAL})
    held = Counter((one.meta.namespace, one.phase) for one in sessions if not one.phase.terminal)
    held.update({(where, SessionPhase.PENDING): n for (kind, where), n in tickets.items() if kind == SESSION_PLURAL})
    return Census(runs, held, [pool.count for pool in pools])


def room(sessions: Iterable[SessionWorker], executions: Iterable[ExecutionWorker], pools: Iterable[PoolWorker]) -> Room:
    """What has pods in a namespace, given all that it has."""
    ready = [session for session in sessions if session.phase is SessionPhase.READY]
    return Room(
        idle=tuple(session.meta.name for session in ready if not session.busy),
        busy=sum(session.busy for session in ready),
        executions=sum(run.phase is Phase.RUNNING and bool(run.pods()) for run in executions),
        ready=sum(pool.count.ready for pool in pools),
    )
