//! The acquire of many plain locks of a client in a single request.

use std::sync::Arc;

use crate::core::acquire::{AcquireParameters, LockTry};
use crate::core::client_core::ClientCore;
use crate::core::raw_guard::RawGuard;
use crate::core::spec::LockSpec;
use crate::error::Error;
use crate::events::acquires::AcquireEnd;
use crate::model::owner::LocalHolder;
use crate::model::wait::WaitSpec;
use crate::ops::acquire_many::{AcquireMany, Busy};
use crate::store::retry::{Answer, CallError, RetryLimit};

/// The outcome of a request for many locks, by their positions in the request.
pub(crate) enum ManyAcquired {
    /// The guards of the free locks, and the positions of the busy locks. With `all_or_none`,
    /// either all guards or a busy position.
    Answered { guards: Vec<(usize, RawGuard)>, busy: Vec<usize> },
    /// The names are in several hash slots, or their slot is being moved, and nothing ran. A server
    /// takes the names of one hash slot in a request, and a single name during a move.
    SeveralHashSlots,
}

/// Acquires plain locks with the same lease, none of which `holder` has, in a single request. With
/// `all_or_none`, the server grants all locks or none. The caller counts busy locks, as the caller
/// may try the busy locks again.
pub(crate) fn acquire_many(
    core: &Arc<ClientCore>,
    locks: &[&LockSpec],
    holder: &LocalHolder,
    wait: WaitSpec<'_>,
    all_or_none: bool,
) -> Result<ManyAcquired, Error> {
    // 1. A try for each lock, as for an acquire of this lock alone.
    let requests = locks.iter().map(|spec| AcquireParameters::new(core, spec, holder, wait, None));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let tries = requests.iter().map(|request| LockTry::new(request, None));
    let mut tries = tries.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = requests.first() else {
        return Ok(ManyAcquired::Answered { guards: Vec::new(), busy: Vec::new() });
    };
    first.check_watchdog()?;
    // 2. The call. Each try notes the call's possible traces on the server.
    let holds = tries.iter().map(LockTry::hold).collect();
    let operation = AcquireMany { holds, lease: first.lease().lease, all_or_none };
    let now = core.now();
    let policy = core.policy_at(now, wait, RetryLimit::UntilAnswered);
    let result = core.call_with_policy_at(now, &operation, &policy);
    for lock_try in &mut tries {
        lock_try.note_result(&policy, &result);
    }
    let Answer { reply: Busy(busy), sent_at, .. } = match result {
        Ok(answer) => answer,
        Err(CallError { failure, .. }) if failure.separates_names() && locks.len() > 1 => {
            return Ok(ManyAcquired::SeveralHashSlots);
        }
        Err(CallError { failure, .. }) => {
            let error = failure.into_error(&operation, first.name());
            first.count_end(AcquireEnd::without_grant(Some(&error)));
            return Err(core.or_shut_down(error));
        }
    };
    // 3. The busy locks.
    let busy: Vec<usize> = busy.into_iter().map(|(position, _)| position).collect();
    if all_or_none && !busy.is_empty() {
        return Ok(ManyAcquired::Answered { guards: Vec::new(), busy });
    }
    // 4. The holds of the free locks. First each try is marked, so that an error or a panic in
    //    between leaves no hold behind.
    let is_busy = |position: &usize| busy.binary_search(position).is_ok();
    let mut granted: Vec<_> =
        tries.iter_mut().enumerate().filter(|(position, _)| !is_busy(position)).collect();
    for (_, lock_try) in &mut granted {
        lock_try.expect_roll_back();
    }
    let guards: Result<Vec<_>, Error> = granted
        .into_iter()
        .map(|(position, lock_try)| Ok((position, lock_try.granted(sent_at, None)?)))
        .collect();
    guards.map(|guards| ManyAcquired::Answered { guards, busy })
}
