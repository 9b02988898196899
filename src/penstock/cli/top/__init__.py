"""`penstock top`: a live view of a store, in a terminal."""
