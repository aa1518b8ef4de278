//! Several grips that are let go together: all of them, whatever becomes of one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::Clock;

use crate::error::{Error, LostReason};
use crate::grip::Grip;
use crate::told::{Listener, Together};

/// What was taken of several locks. Dropping it lets go of all.
#[derive(Debug)]
pub(crate) struct Bundle {
    grips: Vec<Grip>,
}

impl Bundle {
    /// Of grips by the places of their locks, in the order of these.
    pub(crate) fn new(grips: BTreeMap<usize, Grip>) -> Self {
        Self { grips: grips.into_values().collect() }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.grips.iter().all(Grip::is_held)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.grips.iter().try_for_each(Grip::check)
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.grips.iter().map(Grip::remaining).min().unwrap_or_default()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.grips.iter().map(Grip::name).collect()
    }

    pub(crate) fn tokens(&self) -> Vec<Option<u64>> {
        self.grips.iter().map(Grip::token).collect()
    }

    /// A channel that is told of the first loss.
    pub(crate) fn listen(&self) -> Receiver<LostReason> {
        let (together, told) = Together::new(self.grips.len(), self.grips.len());
        for grip in &self.grips {
            grip.tell(Listener::Together(Arc::clone(&together)));
        }
        told
    }

    /// Lets go of all, for as long as a caller who waits for nothing else has patience. Answers the first error.
    pub(crate) fn let_go(mut self) -> Result<(), Error> {
        let grips = std::mem::take(&mut self.grips);
        by_server(grips, Grip::let_go)
    }

    /// Lets go of all, and waits until `end` at most. What fails is owed, and finished in the background.
    pub(crate) fn let_go_by(mut self, clock: &dyn Clock, end: Instant) {
        let grips = std::mem::take(&mut self.grips);
        let left = || end.saturating_duration_since(clock.now());
        drop(by_server(grips, |grip| grip.let_go_within(left())));
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let grips = std::mem::take(&mut self.grips);
        // What fails is owed, and finished in the background.
        drop(by_server(grips, Grip::let_go_once));
    }
}

/// Lets go in the opposite order of taking: of each server's grips one after the other, of several servers at the same
/// time, so that one that hangs does not keep the others' locks.
fn by_server(
    mut grips: Vec<Grip>,
    let_go: impl Fn(Grip) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    grips.reverse();
    let mut servers: Vec<Vec<Grip>> = Vec::new();
    for grip in grips {
        match servers.iter_mut().find(|of| of.iter().any(|other| other.is_beside(&grip))) {
            Some(of) => of.push(grip),
            None => servers.push(vec![grip]),
        }
    }
    let all = &|grips| all_of_one_server(grips, &let_go);
    let Some(own) = servers.pop() else {
        return Ok(());
    };
    thread::scope(|scope| {
        let mut result = Ok(());
        let mut others = Vec::new();
        for grips in servers {
            let thread = thread::Builder::new().name("lock-release".to_owned());
            match thread.spawn_scoped(scope, move || all(grips)) {
                Ok(other) => others.push(other),
                // What was to run there is dropped here, and the grips with it: they let go.
                Err(error) => result = Err(Error::Thread { reason: error.to_string() }),
            }
        }
        result = result.and(all(own));
        for other in others {
            // It does not panic; if it did, the grips that it dropped have let go.
            result = result.and(other.join().unwrap_or(Ok(())));
        }
        result
    })
}

/// Lets go of one after the other. What comes after a release that was not answered is over at once and owed: each
/// would wait as long.
fn all_of_one_server(
    grips: Vec<Grip>,
    let_go: impl Fn(Grip) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut result = Ok(());
    let mut answers = true;
    for grip in grips {
        let left = if answers { let_go(grip) } else { grip.let_go_later() };
        answers = answers && !left.as_ref().is_err_and(Error::is_retryable);
        result = result.and(left);
    }
    result
}
