#![doc = include_str!("faults.md")]
