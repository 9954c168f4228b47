"""Statistics of decoders, measured from outside, iteration by iteration: `sjdvp analyze`."""
