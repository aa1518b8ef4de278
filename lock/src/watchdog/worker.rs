//! State of one server's renewal thread: its due renewals, its flags and its parker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hold::hold::Hold;
use crate::model::release_no::ReleaseNo;
use crate::model::sync::{Mutex, Parker};
use crate::store::ServerId;
use crate::watchdog::renewal_batch::DueRenewal;

/// The state which one renewal thread shares with other threads.
#[derive(Debug)]
pub(crate) struct RenewalWorker {
    pub(crate) server: ServerId,
    /// The renewals for the next pass.
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

    /// Moves the renewals out of `due` into the next pass, and wakes the thread. If the thread is
    /// dead, leaves the renewals in `due`.
    pub(crate) fn renew(&self, due: &mut Vec<DueRenewal>) {
        if !self.is_dead() {
            self.due.lock().append(due);
            self.parker.unpark();
        }
    }

    /// Takes all renewals that have become due since the last call.
    pub(crate) fn take_due(&self) -> Vec<DueRenewal> {
        std::mem::take(&mut *self.due.lock())
    }

    /// Leaves a hold without a guard to the thread, which ends the hold and sends `release`.
    /// Returns `false`, without effect, if the thread is dead.
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

    /// Takes the holds without a guard, each with its release.
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

    /// Returns whether a read of unread replies was requested since the last
    /// [`begin_read`](Self::begin_read).
    pub(crate) fn has_to_read(&self) -> bool {
        self.reads_soon.load(Ordering::Acquire)
    }

    /// Clears the request before the thread reads: a release sent from now on wakes the thread
    /// again.
    pub(crate) fn begin_read(&self) {
        self.reads_soon.store(false, Ordering::Release);
    }

    /// Renews the request after a read, because some reply is still unread. Wakes no thread.
    pub(crate) fn read_again(&self) {
        self.reads_soon.store(true, Ordering::Release);
    }

    /// Returns whether a dropped guard has waited for the server in vain, and the server has
    /// answered no queued release since.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Records whether a dropped guard has waited for the server in vain, and no queued release was
    /// answered since.
    pub(crate) fn set_silent(&self, silent: bool) {
        // Relaxed: a hint about time, on which no other memory depends.
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Returns whether the thread has no renewal to send and no hold to end.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.lock().is_empty() && self.unguarded.lock().is_empty()
    }

    /// Returns whether the thread has ended although the client has not.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Marks the thread as ended although the client has not.
    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }
}
