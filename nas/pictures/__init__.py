"""Pictures of a run, one file a family and one line in `plots.PICTURES` each.

Imports results.
"""
