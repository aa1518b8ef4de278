//! One wait for a lock, permits, an open latch or a changed status.
//!
//! [`wait_for`] calls the server by a [`Try`]: once, or whenever the waiter's place in the queue
//! says so.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::client_core::ClientCore;
use crate::core::deadlock::look_for_deadlocks;
use crate::core::wait::{WaitAction, WaitEnd};
use crate::error::Error;
use crate::hold::hold::Hold;
use crate::hold::named_acquires::NamedAcquire;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::park;
use crate::model::wait::WaitSpec;
use crate::model::wait_graph::Need;
use crate::model::wait_mode::{WaitMode, WakeHint};
use crate::store::retry::{RetryLimit, RetryPolicy};
use crate::waits::registry::Recipient;

/// The time after which a thread looks again for an expected reply, as perhaps no thread is reading
/// from the connection of the reply.
const REPLY_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A request to the server that is granted or refused. A wait repeats the parameters.
pub(crate) trait Try {
    /// The result of a grant.
    type Grant;

    /// Sends the request `now`, until there is an answer or `policy` ends the call.
    fn ask(
        &mut self,
        policy: &RetryPolicy<'_>,
        now: Instant,
    ) -> Result<TryAnswer<Self::Grant>, Error>;

    /// Makes the grant from a hold that another thread of this client gave to this thread, without
    /// the server. Only a [`Recipient`] is given holds, so the default is an error.
    fn take_over(&mut self, _hold: &Arc<Hold>) -> Result<Self::Grant, Error> {
        Err(Error::Shutdown)
    }
}

/// The server's answer to a [`Try`].
#[derive(Debug)]
pub(crate) enum TryAnswer<G> {
    /// Granted. The hint says what the grant means for the other waiters of the channel.
    Granted(G, WakeHint),
    /// Refused, for this long unless something changes; `None` if the time is unknown. The hint
    /// says what the refusal means for the other waiters.
    Busy(Option<Duration>, WakeHint),
}

/// How a wait ended.
#[derive(Debug)]
pub(crate) struct Waited<G> {
    /// `None`: the time was over.
    pub(crate) granted: Option<G>,
    /// Whether a try was refused.
    pub(crate) was_refused: bool,
}

/// The parameters of a wait: its lock, its mode and its limits. The parameters never change during
/// the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitParameters<'a> {
    pub(crate) name: &'a LockName,
    /// The channel whose messages wake the waiters of the name.
    pub(crate) channel: &'a Arc<str>,
    pub(crate) mode: WaitMode,
    pub(crate) wait: WaitSpec<'a>,
    pub(crate) retries: RetryLimit,
    /// Set if the waiter may be given a hold of another thread.
    pub(crate) recipient: Option<Recipient<'a>>,
    /// Set if a named owner waits. The owner's other threads may be granted the lock.
    pub(crate) named: Option<&'a NamedAcquire<'a>>,
    /// The owners whose release is needed for a grant. `None`: no owner, as for a changed status.
    pub(crate) need: Option<Need>,
}

impl<'a> WaitParameters<'a> {
    /// Makes the parameters of a wait without hand-overs, without a named owner, and without a part
    /// in deadlocks. The caller changes fields as needed.
    pub(crate) fn new(
        name: &'a LockName,
        channel: &'a Arc<str>,
        mode: WaitMode,
        wait: WaitSpec<'a>,
    ) -> Self {
        let retries = RetryLimit::UntilAnswered;
        Self { name, channel, mode, wait, retries, recipient: None, named: None, need: None }
    }
}

/// Calls `server_try` whenever the queue of the channel says so, until a grant or the end of the
/// wait. For a wait of one try, calls `server_try` at once, outside of the queue. An error of a try
/// ends the wait too.
pub(crate) fn wait_for<T: Try>(
    core: &ClientCore,
    parameters: WaitParameters<'_>,
    server_try: &mut T,
) -> Result<Waited<T::Grant>, Error> {
    let mark = core.watchdog.releases.ledger().mark();
    if !parameters.wait.waits {
        let waited = try_once(core, parameters, mark, server_try);
        return waited.map_err(|error| core.or_shut_down(error));
    }
    let mut was_refused = false;
    let mut waiter = core.waits.join(&core.store, parameters);
    loop {
        let end = match waiter.next_action() {
            WaitAction::AskServer => {
                let now = core.now();
                match server_try.ask(&core.policy_at(now, parameters.wait, parameters.retries), now)
                {
                    Ok(TryAnswer::Granted(granted, hint)) => {
                        waiter.granted(hint);
                        return Ok(Waited { granted: Some(granted), was_refused });
                    }
                    Ok(TryAnswer::Busy(busy, hint)) => {
                        was_refused = true;
                        waiter.refused(busy, hint);
                        continue;
                    }
                    Err(error) => waiter.failed(error),
                }
            }
            WaitAction::LookForDeadlocks => {
                core.waits.subscribe_to_revocations(&core.store);
                look_for_deadlocks(core, parameters.wait, &|| waiter.has_work());
                continue;
            }
            WaitAction::HandedOver(hold) => {
                let granted = Some(server_try.take_over(&hold)?);
                return Ok(Waited { granted, was_refused });
            }
            WaitAction::End(end) => end,
        };
        return match end {
            WaitEnd::TimedOut => not_granted(core, parameters, mark),
            WaitEnd::Unanswered(failure) => Err(unanswered(core, failure)),
            WaitEnd::Cancelled => Err(Error::Cancelled { name: parameters.name.shown() }),
            WaitEnd::Closed => Err(Error::Shutdown),
            WaitEnd::Failed(error) => Err(error),
        };
    }
}

