//! Releases the locks of a multi-lock: all locks, even after a failed release.

use std::collections::BTreeMap;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::core::raw_guard::RawGuard;
use crate::core::release::{GuardRelease, ReleaseBatch};
use crate::error::Error;
use crate::locks::held_locks::RawGuards;
use crate::locks::multi::batch_queue::BatchQueue;
use crate::locks::multi::plain_locks::MAX_BATCH_LOCKS;
use crate::model::panics::drop_payload;
use crate::model::sync::Mutex;
use crate::store::retry::RetryLimit;

/// How many tries a release of several guards makes, and how long the release waits for answers.
#[derive(Clone, Copy)]
pub(crate) enum ReleaseMode<'a> {
    /// Each release waits for the answer, and is retried without an answer.
    Answered,
    /// Each release is sent as by the drop of a single guard, mostly without a wait for the answer.
    /// A failed release is queued, and so is each release after this time of the clock.
    OnDrop(&'a dyn Clock, Instant),
    /// A single try for each guard, until this time of the clock at most; `None` means without a
    /// time limit. A failed release is queued.
    Once(Option<(&'a dyn Clock, Instant)>),
}

impl ReleaseMode<'_> {
    /// Returns how long a request may take from now on; [`Duration::MAX`] without a limit.
    fn timeout(self) -> Duration {
        match self {
            Self::Once(Some((clock, end))) | Self::OnDrop(clock, end) => {
                end.saturating_duration_since(clock.now())
            }
            Self::Once(None) | Self::Answered => Duration::MAX,
        }
    }

    /// Returns whether the time is over, so that the remaining releases are to be queued.
    fn is_over(self) -> bool {
        self.timeout().is_zero()
    }

    /// Releases `guard` in this mode, and returns the outcome.
    fn release(self, guard: RawGuard) -> Result<(), Error> {
        match self {
            Self::Answered => guard.release(),
            Self::OnDrop(..) => guard.release_on_drop(),
            Self::Once(_) => guard.release_within(self.timeout()),
        }
    }

    /// Releases a batch of plain locks in one request, or lock by lock if the releases cannot share
    /// a request. Returns the first error.
    fn release_batch(self, batch: Vec<GuardRelease>) -> Result<(), Error> {
        let batch = match ReleaseBatch::of(batch) {
            Ok(batch) => batch,
            Err(releases) => return self.release_each(releases),
        };
        match self {
            Self::Answered => batch.send(Duration::MAX, RetryLimit::UntilAnswered),
            Self::OnDrop(..) => batch.send_on_drop(),
            Self::Once(_) => batch.send(self.timeout(), RetryLimit::One),
        }
    }

    /// Sends `releases` one at a time, and returns the first error. After an unanswered release the
    /// rest is queued.
    fn release_each(self, releases: Vec<GuardRelease>) -> Result<(), Error> {
        let (mut result, mut answers) = (Ok(()), true);
        for mut release in releases {
            if !answers || self.is_over() {
                release.queue();
                continue;
            }
            let sent = match self {
                Self::Answered => release.send_until_answered(),
                Self::OnDrop(..) => release.send_on_drop(),
                Self::Once(_) => release.send_within(self.timeout()),
            };
            answers = !sent.as_ref().is_err_and(Error::is_retryable);
            result = result.and(sent);
        }
        result
    }
}

/// Releases all guards, in the reverse order of the acquire, and returns the first error.
///
/// On a server, plain locks are released in batches, all further locks in sequence. Releases for
/// different servers are sent at the same time, so a hanging server delays no other server.
pub(crate) fn release_all(guards: RawGuards, mode: ReleaseMode<'_>) -> Result<(), Error> {
    let mut servers: Vec<Vec<RawGuard>> = Vec::new();
    for guard in guards.into_values().rev() {
        // Group by client: all guards of a client are on the same server.
        let is_same = |of: &&mut Vec<RawGuard>| of.first().is_some_and(|it| it.same_client(&guard));
        match servers.iter_mut().find(is_same) {
            Some(of) => of.push(guard),
            None => servers.push(vec![guard]),
        }
    }
    // The calling thread serves one server. Every other server gets a thread; mostly there is none.
    let Some(own) = servers.pop() else {
        return Ok(());
    };
    let servers: Vec<_> = servers.into_iter().map(|guards| Mutex::new(Some(guards))).collect();
    let serve = |server: &Mutex<Option<Vec<RawGuard>>>| {
        let guards = server.lock().take();
        guards.map_or(Ok(()), |guards| release_on_server(guards, mode))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .map_while(|server| {
                let thread = thread::Builder::new().name("lock-member".to_owned());
                thread.spawn_scoped(scope, || serve(server)).ok()
            })
            .collect();
        let mut result = release_on_server(own, mode);
        // If the operating system has refused a thread, this thread serves the remaining servers.
        for server in servers.iter().skip(threads.len()) {
            result = result.and(serve(server));
        }
        for thread in threads {
            // A panic has dropped the guards of the thread, which releases the locks.
            let released = thread.join().map_err(drop_payload);
            result = result.and(released.unwrap_or_else(|()| Err(panicked_release())));
        }
        result
    })
}

/// Makes the error of a release whose thread panicked.
fn panicked_release() -> Error {
    let reason = "the thread that sent it panicked".into();
    Error::OutcomeUnknown { operation: "release", reason }
}

/// Releases the guards of one server, and returns the first error. After an unanswered release, and
/// after the end of the mode's time, the remaining releases are queued: a hanging server costs a
/// single timeout.
fn release_on_server(guards: Vec<RawGuard>, mode: ReleaseMode<'_>) -> Result<(), Error> {
    let (plain, others): (Vec<_>, Vec<_>) =
        guards.into_iter().partition(RawGuard::is_released_in_batch);
    let mut result = Ok(());
    let queue = BatchQueue::new(release_batches(plain, &mut result));
    let collected = Mutex::new((result, true));
    queue.run(|batch| {
        let answers = collected.lock().1;
        let released = if answers && !mode.is_over() {
            mode.release_batch(batch)
        } else {
            batch.into_iter().for_each(GuardRelease::queue);
            Ok(())
        };
        let (result, answers) = &mut *collected.lock();
        *answers &= !released.as_ref().is_err_and(Error::is_retryable);
        *result = mem::replace(result, Ok(())).and(released);
    });
    let (mut result, mut answers) = collected.into_inner();
    for guard in others {
        let is_sent = answers && !mode.is_over();
        let released = if is_sent { mode.release(guard) } else { guard.defer_release() };
        answers = answers && !released.as_ref().is_err_and(Error::is_retryable);
        result = result.and(released);
    }
    result
}

/// Ends the holds of `guards` in this process, and returns the releases in batches of a single hash
/// slot and at most [`MAX_BATCH_LOCKS`] locks each. Stores the first loss of a hold in `result`,
/// unless `result` is an error already.
fn release_batches(
    guards: Vec<RawGuard>,
    result: &mut Result<(), Error>,
) -> Vec<Vec<GuardRelease>> {
    let mut open: BTreeMap<u16, Vec<GuardRelease>> = BTreeMap::new();
    let mut full = Vec::new();
    for guard in guards {
        let begun = match guard.begin_release() {
            Ok(begun) => begun,
            Err(error) => {
                *result = mem::replace(result, Ok(())).and(Err(error));
                continue;
            }
        };
        let batch = open.entry(begun.hash_slot()).or_default();
        batch.push(begun);
        if batch.len() == MAX_BATCH_LOCKS {
            full.push(mem::take(batch));
        }
    }
    full.extend(open.into_values().filter(|batch| !batch.is_empty()));
    full
}
