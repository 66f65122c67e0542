"""From text on a disk to batches of token numbers: readers, tokenizers, the four parts of a corpus, prompts.

Imports config and machine.
"""
