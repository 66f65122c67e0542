"""The command line and its small commands.

Imports all rooms before it.
"""
