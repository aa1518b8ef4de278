//! The memory of a pending timeout, beside the handle that the caller keeps.

use crate::harness::process::resident_bytes;
use crate::timer::bench_timer::BenchTimer;
use crate::timer::random::Random;
use crate::timer::workloads::{MILLION, Numbers};

/// A million timeouts are due between `from` and `to` seconds from now.
pub(super) fn memory<T: BenchTimer>(timer: &T, from: u64, to: u64) -> Numbers {
    let mut own = timer.clone();
    let mut slots: Vec<Option<T::Handle>> = Vec::new();
    slots.resize_with(usize::try_from(MILLION).unwrap_or(0), || None);
    let before = resident_bytes();
    timer.within(|| fill(&mut own, &mut slots, from, to));
    own.absorb(u64::from(MILLION));
    let bytes = (resident_bytes() - before) / f64::from(MILLION);
    for handle in slots.into_iter().flatten() {
        T::leave(handle);
    }
    vec![("bytes", bytes)]
}

fn fill<T: BenchTimer>(own: &mut T, slots: &mut [Option<T::Handle>], from: u64, to: u64) {
    let mut random = Random::new(1);
    for slot in slots {
        *slot = Some(own.schedule(random.delay(from, to), 0));
    }
}
