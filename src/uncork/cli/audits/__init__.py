"""What commands do around an audit: workers, unfinished ones, the gate, the store, items."""
