//! Benchmarks of hashed-wheel and wheellock: see the folder `benches`.
