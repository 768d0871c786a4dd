"""From rows in Arrow columns to record batches at the leaders of their partitions: no Python object for a record."""
