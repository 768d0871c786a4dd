"""The runs of streams, backfills and recoveries: their tags, their processes, their history, and why they failed."""
