"""What candidates and networks take: FLOPs, parameters, measured time, memory.

Imports config, machine and tasks.
"""
