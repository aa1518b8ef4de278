//! What a guard returns in a forked child of the process that holds the lock (DESIGN: forks). None
//! of it is read from the parent's memory, which another thread may have been changing at the fork.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Receiver, bounded};

use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::listener::{LossListener, LossSender, TaskWaker};
use crate::model::fork::{HomeProcess, PerProcess};
use crate::model::owner::Owner;
use crate::model::sync::Mutex;

/// The number of a guard, by which a child finds its values. Zero until a child asks.
#[derive(Debug, Default)]
pub(crate) struct Inherited(AtomicU64);

/// What one guard returns in a child.
struct Values {
    lost: Receiver<LostReason>,
    owner: OnceLock<String>,
}

/// The values of each guard by its number. Guards return references, so these live as long as the
/// process: one for each guard that it has inherited and asks.
type ValuesByGuard = Arc<Mutex<HashMap<u64, &'static Values>>>;

static VALUES: PerProcess<ValuesByGuard> = PerProcess::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Inherited {
    /// A channel that contains the message that this process is a fork.
    pub(crate) fn lost(&self) -> &'static Receiver<LostReason> {
        &self.values().lost
    }

    /// The text of the guard's owner.
    pub(crate) fn owner(&self, owner: &Owner) -> &'static str {
        self.values().owner.get_or_init(|| owner.to_string())
    }

    fn values(&self) -> &'static Values {
        let values = VALUES.get_or_make(ValuesByGuard::default);
        let mut values = values.lock();
        values.entry(self.number()).or_insert_with(|| {
            let (sender, lost) = bounded(1);
            let _fits = sender.try_send(LostReason::Forked);
            Box::leak(Box::new(Values { lost, owner: OnceLock::new() }))
        })
    }

    fn number(&self) -> u64 {
        // Relaxed: the numbers only have to differ.
        let number = self.0.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        match self.0.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            Err(other) => other,
        }
    }
}

/// The loss of a guard of several holds, as a channel and as what tasks await. Each is created when
/// it is first asked for. Dropped after the guard's release, it ends what tasks await.
#[derive(Debug)]
pub(crate) struct LossSignal {
    home: HomeProcess,
    receiver: OnceLock<Receiver<LostReason>>,
    awaited: OnceLock<Arc<AwaitedEnd>>,
    inherited: Inherited,
}

impl LossSignal {
    pub(crate) fn new() -> Self {
        let (home, inherited) = (HomeProcess::new(), Inherited::default());
        Self { home, receiver: OnceLock::new(), awaited: OnceLock::new(), inherited }
    }

    /// The channel. `listen` has the holds notify its listener.
    pub(crate) fn channel(
        &self,
        listen: impl FnOnce(Arc<dyn LossListener>),
    ) -> &Receiver<LostReason> {
        if !self.home.is_current() {
            return self.inherited.lost();
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
