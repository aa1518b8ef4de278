//! Releases the locks of a multi-lock: all of them, even if one cannot be released.

use std::thread;
use std::time::Instant;

use hashed_wheel::Clock;

use crate::error::Error;
use crate::lock::held_locks::RawGuards;
use crate::lock::raw_guard::RawGuard;
use crate::model::panics::drop_payload;

/// Releases all in one attempt each, and waits until `end` at most. A release that fails is queued.
pub(crate) fn release_by(guards: RawGuards, clock: &dyn Clock, end: Instant) {
    let left = || end.saturating_duration_since(clock.now());
    drop(release_all(guards, |guard| guard.release_within(left())));
}

/// Releases all by `release`, in the opposite order of the acquire, and returns the first error.
///
/// The guards of one server are released one after the other, and different servers at the same
/// time, so that one that hangs does not delay the release on the others.
pub(crate) fn release_all(
    guards: RawGuards,
    release: impl Fn(RawGuard) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let mut servers: Vec<Vec<RawGuard>> = Vec::new();
    for guard in guards.into_values().rev() {
        match servers.iter_mut().find(|of| of.iter().any(|other| other.same_client(&guard))) {
            Some(of) => of.push(guard),
            None => servers.push(vec![guard]),
        }
    }
    let release = &|guards| release_on_server(guards, &release);
    // The calling thread takes one server. The others get a thread each, and mostly there are none.
    let Some(own) = servers.pop() else {
        return Ok(());
    };
    thread::scope(|scope| {
        let mut result = Ok(());
        let mut others = Vec::new();
        for guards in servers {
            let thread = thread::Builder::new().name("lock-member".to_owned());
            match thread.spawn_scoped(scope, move || release(guards)) {
                Ok(other) => others.push(other),
                // The closure is dropped here, and its guards with it, which releases them.
                Err(error) => result = Err(Error::Thread { reason: error.into() }),
            }
        }
        result = result.and(release(own));
        for other in others {
            // A panic would have dropped the guards of that thread, which releases them.
            result = result.and(other.join().map_err(drop_payload).unwrap_or(Ok(())));
        }
        result
    })
}

/// After a release that was not answered the others of that server are queued: each would wait for
/// as long.
fn release_on_server(
    guards: Vec<RawGuard>,
    release: impl Fn(RawGuard) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut result = Ok(());
    let mut answers = true;
    for guard in guards {
        let released = if answers { release(guard) } else { guard.defer_release() };
        answers = answers && !released.as_ref().is_err_and(Error::is_retryable);
        result = result.and(released);
    }
    result
}
