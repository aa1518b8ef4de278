//! What belongs to one server: the renewals that are due there, the releases that it is owed, and what the thread that
//! sends both sleeps on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashed_wheel::Parker;
use parking_lot::{Mutex, MutexGuard};

use super::releases::{Debt, GivesBack, Releases};
use crate::hold::Hold;
use crate::statistics::Level;
use crate::store::Lane;
use crate::value::ServerTime;

/// A hold that is to be renewed.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) hold: Arc<Hold>,
    /// When that was due.
    pub(super) at: Instant,
    /// When it ends if it is not.
    pub(super) end: Instant,
}

/// What one renewal thread and everybody else share.
#[derive(Debug)]
pub(super) struct Renewer {
    pub(super) lane: Lane,
    due: Mutex<Vec<Due>>,
    releases: Mutex<Releases>,
    /// How many releases are owed, for whoever looks from outside.
    owed: Level,
    pub(super) parker: Parker,
    /// Its thread has ended before it was told to.
    gone: AtomicBool,
}

impl Renewer {
    pub(super) fn new(lane: Lane) -> Self {
        Self {
            lane,
            due: Mutex::new(Vec::new()),
            releases: Mutex::new(Releases::default()),
            owed: Level::new("wheellock_owed_releases"),
            parker: Parker::new(),
            gone: AtomicBool::new(false),
        }
    }

    /// Puts what is due with the rest, unless nobody is there to renew it.
    pub(super) fn take_on(&self, due: &mut Vec<Due>) {
        if !self.is_gone() {
            self.due.lock().append(due);
            self.parker.unpark();
        }
    }

    pub(super) fn take_due(&self) -> Vec<Due> {
        std::mem::take(&mut *self.due.lock())
    }

    /// Owes its server a release. False if too many are owed.
    pub(super) fn owe(
        &self,
        now: Instant,
        debt: Debt,
        release: GivesBack,
        lasts: Duration,
        doubt: Option<ServerTime>,
    ) -> bool {
        let owed = self.with_releases(|book| book.owe(now, debt, release, lasts, doubt));
        self.parker.unpark();
        owed
    }

    /// The book, to look at.
    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock()
    }

    /// Changes what is owed.
    pub(super) fn with_releases<R>(&self, change: impl FnOnce(&mut Releases) -> R) -> R {
        let mut book = self.releases.lock();
        let result = change(&mut book);
        self.owed.set(book.len());
        result
    }

    /// Whether there is nothing to renew, and nothing is owed.
    pub(super) fn is_idle(&self) -> bool {
        self.due.lock().is_empty() && self.releases.lock().len() == 0
    }

    /// Whether nobody renews here any more, although the client has not ended.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The thread ends before it was told to.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }
}
