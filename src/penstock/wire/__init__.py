"""The native protocol: frames, calls, and how values travel. docs/protocol.md describes it for other languages."""
