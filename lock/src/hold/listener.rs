//! Listeners for the loss of a hold, or for a request to release the hold.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::LostReason;
use crate::events::wakers::AwaitedEnd;
use crate::hold::revocation::Revocation;
use crate::model::name::LockName;
use crate::model::sync::Mutex;

/// Notified of the events of a hold, and dropped without a call when the hold is released.
///
/// Called without the lock of the hold, on any thread, also on a ticker or a renewal thread: a
/// listener does not wait, reads no clock, and drops nothing that might do either.
pub(crate) trait HoldListener: fmt::Debug + Send + Sync {
    /// Notifies the listener that a hold is lost. No call for the hold follows.
    fn on_lost(&self, reason: LostReason);

    /// Notifies the listener that a program has requested the release of the hold.
    fn on_revocation(&self, _revocation: &Revocation) {}
}

/// Notified of the end of a hold of this client without a release by a caller.
pub(crate) trait EndListener: fmt::Debug + Send + Sync {
    /// Notifies the listener that a hold of this name is over. Called with no lock held, on any
    /// thread, also on a ticker or a renewal thread: the listener does not wait, and reads no
    /// clock.
    fn hold_ended(&self, name: &LockName);
}

/// Sends the reason of the first loss into a channel. One sender may listen to several holds.
#[derive(Debug)]
pub(crate) struct LossSender(Mutex<Option<Sender<LostReason>>>);

impl LossSender {
    /// Makes a listener and its channel, which receives one reason, and closes afterwards or when
    /// the listener is dropped.
    pub(crate) fn new() -> (Arc<Self>, Receiver<LostReason>) {
        let (sender, receiver) = bounded(1);
        (Arc::new(Self(Mutex::new(Some(sender)))), receiver)
    }
}

impl HoldListener for LossSender {
    fn on_lost(&self, reason: LostReason) {
        if let Some(sender) = self.0.lock().take() {
            // The receiver may be gone.
            let _gone = sender.try_send(reason);
        }
    }
}

/// Makes the channel of a guard in the child of a fork, with its message. The guard's own channel
/// may have been copied while a thread was changing the channel, and so may any cell for another
/// channel. So each call makes a channel and leaks the channel: a guard returns a reference.
pub(crate) fn forked_channel() -> &'static Receiver<LostReason> {
    let (sender, receiver) = bounded(1);
    let _fits = sender.try_send(LostReason::Forked);
    Box::leak(Box::new(receiver))
}

/// Passes a loss to the waiting tasks.
#[derive(Debug)]
pub(crate) struct TaskWaker(pub(crate) Arc<AwaitedEnd>);

impl HoldListener for TaskWaker {
    fn on_lost(&self, reason: LostReason) {
        self.0.resolve(Some(reason));
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::TryRecvError;

    use super::*;

    #[test]
    fn only_the_first_loss_is_sent() {
        let (sender, receiver) = LossSender::new();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        sender.on_lost(LostReason::Expired);
        assert_eq!(receiver.try_recv(), Ok(LostReason::Expired));
        sender.on_lost(LostReason::TakenOver);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    }
}
