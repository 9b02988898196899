"""`penstock bench`: how quick a disk, a store or a server is, measured where the user is."""
