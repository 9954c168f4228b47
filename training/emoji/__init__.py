"""The recipe that trained the embedded model: data, codes, pixel decoder, trunk, figures.

Nothing here is needed to use the model; ``python -m training.emoji`` makes it again.
"""
