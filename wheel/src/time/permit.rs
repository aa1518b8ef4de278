//! The permit of a parker: any thread gives the permit, and the parked thread takes the permit.

#[cfg(all(test, hashed_wheel_loom))]
pub(crate) use self::modelled::Permit;
#[cfg(not(all(test, hashed_wheel_loom)))]
pub(crate) use self::real::Permit;

#[cfg(not(all(test, hashed_wheel_loom)))]
mod real {
    use std::mem;
    use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
    use std::time::{Duration, Instant};

    use crossbeam_channel::{Receiver, Select, Sender, bounded, never};

    /// A single permit.
    ///
    /// A thread without an interrupt sleeps on the condition variable at once. A `select` spins and
    /// yields before the sleep: with a thousand wake-ups a second, spinning took 40 % of the
    /// ticker's time. So only a thread with an interrupt uses the `select`.
    ///
    /// The lock and the condition variable are the standard library's, one word each. The sleepers
    /// of `parking_lot`'s types are in a table shared by the whole process; a `fork` while a thread
    /// is being added to the table leaves the child with a locked table. (A free lock is safe in
    /// the child, and the locks of the shards nearly always are free.)
    pub(crate) struct Permit {
        state: Mutex<PermitState>,
        given: Condvar,
        /// A channel with a message for each permit, for threads in a `select`. A message may
        /// outlast its permit. The first `select` creates the channel: most parkers never use a
        /// `select`.
        signal: OnceLock<(Sender<()>, Receiver<()>)>,
    }

    struct PermitState {
        is_available: bool,
        /// The number of threads asleep on the condition variable. Without sleepers, a
        /// notification is a useless system call.
        sleepers: usize,
    }

    impl Permit {
        pub(crate) fn new() -> Self {
            let state = Mutex::new(PermitState { is_available: false, sleepers: 0 });
            Self { state, given: Condvar::new(), signal: OnceLock::new() }
        }

        /// Makes the permit available, and wakes the waiting thread.
        pub(crate) fn give(&self) {
            let mut state = self.state();
            state.is_available = true;
            let has_sleepers = state.sleepers > 0;
            drop(state);
            if has_sleepers {
                self.given.notify_one();
            }
            if let Some((signal, _)) = self.signal.get() {
                // A full channel already has a message, and a single message is enough.
                let _already_signalled = signal.try_send(());
            }
        }

        /// Takes the permit. Returns `false` if no permit is available.
        pub(crate) fn take(&self) -> bool {
            mem::take(&mut self.state().is_available)
        }

        pub(crate) fn is_available(&self) -> bool {
            self.state().is_available
        }

        fn state(&self) -> MutexGuard<'_, PermitState> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for the permit, the deadline or the interrupt, and takes the permit if available.
        /// May return early for no reason.
        pub(crate) fn wait(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            if interrupt.same_channel(&never()) {
                self.wait_on_condvar(deadline);
            } else {
                self.wait_in_select(deadline, interrupt);
            }
        }

        fn wait_on_condvar(&self, deadline: Option<Instant>) {
            let mut state = self.state();
            if !state.is_available {
                state.sleepers += 1;
                state = match deadline {
                    None => self.given.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(deadline) => {
                        let woken = self.given.wait_timeout(state, time_left(deadline));
                        // The reason of the wake-up does not matter: the caller checks its own
                        // state.
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                state.sleepers -= 1;
            }
            state.is_available = false;
        }

        fn wait_in_select(&self, deadline: Option<Instant>, interrupt: &Receiver<()>) {
            // Created before the permit is checked: every later permit sends a signal.
            let (_, signalled) = self.signal.get_or_init(|| bounded(1));
            if self.take() {
                return;
            }
            let mut select = Select::new();
            select.recv(signalled);
            select.recv(interrupt);
            match deadline {
                None => drop(select.ready()),
                Some(deadline) => drop(select.ready_deadline(deadline)),
            }
            // The message is received before the permit is taken: a later message belongs to an
            // available permit.
            let _signalled = signalled.try_recv();
            self.take();
        }
    }

    /// The time until `deadline` by the operating system's clock, which also ends the wait.
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

    /// A single permit. Time does not pass in a model: no deadline is reached, and no interrupt
    /// arrives.
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

#[cfg(test)]
#[cfg(not(hashed_wheel_loom))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use crossbeam_channel::{Receiver, bounded, never};

    use super::Permit;

    /// Gives permits, one after the other, to a thread that waits for them with this interrupt.
    fn give_to_a_waiting_thread(interrupt: Receiver<()>) {
        const TIMES: u32 = if cfg!(miri) { 20 } else { 1000 };
        let shared = Arc::new((Permit::new(), AtomicU32::new(0)));
        let (sender, woken) = bounded(0);
        let waiting = Arc::clone(&shared);
        let thread = thread::Builder::new().spawn(move || {
            let (permit, given) = &*waiting;
            for number in 1..=TIMES {
                while given.load(Ordering::SeqCst) < number {
                    permit.wait(None, &interrupt);
                }
                sender.send(()).unwrap();
            }
        });
        let thread = thread.unwrap();
        let (permit, given) = &*shared;
        for number in 1..=TIMES {
            given.store(number, Ordering::SeqCst);
            permit.give();
            woken.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        thread.join().unwrap();
    }

    #[test]
    fn a_permit_wakes_the_thread_that_waits_for_it() {
        give_to_a_waiting_thread(never());
    }

    #[test]
    fn a_permit_wakes_a_thread_that_also_waits_for_an_interrupt() {
        let (_interrupt, interrupted) = bounded(0);
        give_to_a_waiting_thread(interrupted);
    }
}
