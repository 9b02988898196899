"""Groups: who has handled what of a topic. Cursors, leases, redelivery, dead letters."""
