//! What belongs to one server: the renewals that are due there, and what the thread that sends them
//! and the queued releases sleeps on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hold::hold::Hold;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, Parker};
use crate::store::ServerId;
use crate::watchdog::batch::Due;

/// What one renewal thread shares with the other threads.
#[derive(Debug)]
pub(crate) struct RenewalWorker {
    pub(crate) server: ServerId,
    due: Mutex<Vec<Due>>,
    /// Holds without a guard, to be ended and released.
    unguarded: Mutex<Vec<(Arc<Hold>, ReleaseNo)>>,
    pub(crate) parker: Parker,
    /// Whether its thread is to read soon what dropped guards have left unread.
    reads_soon: AtomicBool,
    /// Whether a dropped guard has waited for the server in vain, and no release was answered since.
    silent: AtomicBool,
    /// Its thread has ended although nothing told it to.
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

    /// Takes what is due from `due`, unless its thread is dead.
    pub(crate) fn renew(&self, due: &mut Vec<Due>) {
        if !self.is_dead() {
            self.due.lock().append(due);
            self.parker.unpark();
        }
    }

    pub(crate) fn take_due(&self) -> Vec<Due> {
        std::mem::take(&mut *self.due.lock())
    }

    /// Leaves a hold without a guard to its thread, which ends and releases it by `release`. False
    /// if the thread is dead.
    pub(crate) fn end_in_background(&self, hold: &Arc<Hold>, release: ReleaseNo) -> bool {
        let mut unguarded = self.unguarded.lock();
        // With the list locked: a dying thread sets `dead` before it takes the list for the last time.
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

    /// A release was sent whose reply nobody waits for. Only the first one since its thread has
    /// read wakes it.
    pub(crate) fn read_soon(&self) {
        if !self.reads_soon.swap(true, Ordering::AcqRel) {
            self.parker.unpark();
        }
    }

    pub(crate) fn has_to_read(&self) -> bool {
        self.reads_soon.load(Ordering::Acquire)
    }

    /// Before its thread reads: what is sent from now on wakes it again.
    pub(crate) fn begin_read(&self) {
        self.reads_soon.store(false, Ordering::Release);
    }

    /// Something is left unread, and its thread knows.
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

    /// Whether nothing is to be renewed or ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.lock().is_empty() && self.unguarded.lock().is_empty()
    }

    /// Whether its thread has ended although the client has not.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }
}
