//! What threads share, in one place: the locks and atomics of the crate, or their models.
//!
//! With `--cfg loom` they are those of loom, which runs a test once for every order in which its threads can meet. All
//! that the ticker's handshake consists of comes from here; what is only counted or configured need not.

#[cfg(not(loom))]
pub(crate) use self::real::Permit;
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub(crate) use self::modelled::{Mutex, Permit};
#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
mod real {
    use std::mem;
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, Select, Sender, bounded, never};

    /// One permit: given by any thread, taken by the one that waits for it.
    ///
    /// Who waits for nothing else sleeps on a condition variable, at once. A `select` sleeps only after a while of
    /// spinning and yielding, which for a thread that wakes a thousand times a second is half of all it does; so it is
    /// for those alone who wait for an interrupt as well.
    ///
    /// The lock and the condition variable are the standard library's: they are a word each, while `parking_lot`'s keep
    /// those who sleep in a table that all share, and a `fork` that comes while a sleeper is being entered there would
    /// leave the child with a table that stays locked. (Locks that are free are safe; those of the shards mostly are.)
    pub(crate) struct Permit {
        there: Mutex<bool>,
        given: Condvar,
        /// Rung with each permit, for those in a `select`. It may ring on when the permit has been taken.
        bell: Sender<()>,
        rung: Receiver<()>,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            let (bell, rung) = bounded(1);
            Self { there: Mutex::new(false), given: Condvar::new(), bell, rung }
        }

        pub(crate) fn give(&self) {
            *self.there() = true;
            self.given.notify_one();
            // A full channel means that it rings already, which is all that was wanted.
            let _rings_already = self.bell.try_send(());
        }

        /// Takes the permit if it is there, and returns whether it was.
        pub(crate) fn take(&self) -> bool {
            mem::take(&mut self.there())
        }

        pub(crate) fn is_there(&self) -> bool {
            *self.there()
        }

        fn there(&self) -> MutexGuard<'_, bool> {
            self.there.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for the permit, the deadline or the interrupt, and takes the permit if it is there. It may return
        /// early for no reason.
        pub(crate) fn wait(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            if interrupt.same_channel(&never()) {
                self.wait_alone(deadline);
            } else {
                self.wait_for_either(deadline, interrupt);
            }
        }

        fn wait_alone(&self, deadline: Option<Instant>) {
            let mut there = self.there();
            if !*there {
                there = match deadline {
                    None => self.given.wait(there).unwrap_or_else(PoisonError::into_inner),
                    Some(deadline) => {
                        let left = time_left(deadline);
                        let woken = self.given.wait_timeout(there, left);
                        // Which of the two it was does not matter: the caller looks at its own state.
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            *there = false;
        }

        fn wait_for_either(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            if self.take() {
                return;
            }
            let mut select = Select::new();
            select.recv(&self.rung);
            select.recv(interrupt);
            match deadline {
                None => drop(select.ready()),
                Some(deadline) => drop(select.ready_deadline(deadline)),
            }
            // Before the permit: a bell that rings after this belongs to a permit that is still there.
            let _rung = self.rung.try_recv();
            self.take();
        }
    }

    /// By the clock of the operating system, by which it wakes a thread too.
    #[expect(clippy::disallowed_methods, reason = "the wait itself goes by this clock")]
    fn time_left(deadline: Instant) -> Duration {
        deadline.saturating_duration_since(Instant::now())
    }
}

#[cfg(loom)]
mod modelled {
    use std::sync::PoisonError;
    use std::time::Instant;

    use crossbeam_channel::Receiver;
    use loom::sync::{Condvar, MutexGuard};

    /// Loom's lock with the face of `parking_lot`'s.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// One permit. Time does not pass in a model: a deadline never comes by itself, and nothing interrupts.
    pub(crate) struct Permit {
        there: Mutex<bool>,
        given: Condvar,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            Self { there: Mutex::new(false), given: Condvar::new() }
        }

        pub(crate) fn give(&self) {
            *self.there.lock() = true;
            self.given.notify_one();
        }

        pub(crate) fn take(&self) -> bool {
            std::mem::take(&mut self.there.lock())
        }

        pub(crate) fn is_there(&self) -> bool {
            *self.there.lock()
        }

        pub(crate) fn wait(&self, _deadline: Option<Instant>, _interrupt: &Receiver<()>) {
            let mut there = self.there.lock();
            while !*there {
                there = self.given.wait(there).unwrap_or_else(PoisonError::into_inner);
            }
            *there = false;
        }
    }
}
