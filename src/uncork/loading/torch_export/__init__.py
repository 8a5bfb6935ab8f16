"""Programs that torch.export saves (.pt2): the graph, its weights, and the head found there."""
