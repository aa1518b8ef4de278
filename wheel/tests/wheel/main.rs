//! The bare wheel, without a clock or a thread.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails its test")]

mod ticks;
mod wheel_model;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hashed_wheel::Wheel;

fn wheel<T>(buckets: usize) -> Wheel<T> {
    Wheel::new(buckets).unwrap()
}

/// Advances to `tick` and returns everything that was due.
fn due_by<T>(wheel: &mut Wheel<T>, tick: u64) -> Vec<(u64, T)> {
    let mut due = Vec::new();
    assert!(wheel.advance(tick, usize::MAX, |tick, value| due.push((tick, value))));
    due
}

/// Advances to `to` and lets `take` panic at its `count`th value, without calling the hook that
/// prints panics.
fn advance_and_panic<T>(wheel: &mut Wheel<T>, to: u64, count: usize) -> (bool, Vec<(u64, T)>) {
    let mut due = Vec::new();
    let advance = AssertUnwindSafe(|| {
        wheel.advance(to, usize::MAX, |tick, value| {
            due.push((tick, value));
            if due.len() == count {
                resume_unwind(Box::new("take panics"));
            }
        });
    });
    let panicked = catch_unwind(advance).is_err();
    (panicked, due)
}
