"""
One suite for every way to reach the engine: the same calls on a folder and on `memory:`, and later through a server.

Tests use the public names only, and reach a store through a `Backend` (`backends.py`), so that a new backend is one more class
there. Most tests stop the clock (`backend`, a FakeClock and no threads); the tests of waking, threads and blocking use `live`,
which runs on the machine's clock. Neither judges speed.
"""
