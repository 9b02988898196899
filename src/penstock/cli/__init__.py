"""The command line, `penstock`: one file a command group. It translates and calls; it decides nothing that the engine can decide."""
