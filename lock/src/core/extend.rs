//! A longer lease for the caller's own holds, by the script for renewals.

use std::sync::Arc;
use std::time::Instant;

use crate::core::client_core::{ClientCore, lost};
use crate::error::{Error, LostReason};
use crate::hold::hold::Hold;
use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::{Renew, Renewal};
use crate::store::retry::{CallError, RetryLimit};

/// Extends `hold` to `lease` from now on, and waits for the reply. A later end of the hold stays.
/// If one more guard `is_watched` from now on, the watchdog renews the hold with `lease`.
///
/// Returns [`Error::Lost`] if the hold is lost, and [`Error::WatchdogGone`] if no thread would
/// renew a watched guard. If the call fails, returns the error of the call.
pub(crate) fn extend(
    core: &ClientCore,
    hold: &Arc<Hold>,
    lease: Lease,
    is_watched: bool,
    retries: RetryLimit,
) -> Result<(), Error> {
    core.check(hold)?;
    if is_watched && core.watchdog.is_dead(&hold.name) {
        return Err(Error::WatchdogGone);
    }
    // 1. Whatever the reply, the server may retain the key for `lease`.
    hold.note_sent_lease(lease);
    let owners = [hold.owner.clone()];
    let Prolonged { sent_at, losses } =
        prolong(core, &hold.name, hold.kind.layout(), &owners, lease, retries)?;
    // 2. A lost hold stays lost: the server does not have the hold, or the reply came too late.
    let in_time = || hold.extend(core.now(), lease, sent_at);
    let reason = losses.first().copied().flatten();
    if let Some(reason) = reason.or_else(|| (!in_time()).then(|| hold.reason_of_end())) {
        core.watchdog.lose(hold, reason);
        return Err(lost(hold, reason));
    }
    // 3. The hold goes to its new place on the wheel.
    if is_watched {
        hold.watch_guard(lease);
    }
    core.watchdog.watch(hold, sent_at);
    core.check(hold)
}

/// A server's answer to an extension.
pub(crate) struct Prolonged {
    /// When the request was sent: the lease counts from here.
    pub(crate) sent_at: Instant,
    /// How each hold was lost, in the order of the owners.
    pub(crate) losses: Vec<Option<LostReason>>,
}

/// Sends one renewal of the holds of `owners` for `lease` from now on, and waits for the reply.
/// Changes no hold of this process.
pub(crate) fn prolong(
    core: &ClientCore,
    name: &LockName,
    layout: Layout,
    owners: &[Owner],
    lease: Lease,
    retries: RetryLimit,
) -> Result<Prolonged, Error> {
    let renewal = |owner: &Owner| Renewal { name: name.clone(), owner: owner.clone(), lease };
    let renew = Renew::new(layout, owners.iter().map(renewal).collect());
    let timeout = core.settings.retry_timeout();
    match core.call_within(&renew, timeout, retries) {
        Ok(answer) => {
            let losses = answer.reply.answers.iter().map(|found| found.loss()).collect();
            Ok(Prolonged { sent_at: answer.sent_at, losses })
        }
        Err(CallError { failure, .. }) => Err(core.or_shut_down(failure.into_error(&renew, name))),
    }
}
