//! Catches panics of foreign code: a clock, a callback, a recorder, a resolver.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `foreign` and returns its result, or `None` after a panic.
///
/// Unwind safety is asserted: `foreign` changes our state only under locks without poison, or not
/// at all.
pub(crate) fn catch_panic<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(foreign)).map_err(drop_payload).ok()
}

/// Drops a panic's payload. Its destructor is foreign code too, and may panic with a payload whose
/// destructor panics, without end: the second payload is leaked.
pub(crate) fn drop_payload(payload: Box<dyn Any + Send>) {
    mem::forget(catch_unwind(AssertUnwindSafe(|| drop(payload))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_here_whatever_it_carries() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new(Bomb));
            }
        }
        assert_eq!(catch_panic(|| 7), Some(7));
        assert_eq!(catch_panic(|| std::panic::resume_unwind(Box::new("on purpose"))), None::<()>);
        assert_eq!(catch_panic(|| std::panic::resume_unwind(Box::new(Bomb))), None::<()>);
    }
}
