"""What a run is told: the sections of keys and their ranges, the command line and YAML files that fill them.

Imports derive and supernet, and no other room.
"""
