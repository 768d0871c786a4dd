"""The commit protocol as a small machine, of which every state is looked at; ``README.md`` beside it says how."""
