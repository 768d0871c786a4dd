"""``exactly-once demo``: the same real flights through Spark's own Kafka sink and through ours, both killed with kill
-9 at the same moments.
"""
