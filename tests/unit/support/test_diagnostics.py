"""What is printed of a pod beside a test that failed says why the pod is as it is."""

from diagnostics import _of_a_pod


def test_the_whole_message_of_a_condition_is_printed() -> None:
    why = f"0/1 nodes are available: {'x' * 300}"
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    initialized = {"type": "Initialized", "status": "True", "message": "not worth a word"}
    status = {"phase": "Pending", "conditions": [pending, initialized]}
    printed = _of_a_pod({"kind": "Pod", "metadata": {"name": "one", "namespace": "box"}, "status": status})
    assert f"Unschedulable {why}" in printed
    assert "not worth a word" not in printed
