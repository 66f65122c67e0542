"""A run for a reader: report.html, several runs side by side, the view in a terminal.

Imports pictures and results.
"""
