"""A run's files read back, and what they say: the record of a run, means over seeds, which layout to take.

Imports config and machine; needs no torch but for the folder's lock.
"""
