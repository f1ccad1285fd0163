"""The operator: turns CodeExecutions into hardened pods, and what happened there into records."""
