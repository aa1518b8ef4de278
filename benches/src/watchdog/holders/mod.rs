//! The holders that are processes of this program. Redisson has a program of its own.

mod rlock;
mod scripts;
mod timer_tasks;
mod tokio_tasks;
mod wheellock;

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use rlock::Rlock;
pub(crate) use timer_tasks::TimerTasks;
pub(crate) use tokio_tasks::TokioTasks;
pub(crate) use wheellock::{Unrenewed, Wheellock};

use crate::harness::measured::Numbers;

/// The server with the locks, and the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderConfig {
    pub(crate) address: SocketAddr,
    pub(crate) lease: Duration,
}

impl HolderConfig {
    /// The time between two renewals of a lock, which is the same for all holders.
    pub(crate) fn interval(&self) -> Duration {
        self.lease / 3
    }
}

/// Acquires locks, and renews them.
pub(crate) trait Holder {
    /// Connects, and holds nothing yet.
    fn start(config: &HolderConfig) -> Self;

    /// Acquires this many locks one after the other, on the calling thread.
    fn acquire(&mut self, held: usize);

    /// The number of locks that it knows to be lost.
    fn lost(&self) -> usize;

    /// Further numbers of its renewals.
    fn more(&self) -> Numbers {
        Numbers::new()
    }
}

/// The name of a lock by its number, the same for all holders.
pub(crate) fn lock_name(number: usize) -> String {
    format!("bench:lock:{number:06}")
}

/// The URL of a server.
pub(crate) fn url(address: SocketAddr) -> String {
    format!("redis://{address}/")
}