/// Tries once. Tries once more if a refusal may have met a hold that a release of this client,
/// begun before `mark`, was about to end: such a refusal says nothing. A second try is enough: a
/// hold whose release began later was held when the first try was sent.
fn try_once<T: Try>(
    core: &ClientCore,
    parameters: WaitParameters<'_>,
    mark: ReleaseNo,
    server_try: &mut T,
) -> Result<Waited<T::Grant>, Error> {
    let now = core.now();
    let policy = core.policy_at(now, parameters.wait, parameters.retries);
    let mut answered = server_try.ask(&policy, now)?;
    let was_refused = matches!(answered, TryAnswer::Busy(..));
    if was_refused && wait_for_own_releases(core, parameters.name, mark, &policy) {
        let now = core.now();
        answered = server_try.ask(&policy.of_last_try(now), now)?;
    }
    match answered {
        TryAnswer::Granted(granted, _) => Ok(Waited { granted: Some(granted), was_refused }),
        TryAnswer::Busy(..) => not_granted(core, parameters, mark),
    }
}

/// Waits until the releases of `name` begun before `mark` are settled, within the time of the call.
/// Returns `true` if there was such a release, and all are settled. For single tries only: a
/// release wakes a waiter, and a second try would double the load of a contended lock.
pub(crate) fn wait_for_own_releases(
    core: &ClientCore,
    name: &LockName,
    mark: ReleaseNo,
    policy: &RetryPolicy<'_>,
) -> bool {
    let releases = &core.watchdog.releases;
    let is_outstanding = || releases.is_outstanding(name, mark);
    if !is_outstanding() {
        return releases.ledger().was_settled(name, mark);
    }
    let mut is_over = false;
    while !is_over && is_outstanding() {
        policy.shutdown.while_pausing(|parker| {
            core.watchdog.while_outstanding(parker, || {
                let now = core.now();
                is_over = now >= policy.deadline || policy.is_ended();
                if !is_over && is_outstanding() {
                    let next = policy.deadline.min(now + REPLY_POLL_INTERVAL);
                    park(&*core.clock, parker, Some(next), policy.cancel);
                }
            });
        });
    }
    !is_over
}

/// Returns the end of a refused wait that began at `mark`: no grant, or an error if a release of
/// this client explains the refusals. Then the lock may be free, and a caller with `None` would
/// skip work that no thread does.
fn not_granted<G>(
    core: &ClientCore,
    parameters: WaitParameters<'_>,
    mark: ReleaseNo,
) -> Result<Waited<G>, Error> {
    // A watcher of a lock is never refused.
    if parameters.mode == WaitMode::Watching
        || !core.watchdog.releases.explain_refusal(parameters.name, mark)
    {
        return Ok(Waited { granted: None, was_refused: true });
    }
    Err(unacknowledged_release())
}

/// Makes the error of an acquire whose refusal a release of this client explains.
pub(crate) fn unacknowledged_release() -> Error {
    let reason = "this client has released it, and the server has not acknowledged that yet";
    Error::OutcomeUnknown { operation: "release", reason: reason.into() }
}

/// Returns the error of a waiter without a try: waiters were ahead in the queue, and the server has
/// answered none of their tries since the wait began. `failure` is the last error of these waiters.
pub(crate) fn unanswered(core: &ClientCore, failure: Option<Error>) -> Error {
    let reason = match failure {
        Some(Error::OutcomeUnknown { reason, .. }) => reason,
        Some(error) if error.is_server_unavailable() || error.applies_to_all_threads() => {
            return error;
        }
        _ => {
            let reason = "it answered none of the waiting threads during the wait";
            io::Error::new(io::ErrorKind::TimedOut, reason).into()
        }
    };
    Error::Unreachable { server: core.server(), reason }
}
