//! What a pending timeout takes of memory, beside the handle that the caller keeps.

use crate::process::resident_bytes;
use crate::timing::random::Random;
use crate::timing::subject::Subject;
use crate::timing::workloads::{MILLION, Numbers};

/// A million are due between `from` and `to` seconds from now.
pub(super) fn memory<S: Subject>(subject: &S, from: u64, to: u64) -> Numbers {
    let mut own = subject.clone();
    let mut slots: Vec<Option<S::Handle>> = Vec::new();
    slots.resize_with(usize::try_from(MILLION).unwrap_or(0), || None);
    let before = resident_bytes();
    subject.within(|| fill(&mut own, &mut slots, from, to));
    own.absorb(u64::from(MILLION));
    let bytes = (resident_bytes() - before) / f64::from(MILLION);
    for handle in slots.into_iter().flatten() {
        S::leave(handle);
    }
    vec![("bytes", bytes)]
}

fn fill<S: Subject>(own: &mut S, slots: &mut [Option<S::Handle>], from: u64, to: u64) {
    let mut random = Random::new(1);
    for slot in slots {
        *slot = Some(own.schedule(random.delay(from, to), 0));
    }
}
