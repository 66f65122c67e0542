"""The search: gates, the loop over weights and alphas, the verdict, layouts ranked with the supernet's weights.

Imports training and all rooms before it.
"""
