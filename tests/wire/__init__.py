"""The native protocol: bytes, and what they say."""
