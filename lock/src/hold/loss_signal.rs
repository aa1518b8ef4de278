//! The loss of a guard of several holds, as a channel and as what tasks await.

use std::mem;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::Receiver;

use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::listener::{LossListener, LossSender, TaskWaker, forked_channel};
use crate::model::fork::HomeProcess;

/// A channel and what tasks await, each created when it is first asked for. Dropped after the
/// guard's release, it ends what tasks await.
#[derive(Debug)]
pub(crate) struct LossSignal {
    home: HomeProcess,
    receiver: OnceLock<Receiver<LostReason>>,
    awaited: OnceLock<Arc<AwaitedEnd>>,
}

impl LossSignal {
    pub(crate) fn new() -> Self {
        Self { home: HomeProcess::new(), receiver: OnceLock::new(), awaited: OnceLock::new() }
    }

    /// The channel. `listen` has the holds notify its listener.
    pub(crate) fn channel(
        &self,
        listen: impl FnOnce(Arc<dyn LossListener>),
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

    /// What tasks await, which `wakers` wakes; `None` in the child of a fork. An error if their
    /// thread cannot be started.
    pub(crate) fn awaited_end(
        &self,
        wakers: &WakerThread,
        listen: impl FnOnce(Arc<dyn LossListener>),
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
}

impl Drop for LossSignal {
    fn drop(&mut self) {
        if !self.home.is_current() {
            mem::forget((mem::take(&mut self.receiver), mem::take(&mut self.awaited)));
        } else if let Some(end) = self.awaited.get() {
            end.come(None);
        }
    }
}
