"""The whole store on disk: one journal and the logs it feeds."""
