"""`penstock demo`: demonstrations against a real server process, each of which checks what it claims. One file a demonstration."""
