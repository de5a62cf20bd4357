//! The simulated world: a cluster of machines on one thread, from a seed.
