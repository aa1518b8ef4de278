//! Examples of hashed-wheel and wheellock: see the folder `examples`.

/// The examples in the README files, which run as documentation tests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../README.md")]
    pub struct Root;

    #[doc = include_str!("../../wheel/README.md")]
    pub struct Wheel;

    #[doc = include_str!("../../lock/README.md")]
    pub struct Lock;
}
