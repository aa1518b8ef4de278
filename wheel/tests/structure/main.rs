//! The structure of the source: the order of its folders and files, and what each public type
//! promises.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

mod imports;
mod public_types;
mod source;
