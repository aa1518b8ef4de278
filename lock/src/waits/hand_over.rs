//! A releasing thread gives its hold to the first waiter of its client, if possible. Otherwise the
//! waiters are notified of the release.
//!
//! So one hold of the server has several holders in turn, a cohort. A hand-over takes the lock of
//! the queues three times and wakes one thread; a release and an acquire are two round trips and a
//! message. The cohort has a budget of time, which bounds the wait of other clients. On a manual
//! clock time stands still: then the budget is a number of hand-overs, and no waiter yields.
//!
//! The lock of the queues protects the decision: who is first, and whether the first waits. A
//! waiter leaves under the same lock, so either it has left, or it finds the given hold, which a
//! renewal thread then releases. The next holder reads the clock itself, as the process may have
//! been stopped since.
//!
//! A thread which finds the lock held by its own client sends nothing. The check is under the lock
//! of the queues, and a holder whose last guard is gone searches for waiters afterwards, so either
//! thread sees the other.
//!
//! Not handed over: holds of named owners and of several locks, which may belong to several
//! threads; fenced locks, as each holder needs a token and so a round trip; and locks with a lease
//! of their own.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::hold::hold::Hold;
use crate::hold::listener::EndListener;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::settings::HandOver;
use crate::store::Store;
use crate::waits::registry::{WaitRegistry, remove_unused};

impl WaitRegistry {
    /// Gives `hold` to the first waiter of its channel `now`, in place of the last guard of the
    /// calling thread, and wakes the waiter. Returns `false` if impossible: then the caller
    /// releases the hold on the server.
    pub(crate) fn give_to_first_waiter(&self, hold: &Arc<Hold>, now: Instant) -> bool {
        let held_for = now.saturating_duration_since(hold.granted_at());
        let limit = match self.settings.hand_over {
            _ if hold.kind != Kind::Reentrant || hold.has_named_holder => return false,
            HandOver::Times(times) => Some(times),
            HandOver::Within(budget) if held_for < budget => None,
            HandOver::Within(_) | HandOver::Off => return false,
        };
        let name = hold.name.channel();
        let mut channels = self.channels();
        let Some(channel) = channels.by_name.get_mut(&name) else { return false };
        let waiters = &mut channel.of(hold.name.has_braces()).exclusive;
        // 1. Only the first waiter, which sleeps, or visits the queue again before the sleep.
        let Some(ticket) = waiters.queue.next_recipient() else { return false };
        let Some(thread) = waiters.threads.get_mut(&ticket) else { return false };
        let Some((wanted, recipient)) = &thread.recipient else { return false };
        if *wanted != hold.name {
            return false;
        }
        // 2. The hold changes its holder in one step, unless it is over by then.
        let lease = self.settings.lease;
        let Some(listeners) = hold.change_holder(*recipient, lease, now, limit) else {
            return false;
        };
        thread.given = Some(Arc::clone(hold));
        let parker = thread.parker.clone();
        waiters.queue.give(ticket, now);
        drop(channels);
        // 3. With nothing locked: the waiter visits the queue at once.
        parker.unpark();
        drop(listeners);
        self.hand_overs.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Notifies the queue that the calling thread is about to release the hold, whose last guard is
    /// gone, on the server: no waiter tries before the answer. Returns whether threads of this
    /// client wait for the lock: then [`release_ends`] follows.
    ///
    /// [`release_ends`]: Self::release_ends
    pub(crate) fn release_begins(&self, store: &Store, hold: &Hold) -> bool {
        if hold.kind != Kind::Reentrant || self.settings.hand_over == HandOver::Off {
            return false;
        }
        // A thread that arrives later does not find the hold any more, and tries at the server.
        let mut channels = self.channels();
        if channels.by_name.is_empty() {
            return false;
        }
        let name = hold.name.channel();
        let Entry::Occupied(mut entry) = channels.by_name.entry(Arc::clone(&name)) else {
            return false;
        };
        let queues = entry.get_mut().of(hold.name.has_braces());
        if queues.exclusive.queue.is_empty() {
            remove_unused(entry, store);
            return false;
        }
        drop(channels);
        let now = self.clock.now();
        if let Some(channel) = self.channels().by_name.get_mut(&name) {
            let is_live = channel.live;
            let queues = channel.of(hold.name.has_braces());
            queues.exclusive.queue.release_begins(now, is_live);
        }
        true
    }

    /// Notifies the queue that the server has released the hold and published the release to this
    /// number of `receivers`, or that no thread waits for the answer any more. Wakes the first
    /// waiter, which tries after the waiters of other clients.
    pub(crate) fn release_ends(&self, store: &Store, hold: &Hold, receivers: Option<u32>) {
        let name = hold.name.channel();
        let now = self.clock.now();
        let first = {
            let mut channels = self.channels();
            let Some(channel) = channels.by_name.get_mut(&name) else { return };
            let waiters = &mut channel.of(hold.name.has_braces()).exclusive;
            let yields = match self.settings.hand_over {
                HandOver::Within(_) => waiters.queue.release_ends(now, receivers),
                HandOver::Times(_) | HandOver::Off => {
                    waiters.queue.hold_ended();
                    false
                }
            };
            waiters.unpark(waiters.queue.first_asleep());
            // Yielding waiters have to receive the messages of other clients' releases.
            let waits = yields && !waiters.queue.is_empty();
            let first = waits && !std::mem::replace(&mut waiters.subscribed, true);
            if first {
                store.subscribe(&name);
            }
            first
        };
        if first {
            store.flush();
        }
    }
}

/// Lets the first waiter of a lock try when a hold of this client is over. Perhaps no message
/// reaches the waiter: a waiter that knew the holder has not subscribed.
#[derive(Debug)]
pub(crate) struct QueueWaker {
    pub(crate) waits: Arc<WaitRegistry>,
    pub(crate) store: Arc<Store>,
}

impl EndListener for QueueWaker {
    fn hold_ended(&self, name: &LockName) {
        let mut channels = self.waits.channels();
        let Entry::Occupied(mut entry) = channels.by_name.entry(name.channel()) else { return };
        let waiters = &mut entry.get_mut().of(name.has_braces()).exclusive;
        waiters.queue.hold_ended();
        waiters.unpark(waiters.queue.first_asleep());
        remove_unused(entry, &self.store);
    }
}
