//! A request to release a lock, as received by the guards of its hold.

use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::listener::HoldListener;
use crate::model::sync::Mutex;

/// A request to release a lock, sent by [`Lock::ask`](crate::Lock::ask), and received from
/// [`LockGuard::revocation`](crate::LockGuard::revocation) or a
/// [`RevocationFuture`](crate::RevocationFuture).
///
/// The name is from Apache Curator's revocable locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The reason that the requesting program has given to [`Lock::ask`](crate::Lock::ask). May be
    /// empty.
    pub reason: String,
}

/// A request for a guard's hold: as a flag, as a channel, and for tasks.
#[derive(Debug)]
pub(crate) struct RevocationSignal {
    asked: OnceLock<Revocation>,
    /// `None` after a request, or after the end of the guard.
    sender: Mutex<Option<Sender<Revocation>>>,
    receiver: Receiver<Revocation>,
    awaited: OnceLock<Arc<AwaitedEnd>>,
}

impl RevocationSignal {
    /// Makes a signal without a request.
    pub(crate) fn new() -> Arc<Self> {
        let (sender, receiver) = bounded(1);
        let sender = Mutex::new(Some(sender));
        Arc::new(Self { asked: OnceLock::new(), sender, receiver, awaited: OnceLock::new() })
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.get().is_some()
    }

    pub(crate) fn asked(&self) -> Option<&Revocation> {
        self.asked.get()
    }

    /// Returns the end awaited by tasks, which `wakers` wakes, made at the first call. Returns an
    /// error if the thread for wakers cannot be started.
    pub(crate) fn awaited_end(&self, wakers: &WakerThread) -> Result<&Arc<AwaitedEnd>, Error> {
        if let Some(end) = self.awaited.get() {
            return Ok(end);
        }
        let end = wakers.awaited_end()?;
        let end = self.awaited.get_or_init(|| end);
        // A concurrent request or the end of the guard has found no end to resolve.
        if self.sender.lock().is_none() {
            end.resolve(None);
        }
        Ok(end)
    }

    /// Ends the channel and the wait of tasks, as the guard is gone.
    pub(crate) fn close(&self) {
        drop(self.sender.lock().take());
        self.end_wait();
    }

    /// Wakes the tasks that wait for a request.
    fn end_wait(&self) {
        if let Some(end) = self.awaited.get() {
            end.resolve(None);
        }
    }
}

impl HoldListener for RevocationSignal {
    fn on_lost(&self, _reason: LostReason) {}

    fn on_revocation(&self, revocation: &Revocation) {
        let sender = self.sender.lock().take();
        if let Some(sender) = sender
            && self.asked.set(revocation.clone()).is_ok()
        {
            // The channel has room and a receiver.
            drop(sender.try_send(revocation.clone()));
            self.end_wait();
        }
    }
}

/// Returns the channel of a guard's requests. In the child of a fork, without a signal, each call
/// makes a closed channel and leaks the channel, as for the loss.
pub(crate) fn channel_of(signal: Option<&Arc<RevocationSignal>>) -> &Receiver<Revocation> {
    match signal {
        Some(signal) => &signal.receiver,
        None => Box::leak(Box::new(bounded(0).1)),
    }
}
