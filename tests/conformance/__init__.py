"""
One suite for every way to reach the engine: the same calls on a folder, on `memory:` and through a server; in the long run also through its
client for asyncio and over HTTP (`over_http.py`), as far as they have the calls. The tests of fairness run over every interface there is
(`interfaces.py`), and no interface can leave them out (`test_every_interface.py`).

Tests use the public names only, and reach a store through a `Backend` (`backends.py`), so that a new backend is one more class
there. Most tests stop the clock (`backend`, a FakeClock and no threads); the tests of waking, threads and blocking use `live`,
which runs on the machine's clock. Neither judges speed.
"""
