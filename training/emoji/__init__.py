"""How the embedded model was trained: data, codebook, VQ decoder, transformer, scores.

Not needed to use the model; ``python -m training.emoji`` trains it again.
"""
