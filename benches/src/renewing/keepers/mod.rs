//! Those who keep locks in a process of this program. Redisson has a program of its own.

mod rlock;
mod taking;
mod timer_tasks;
mod tokio_tasks;
mod wheellock;

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use rlock::Rlock;
pub(crate) use timer_tasks::TimerTasks;
pub(crate) use tokio_tasks::TokioTasks;
pub(crate) use wheellock::{Unrenewed, Wheellock};

/// What was measured, each by its name.
pub(crate) type Numbers = Vec<(&'static str, f64)>;

/// Where the locks are, and how long they last unless they are renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) lease: Duration,
}

impl Target {
    /// How often each lock is renewed: all keepers do it every third of the lease.
    pub(crate) fn interval(&self) -> Duration {
        self.lease / 3
    }
}

/// Somebody who takes locks and keeps them.
pub(crate) trait Keeper {
    /// Connects, and holds nothing yet.
    fn start(target: &Target) -> Self;

    /// Takes so many locks one after the other, on the calling thread.
    fn take(&mut self, held: usize);

    /// How many of them it knows to be lost.
    fn lost(&self) -> usize;

    /// What else it knows of its renewals.
    fn more(&self) -> Numbers {
        Numbers::new()
    }
}

/// The name of a lock by its number, the same for all keepers.
pub(crate) fn lock_name(number: usize) -> String {
    format!("bench:lock:{number:06}")
}

/// A server as clients write it.
pub(crate) fn url(address: SocketAddr) -> String {
    format!("redis://{address}/")
}
