"""Is B faster than A? Interleaved rounds of fresh processes, null arms, paired statistics."""
