//! A hashed timing wheel.
