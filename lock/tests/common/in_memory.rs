//! A store in memory, and the clock of the store and its clients.

use std::sync::Arc;
use std::time::Duration;

use wheellock::{Client, ClientBuilder, ManualClock, Memory};

use super::built;

pub(crate) struct InMemory {
    pub(crate) clock: ManualClock,
    pub(crate) memory: Memory,
}

impl InMemory {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let memory = Memory::with_clock(Arc::new(clock.clone()));
        Self { clock, memory }
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder().in_memory(&self.memory)
    }

    pub(crate) fn client(&self) -> Client {
        built(self.builder())
    }

    pub(crate) fn client_with_lease(&self, lease: Duration) -> Client {
        built(self.builder().watchdog_lease(lease))
    }

    /// Zero if the key is not there.
    pub(crate) fn time_to_live(&self, key: &str) -> Duration {
        self.memory.time_to_live(key).unwrap_or_default()
    }
}
