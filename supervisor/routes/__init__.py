"""Every native method: its parameters, and how it becomes a message and a result. A file for each subject."""
