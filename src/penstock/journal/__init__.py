"""The store journal: frames, and the commit cycle that makes them durable."""
