"""What a network learns: one record a task, and the dictionary of them.

Imports config, machine and data; nothing above this room knows a task by name.
"""
