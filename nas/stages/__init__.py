"""The stages of a run, each from files to files, and the jobs that they are made of.

Imports all rooms before it.
"""
