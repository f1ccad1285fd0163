"""Checkpoints and exports are kept in a folder."""

from executor_client.cli.evidence_store import EvidenceStore

store = EvidenceStore(".", "checkpoints", "kept")
store.add("1", b"first")
assert (store.names(), store.read(["1"])) == (["1"], {"1": b"first"})
