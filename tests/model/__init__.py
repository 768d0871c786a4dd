"""The commit protocol as a small machine; the exploration visits every state. ``README.md`` in this folder says how."""
