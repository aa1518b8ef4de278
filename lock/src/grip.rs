//! One guard's part in a hold: what guards of every kind do.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::call::Attempts;
use crate::error::{Error, LostReason};
use crate::hold::Hold;
use crate::leaving::Leaving;
use crate::process::Process;
use crate::told::Listener;

/// One of the guards of a hold. Dropping it lets go. Public only for a sealed trait: nobody outside can name it.
pub struct Grip {
    process: Arc<Process>,
    hold: Arc<Hold>,
    watched: bool,
    /// Whether it has let go already.
    done: bool,
    /// Boxed, as hardly any of a hundred thousand guards has it.
    asked: OnceLock<Box<Asked>>,
}

/// What was made of a guard when it was asked for.
#[derive(Default)]
struct Asked {
    told: OnceLock<Receiver<LostReason>>,
    owner: OnceLock<String>,
}

impl Grip {
    pub(crate) fn new(process: Arc<Process>, hold: Arc<Hold>, watched: bool) -> Self {
        Self { process, hold, watched, done: false, asked: OnceLock::new() }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.process.is_current() && self.hold.is_held(self.process.now())
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.process.is_current() {
            return Err(Error::Lost { name: self.name(), reason: LostReason::Forked });
        }
        self.process.check(&self.hold)
    }

    pub(crate) fn remaining(&self) -> Duration {
        if !self.process.is_current() {
            return Duration::ZERO;
        }
        self.hold.remaining(self.process.now())
    }

    pub(crate) fn lost(&self) -> &Receiver<LostReason> {
        self.asked().told.get_or_init(|| {
            if self.process.is_current() {
                return self.hold.listen();
            }
            // The parent's hold is not touched here: its locks may have been taken when the fork copied them.
            let (tell, told) = crossbeam_channel::bounded(1);
            let _fits = tell.try_send(LostReason::Forked);
            told
        })
    }

    /// Tells this one if the hold is lost.
    pub(crate) fn tell(&self, listener: Listener) {
        if self.process.is_current() {
            self.hold.listen_by(listener);
        } else {
            listener.tell(LostReason::Forked);
        }
    }

    pub(crate) fn name(&self) -> String {
        self.hold.name.shown()
    }

    pub(crate) fn owner(&self) -> &str {
        self.asked().owner.get_or_init(|| self.hold.owner.to_string())
    }

    /// The fencing token of the hold; `None` unless it was taken as a fenced lock.
    pub(crate) fn token(&self) -> Option<u64> {
        // A child of a fork must not touch the parent's locks.
        if self.process.is_current() { self.hold.token() } else { None }
    }

    /// Lets go, for as long as a caller who waits for nothing else has patience.
    pub(crate) fn let_go(mut self) -> Result<(), Error> {
        self.done = true;
        let patience = self.process.settings.patience();
        self.leave(patience, Attempts::UntilAnswered)
    }

    /// Lets go in one attempt, as dropping it does, and says how it went.
    pub(crate) fn let_go_once(self) -> Result<(), Error> {
        self.let_go_within(Duration::MAX)
    }

    /// The same, and waits no longer than that.
    pub(crate) fn let_go_within(mut self, patience: Duration) -> Result<(), Error> {
        if patience.is_zero() {
            return self.let_go_later();
        }
        self.done = true;
        let patience = patience.min(self.process.settings.command_timeout);
        self.leave(patience, Attempts::One)
    }

    /// Lets go without waiting: the hold is over at once, and the renewal thread tells the server.
    pub(crate) fn let_go_later(mut self) -> Result<(), Error> {
        self.done = true;
        if !self.process.is_current() {
            return self.leave(Duration::ZERO, Attempts::One);
        }
        // Dropping what is left to be told owes it.
        self.begin().map(drop)
    }

    /// Lets go of the hold, and leaves it to the caller to tell the server. An error if the hold was over.
    pub(crate) fn begin_to_let_go(mut self) -> Result<Leaving, Error> {
        self.done = true;
        if !self.process.is_current() {
            self.leave(Duration::ZERO, Attempts::One)?;
        }
        self.begin()
    }

    fn begin(&self) -> Result<Leaving, Error> {
        Leaving::begin(&self.process, &self.hold, self.watched)
    }

    /// Whether the two are of one client, and so go to one server.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.process, &other.process)
    }

    fn asked(&self) -> &Asked {
        self.asked.get_or_init(Box::default)
    }

    fn leave(&self, patience: Duration, attempts: Attempts) -> Result<(), Error> {
        if !self.process.is_current() {
            // A child of a fork: the hold is the parent's, and so are the locks inside these structures. Only what
            // never changes is read of them, and nothing is dropped.
            std::mem::forget((Arc::clone(&self.process), Arc::clone(&self.hold)));
            return Err(Error::Lost { name: self.name(), reason: LostReason::Forked });
        }
        self.process.leave(&self.hold, self.watched, patience, attempts)
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if !self.done {
            // A failure is not lost: the release is owed, and finished by the renewal thread.
            let patience = self.process.settings.command_timeout;
            drop(self.leave(patience, Attempts::One));
        }
    }
}

impl Grip {
    /// What a guard that is called `guard` shows of itself.
    pub(crate) fn show(&self, guard: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct(guard)
            .field("name", &self.hold.name)
            .field("owner", &self.owner())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Grip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("Grip", formatter)
    }
}
