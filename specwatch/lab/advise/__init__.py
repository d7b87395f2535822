"""Is a pairing of target and draft sound, before anything is started."""
