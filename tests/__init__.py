"""The tests; the folders mirror those of src/penstock."""
