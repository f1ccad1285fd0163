"""How long the operator waits, for everything that it waits for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Limits of the operator's own patience, in seconds."""

    payload_grace: float = 5
    """How long payload and session may come after the CodeExecution; clients create them at once."""
    payload_retry: float = 0.1
    start_timeout: float = 60
    """From accepted to running: scheduling, image pull, container start."""
    attach_retry: float = 1
    node_retry: float = 1
    """How often it is looked whether a node is known that has just joined."""
    sleep_retry: float = 300
    """How long a session that could not be put to sleep stays awake, unless it is used meanwhile."""
    wake_retry: float = 10
    """How long a session sleeps on that could not be woken."""
    workspace_transfer: float = 300
    """How long the files of a session may take to get into the store, or into its pod."""
    proof_retry: float = 1
    """How often a proof is made again that could not be made for want of an answer to the operator."""
    exit_grace: float = 15
    """How long a runner that has reported its end may take to exit, before its pod is deleted."""
    unreachable: float = 60
    """How long connections to a pod in which code runs may be refused, before the code counts as lost."""
    look_again: float = 15
    """How long nothing may be heard of a pod that starts, before it is looked for: its watch may have gone silent."""
    late_start: float = 5
    """What a runner gets to answer that was seen to run at the last moment."""
    clock_skew: float = 300
    """How much the clock of a node may differ from the operator's."""
    grace: float = 5
    """What the runner gets beyond its own limits before the pod is deleted under it."""
    kernel_start: float = 30
    """What it gets in addition where a new IPython kernel may have to be started."""
    transfer: float = 60
    """What files that go in or come out may take in addition."""
    list_grace: float = 15
    """How long it may take, after a start of the operator, until what there is was listed."""
    use_recorded: float = 30
    """How old what the record says of a session's use may get."""
    queue_notice: float = 1
    """How long an execution waits for a pod of a pool before its record says so, which costs two writes."""
    early_notice: float = 0.25
    """How long an execution or session whose pod finds no room waits before its record says so, and an execution that
    was made with its session before its record says that the execution was accepted."""
    start_notice: float = 1.5
    """How long an execution or session waits for its own pod, or for its turn in a session, before its record says
    so. If no node has room for its pod, it is `early_notice`."""
    queue_recorded: float = 5
    """How old what the record says of its place in the queue may get."""
    queue_write: float = 0.1
    """For each that waits: so much older it may get, so that a long queue doesn't write all the time."""
    refill_pause: float = 1
    """How long a pool that is at least half full waits, after a pod was taken, before it starts others."""
    low_refill_pause: float = 0.3
    """The same for one that is not half full: about what code takes that takes no time. Not where pods come back."""
    queue_first: float = 3
    """How long a pool makes pods only for those who wait. If some wait ever on, it is filled up beside them then."""
    reuse_return: float = 0.3
    """How long, once executions wait, a pod that runs code counts as one that comes back and makes another needless."""
    ping_every: float = 10
    """How often a pod that waits is asked whether it is still there."""
    ping_answer: float = 5
    """How long its answer may take before it is given up: its node may be lost, and no connection tells."""
    reset_answer: float = 5
    """How long a runner may take to clean its pod and to show that it is clean."""
    reuse_idle: float = 10
    """How long a pod that was used is kept for more of the same tenant."""
    reuse_run: float = 10
    """How long code may run before its pod becomes its own, and is not used again."""
    adopt: float = 1
    """How long code may run before a pod of a pool that is used once becomes its own."""
    pool_status: float = 1
    """How old what the record says of a pool may get."""
    pool_pause: float = 1
    """How long a pool waits after one of its pods was no good; twice as long each further time."""
    pool_longest_pause: float = 60
    give_way: float = 20
    """How long pools make no pods after a pod of an execution or session was found that no node has room for."""
    give_way_again: float = 5
    """How long a pod that a pool gave up may take to become room for such a pod, before the pool gives up another."""
    crowded: float = 10
    """How long a pool starts one pod after the other, once no node had room for one of its pods."""
    start_turn: float = 5
    """How often a pool that may start no more pods asks again. It is told sooner when it may."""
