"""
The gRPC listener: `src/penstock/wire/penstock.proto` on the server's own event loop. How to use it: docs/grpc.md.

`listener.py` listens and stops; `router.py` finds out who calls and what, before anything of a request is read; the other files are what
the calls do. Nothing here waits for the disk or reads files in the event loop: that is done in threads, or by tickets of the commit cycle.
"""
