"""Changed heads: classes made argmaxable, the price, and the proof."""
