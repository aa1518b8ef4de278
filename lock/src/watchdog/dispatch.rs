//! Hands due renewals to the renewal threads of the holds' servers.

use crate::store::ServerId;
use crate::watchdog::renewal_batch::DueRenewal;
use crate::watchdog::watchdog::Watchdog;
use crate::watchdog::worker::RenewalWorker;

/// Hands due renewals to the renewal threads of the servers that have the holds now. If the thread
/// of a server is dead, the watched holds there are lost. If the thread cannot be started, the
/// renewals are scheduled again.
pub(crate) fn dispatch(watchdog: &Watchdog, due: Vec<DueRenewal>) {
    let Watchdog { context, scheduler, workers, .. } = watchdog;
    for (server, mut due) in by_server(watchdog, due) {
        workers.with_worker(server, |worker| worker.renew(&mut due));
        if due.is_empty() {
            continue;
        }
        // No thread accepts these renewals.
        if workers.is_dead(server) {
            // An unwatched hold lasts as long as its lease.
            for due in due.iter().filter(|due| due.hold.watched_lease().is_some()) {
                context.catch_panic(|| watchdog.lose(&due.hold, due.hold.reason_of_end()));
            }
        } else {
            // No thread can be started now. The holds are on the wheel, at the end of their
            // validity at the latest.
            context.catch_panic(|| scheduler.retry_later(due.iter().map(|due| &due.hold)));
        }
    }
}

/// Returns the renewals for the server of `worker`. Dispatches the renewals whose holds have moved
/// to another server since the renewals became due.
pub(crate) fn retain_own(
    watchdog: &Watchdog,
    worker: &RenewalWorker,
    due: Vec<DueRenewal>,
) -> Vec<DueRenewal> {
    if watchdog.context.only_server().is_some() {
        return due;
    }
    let (own, moved): (Vec<_>, Vec<_>) = due
        .into_iter()
        .partition(|due| watchdog.context.server_of(&due.hold.name) == worker.server);
    if !moved.is_empty() {
        dispatch(watchdog, moved);
    }
    own
}

/// Groups renewals by the current servers of their holds.
fn by_server(watchdog: &Watchdog, due: Vec<DueRenewal>) -> Vec<(ServerId, Vec<DueRenewal>)> {
    if let Some(only) = watchdog.context.only_server() {
        return vec![(only, due)];
    }
    // There are few servers, so a linear search is quick.
    let mut servers: Vec<(ServerId, Vec<DueRenewal>)> = Vec::new();
    for due in due {
        let server = watchdog.context.server_of(&due.hold.name);
        match servers.iter_mut().find(|(other, _)| *other == server) {
            Some((_, all)) => all.push(due),
            None => servers.push((server, vec![due])),
        }
    }
    servers
}
