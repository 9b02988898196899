"""The broker: what a server does for each of its clients, whatever the protocol."""
