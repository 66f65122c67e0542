"""A plain training: steps, optimizers, checkpoints, metrics, evaluation, weights in files.

Imports config, machine, data, tasks and costs.
"""
