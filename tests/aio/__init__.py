"""The store for asyncio: what the conformance suite asks of the plain store, asked of its twin, and what only tasks can do."""
