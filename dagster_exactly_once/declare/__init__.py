"""The declaration of a stream, and the configuration of its ops."""
