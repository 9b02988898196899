"""Crashes in the simulated file system: every state the disk may be in is recovered and checked."""
