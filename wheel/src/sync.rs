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
    use std::time::Instant;

    use crossbeam_channel::{Receiver, Select, Sender, bounded};

    /// One permit: given by any thread, taken by the one that waits for it.
    pub(crate) struct Permit {
        give: Sender<()>,
        permit: Receiver<()>,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            let (give, permit) = bounded(1);
            Self { give, permit }
        }

        pub(crate) fn give(&self) {
            // A full channel means that the permit is there, which is all that was wanted.
            let _already_there = self.give.try_send(());
        }

        /// Takes the permit if it is there, and returns whether it was.
        pub(crate) fn take(&self) -> bool {
            self.permit.try_recv().is_ok()
        }

        pub(crate) fn is_there(&self) -> bool {
            !self.permit.is_empty()
        }

        /// Waits for the permit, the deadline or the interrupt, and takes the permit if it is there.
        pub(crate) fn wait(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            let mut select = Select::new();
            select.recv(&self.permit);
            select.recv(interrupt);
            match deadline {
                None => {
                    select.ready();
                }
                // Which of them it was does not matter: the caller looks at its own state.
                Some(deadline) => {
                    let _either = select.ready_deadline(deadline);
                }
            }
            self.take();
        }
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
