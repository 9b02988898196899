"""The server: listeners that translate calls from the network into calls of one open store. They decide nothing that it can decide."""
