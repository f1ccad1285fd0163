"""What a caller asks a cluster for: executions, sessions, decisions. Knows no agent framework."""
