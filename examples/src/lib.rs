//! Programs that teach hashed-wheel and wheellock: see the folder `examples`.
