"""The store over the network: the same names and the same guarantees."""
