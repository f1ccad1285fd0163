"""Limits and patterns of the contract: each bound is written here, once."""

from typing import Final

MAX_BLOCKS: Final = 64
MAX_POD_USES: Final = 100
MAX_FILES: Final = 64
MAX_PART_BYTES: Final = 1_000_000
"""Limit of one payload Secret. A Secret holds at most 1 MiB, including its keys."""
MAX_PAYLOAD_PARTS: Final = 16
MAX_SEALED_BYTES: Final = 16 * 1024
"""Limit of the code and files in a sealed payload."""
MAX_PAYLOAD_BYTES: Final = MAX_PART_BYTES * MAX_PAYLOAD_PARTS
"""Limit of the code and files of one execution."""
MAX_CODE_BYTES: Final = 1_000_000
"""Limit of all blocks of one execution together."""
MAX_ARTIFACTS: Final = 256
MAX_FETCH_BYTES: Final = 16 * 1024 * 1024
"""Limit of all files that one execution returns, without an output store."""
MAX_OUTPUT_PARTS: Final = 96
"""ConfigMaps with the output of one execution."""
MAX_STORED_BYTES: Final = 128 * 1024 * 1024
"""Limit of each output stream, and of all files that one execution returns, with an output store."""
MAX_STORED_PARTS: Final = 768
"""Objects in the output store with the output of one execution."""
PART_PATTERN: Final = "[0-9]{1,10}-[0-9]{1,10}"
"""The frames of the runner that a part of the output is made of: the first, and the one after the last."""
MAX_KEPT_FILES: Final = 4096
"""Files and folders of a session that sleeps."""
STORE_URL_PATTERN: Final = "[a-z][a-z0-9+.-]*://[A-Za-z0-9._~/-]+"
MAX_STORE_URL: Final = 512
"""Characters in the URL of an output store."""
MAX_TIMEOUT_SECONDS: Final = 86_400
DEFAULT_IDLE_SECONDS: Final = 1800
"""How long a session may be idle, unless its request says another time."""
DEFAULT_LIFETIME_SECONDS: Final = 28_800
"""How long a session may last, unless its request says another time."""
MAX_SESSION_SECONDS: Final = 7 * 86_400
MIN_RECORD_SECONDS: Final = 300
"""How long each record is kept, whatever the policy says: its client may still read it."""
MAX_PIDS: Final = 32_768
MAX_POOL_REPLICAS: Final = 10_000
MAX_EGRESS_TARGETS: Final = 16
MAX_PERMITS: Final = 16
"""Egress destinations that one execution can request."""
MAX_MOUNTS: Final = 8
MAX_LEFT_OUT: Final = 256
"""Address ranges that are excluded from one egress destination."""
MAX_LABEL: Final = 63
"""Length of a label's value. Here, keys have the same limit."""
MAX_CODE_RULES: Final = 3
"""One rule for each action."""
MAX_IMPORTS: Final = 32
"""Modules in one code rule."""
MAX_CODE_GRANTS: Final = MAX_IMPORTS + 1
"""One for each module that needs approval, and one for unreadable code."""
MAX_CODE_FINDINGS: Final = MAX_CODE_RULES * MAX_IMPORTS + 1
MAX_GRANTS: Final = MAX_BLOCKS + 8 + MAX_PERMITS + MAX_MOUNTS + MAX_CODE_GRANTS
"""One for each block's language, egress destination, mount and code finding, and one for each other field."""
MAX_AGENT_RULES: Final = 64
MAX_UNUSED_APPROVALS: Final = 8
"""Approvals without effect that the status of an execution lists."""
MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""Limit of each output stream without an output store."""
MAX_INLINE_BYTES: Final = 256 * 1024
"""Limit of each output stream in the status. Both streams, escaped, must fit into one etcd object (1.5 MiB)."""
DEFAULT_REQUESTS: Final = {"cpu": "20m", "memory": "64Mi", "ephemeral_storage": "16Mi"}
"""What a sandbox pod requests if no policy says otherwise: what a sandbox needs that waits for code."""

IMAGE_PATTERN: Final = r"^[a-z0-9][a-zA-Z0-9./:_-]{0,199}@sha256:[0-9a-f]{64}$"
CIDR_PATTERN: Final = r"^[0-9a-fA-F:.]{2,45}/[0-9]{1,3}$"
MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
MOUNT_ROOT: Final = "/mnt"
"""The folder that holds all mounts that an execution requests."""
MOUNT_PATH_PATTERN: Final = rf"^{MOUNT_ROOT}/[a-z0-9]([-a-z0-9._]{{0,61}}[a-z0-9])?$"
TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
