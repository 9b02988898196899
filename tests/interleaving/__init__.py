"""The engine under schedules that a seed decides: see `penstock.testing.interleaving`."""
