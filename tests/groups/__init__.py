"""The parts of a group one by one, and what becomes of a group after a crash."""
