"""Transactions as the brokers see them: by coordinators, by leaders of partitions, by the records themselves."""
