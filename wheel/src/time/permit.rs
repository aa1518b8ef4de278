//! The permit of a parker: given by any thread, taken by the one that waits for it (DESIGN:
//! parking).

#[cfg(all(test, hashed_wheel_loom))]
pub(crate) use self::modelled::Permit;
#[cfg(not(all(test, hashed_wheel_loom)))]
pub(crate) use self::real::Permit;

#[cfg(not(all(test, hashed_wheel_loom)))]
mod real {
    use std::mem;
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, Select, Sender, bounded, never};

    /// One permit.
    ///
    /// A thread that waits for nothing else sleeps on the condition variable at once. A `select`
    /// spins and yields before it sleeps, which for a thread that wakes a thousand times a second
    /// is half of its processor time. So only a thread that also waits for an interrupt uses the
    /// `select`.
    ///
    /// The lock and the condition variable are the standard library's, one word each.
    /// `parking_lot`'s keep their sleepers in a table that the whole process shares; a `fork` while
    /// a thread is being added to it leaves the child with a table that stays locked. (A lock that
    /// is free is safe in the child, and the locks of the shards nearly always are.)
    pub(crate) struct Permit {
        available: Mutex<bool>,
        given: Condvar,
        /// Sent to with each permit, for threads in a `select`. A message may outlast its permit.
        signal: Sender<()>,
        signalled: Receiver<()>,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            let (signal, signalled) = bounded(1);
            Self { available: Mutex::new(false), given: Condvar::new(), signal, signalled }
        }

        /// Makes the permit available, and wakes the thread that waits for it.
        pub(crate) fn give(&self) {
            *self.available() = true;
            self.given.notify_one();
            // A full channel already has a message, and one is enough.
            let _already_signalled = self.signal.try_send(());
        }

        /// Takes the permit if it is available, and returns whether it was.
        pub(crate) fn take(&self) -> bool {
            mem::take(&mut self.available())
        }

        pub(crate) fn is_available(&self) -> bool {
            *self.available()
        }

        fn available(&self) -> MutexGuard<'_, bool> {
            self.available.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for the permit, the deadline or the interrupt, and takes the permit if it is
        /// available. It may return early for no reason.
        pub(crate) fn wait(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            if interrupt.same_channel(&never()) {
                self.wait_on_condvar(deadline);
            } else {
                self.wait_in_select(deadline, interrupt);
            }
        }

        fn wait_on_condvar(&self, deadline: Option<Instant>) {
            let mut available = self.available();
            if !*available {
                available = match deadline {
                    None => self.given.wait(available).unwrap_or_else(PoisonError::into_inner),
                    Some(deadline) => {
                        let woken = self.given.wait_timeout(available, time_left(deadline));
                        // Why it woke does not matter: the caller looks at its own state.
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            *available = false;
        }

        fn wait_in_select(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            if self.take() {
                return;
            }
            let mut select = Select::new();
            select.recv(&self.signalled);
            select.recv(interrupt);
            match deadline {
                None => drop(select.ready()),
                Some(deadline) => drop(select.ready_deadline(deadline)),
            }
            // Before the permit: a message that comes after this belongs to a permit that is
            // available.
            let _signalled = self.signalled.try_recv();
            self.take();
        }
    }

    /// By the operating system's clock, which also ends the wait.
    #[expect(clippy::disallowed_methods, reason = "the wait itself goes by this clock")]
    fn time_left(deadline: Instant) -> Duration {
        deadline.saturating_duration_since(Instant::now())
    }
}

#[cfg(all(test, hashed_wheel_loom))]
mod modelled {
    use std::sync::PoisonError;
    use std::time::Instant;

    use crossbeam_channel::Receiver;
    use loom::sync::Condvar;

    use crate::time::sync::Mutex;

    /// One permit. Time does not pass in a model: a deadline never comes, and nothing interrupts.
    pub(crate) struct Permit {
        available: Mutex<bool>,
        given: Condvar,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            Self { available: Mutex::new(false), given: Condvar::new() }
        }

        pub(crate) fn give(&self) {
            *self.available.lock() = true;
            self.given.notify_one();
        }

        pub(crate) fn take(&self) -> bool {
            std::mem::take(&mut self.available.lock())
        }

        pub(crate) fn is_available(&self) -> bool {
            *self.available.lock()
        }

        pub(crate) fn wait(&self, _deadline: Option<Instant>, _interrupt: &Receiver<()>) {
            let mut available = self.available.lock();
            while !*available {
                available = self.given.wait(available).unwrap_or_else(PoisonError::into_inner);
            }
            *available = false;
        }
    }
}
