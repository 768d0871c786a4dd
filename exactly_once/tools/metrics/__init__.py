"""Metrics of sinks, taken from outside by an observer: OpenTelemetry instruments, for Prometheus and over OTLP.

The observer reads the commit logs, asks the brokers, and writes nothing. The packages of OpenTelemetry are in the extra
``metrics``; only :mod:`.export` imports them.
"""
