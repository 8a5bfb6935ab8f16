"""web: pages over a store, and the playground."""
