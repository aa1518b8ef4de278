//! The events of a guard of several holds: a loss, as a channel and for tasks, and a request to
//! release.

use std::mem;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::listener::{HoldListener, LossSender, TaskWaker, forked_channel};
use crate::hold::revocation::RevocationSignal;
use crate::model::fork::HomeProcess;

/// The signals of a guard of several holds, each created at its first use. Dropped after the
/// guard's release, which ends the wait of tasks.
#[derive(Debug)]
pub(crate) struct LossSignal {
    home: HomeProcess,
    receiver: OnceLock<Receiver<LostReason>>,
    awaited: OnceLock<Arc<AwaitedEnd>>,
    revocation: OnceLock<Arc<RevocationSignal>>,
}

impl LossSignal {
    /// Makes the signals of a guard. No signal is created yet.
    pub(crate) fn new() -> Self {
        Self {
            home: HomeProcess::new(),
            receiver: OnceLock::new(),
            awaited: OnceLock::new(),
            revocation: OnceLock::new(),
        }
    }

    /// Returns the channel of the first loss. The first call has `listen` add the listener to the
    /// holds.
    pub(crate) fn channel(
        &self,
        listen: impl FnOnce(Arc<dyn HoldListener>),
    ) -> &Receiver<LostReason> {
        if !self.home.is_current() {
            return forked_channel();
        }
        self.receiver.get_or_init(|| {
            let (sender, receiver) = LossSender::new();
            listen(sender);
            receiver
        })
    }

    /// Returns the end awaited by tasks, which `wakers` wakes; `None` in the child of a fork. The
    /// first call has `listen` add the listener to the holds. Returns an error if the thread for
    /// wakers cannot be started.
    pub(crate) fn awaited_end(
        &self,
        wakers: &WakerThread,
        listen: impl FnOnce(Arc<dyn HoldListener>),
    ) -> Result<Option<&Arc<AwaitedEnd>>, Error> {
        if !self.home.is_current() {
            return Ok(None);
        }
        if self.awaited.get().is_none() {
            let end = wakers.awaited_end()?;
            self.awaited.get_or_init(|| {
                listen(Arc::new(TaskWaker(Arc::clone(&end))));
                end
            });
        }
        Ok(self.awaited.get())
    }

    /// Returns the signal of a request; `None` in the child of a fork. The first call has `listen`
    /// add the listener to the holds.
    pub(crate) fn revocation(
        &self,
        listen: impl FnOnce(Arc<dyn HoldListener>),
    ) -> Option<&Arc<RevocationSignal>> {
        self.home.is_current().then(|| {
            self.revocation.get_or_init(|| {
                let signal = RevocationSignal::new();
                listen(Arc::clone(&signal) as _);
                signal
            })
        })
    }
}

impl Drop for LossSignal {
    fn drop(&mut self) {
        if !self.home.is_current() {
            let (receiver, awaited) = (mem::take(&mut self.receiver), mem::take(&mut self.awaited));
            mem::forget((receiver, awaited, mem::take(&mut self.revocation)));
            return;
        }
        if let Some(end) = self.awaited.get() {
            end.resolve(None);
        }
        if let Some(signal) = self.revocation.get() {
            signal.close();
        }
    }
}
