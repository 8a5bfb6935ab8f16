"""reach: what a head can be made to say, beyond the yes or no of an audit."""
