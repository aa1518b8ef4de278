//! State of one server's renewal thread: its due renewals, its flags and its parker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hold::hold::Hold;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, Parker};
use crate::store::ServerId;
use crate::watchdog::batch::DueRenewal;

/// The state which one renewal thread shares with other threads.
#[derive(Debug)]
pub(crate) struct RenewalWorker {
    pub(crate) server: ServerId,
    due: Mutex<Vec<DueRenewal>>,
    /// Holds without a guard, to be ended and released.
    unguarded: Mutex<Vec<(Arc<Hold>, ReleaseNo)>>,
    pub(crate) parker: Parker,
    /// Whether the thread must soon read the replies left unread by dropped guards.
    reads_soon: AtomicBool,
    /// Whether a dropped guard has waited for the server in vain, and no release was answered
    /// since.
    silent: AtomicBool,
    /// Whether the thread has ended unexpectedly.
    dead: AtomicBool,
}

impl RenewalWorker {
    pub(crate) fn new(server: ServerId) -> Self {
        Self {
            server,
            due: Mutex::new(Vec::new()),
            unguarded: Mutex::new(Vec::new()),
            parker: Parker::new(),
            reads_soon: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// Takes the renewals from `due` and wakes the thread. No effect if the thread is dead.
    pub(crate) fn renew(&self, due: &mut Vec<DueRenewal>) {
        if !self.is_dead() {
            self.due.lock().append(due);
            self.parker.unpark();
        }
    }

    pub(crate) fn take_due(&self) -> Vec<DueRenewal> {
        std::mem::take(&mut *self.due.lock())
    }

    /// Leaves a hold without a guard to the thread, which ends the hold and sends `release`.
    /// Returns false if the thread is dead.
    pub(crate) fn end_in_background(&self, hold: &Arc<Hold>, release: ReleaseNo) -> bool {
        let mut unguarded = self.unguarded.lock();
        // With the list locked: a dying thread sets `dead` before it takes the list for the last
        // time.
        if self.is_dead() {
            return false;
        }
        unguarded.push((Arc::clone(hold), release));
        drop(unguarded);
        self.parker.unpark();
        true
    }

    pub(crate) fn take_unguarded(&self) -> Vec<(Arc<Hold>, ReleaseNo)> {
        std::mem::take(&mut *self.unguarded.lock())
    }

    /// Requests a read of an unread reply to a release. Only the first request since the thread's
    /// last read wakes the thread.
    pub(crate) fn read_soon(&self) {
        if !self.reads_soon.swap(true, Ordering::AcqRel) {
            self.parker.unpark();
        }
    }

    pub(crate) fn has_to_read(&self) -> bool {
        self.reads_soon.load(Ordering::Acquire)
    }

    /// Called by the thread before a read: a release sent from now on wakes the thread again.
    pub(crate) fn begin_read(&self) {
        self.reads_soon.store(false, Ordering::Release);
    }

    /// Called by the thread, because some reply is still unread.
    pub(crate) fn read_again(&self) {
        self.reads_soon.store(true, Ordering::Release);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        // Relaxed: a hint about time. Nothing else is read by it.
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Whether no hold is to be renewed or ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.lock().is_empty() && self.unguarded.lock().is_empty()
    }

    /// Whether the thread has ended although the client has not.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }
}
