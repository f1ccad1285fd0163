"""A session that lasts, and files between its workspace and the caller's disk. Knows no agent framework."""
