"""Which card and which node is better: one idea a module, each in plain Python and in columns."""
