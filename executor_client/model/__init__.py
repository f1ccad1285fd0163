"""What goes into a call and comes out of it: blocks, results, and how callers name things. Asks no cluster."""
