"""
The data source `penstock`: what needs no Spark to be shown is shown without (the parts are called as Spark calls them), the rest on
real Spark (fixture `spark`), in one session for each process.
"""
