"""Decisions: pure functions of what was observed and of `now`. No kopf, no I/O, no clock."""
