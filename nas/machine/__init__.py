"""The process and what it runs on: start and end, signals, device, workers, processes of torchrun, random seeds.

Imports config.
"""
