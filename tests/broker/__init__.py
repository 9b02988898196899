"""One client of a server, without the network."""
