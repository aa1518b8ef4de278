//! The clock for leases: monotonic time that includes suspend.
//!
//! Rust's `Instant` stops during suspend on Linux, the server's clock does not. A laptop that was
//! closed for an hour would trust leases that ended long ago. So the client's clock reads
//! `CLOCK_BOOTTIME` where there is one.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{Clock, Parker, SystemClock};

/// Monotonic time that includes suspend. Its instants start out equal to those of [`Instant::now`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuspendClock {
    anchor: Instant,
    boot_at_anchor: Duration,
}

impl SuspendClock {
    pub(crate) fn new() -> Self {
        let anchor = SystemClock.now();
        Self { anchor, boot_at_anchor: since_boot(anchor) }
    }
}

impl Clock for SuspendClock {
    fn now(&self) -> Instant {
        self.anchor + since_boot(self.anchor).saturating_sub(self.boot_at_anchor)
    }

    fn park(&self, parker: &Parker, deadline: Option<Instant>, interrupt: &Receiver<()>) {
        // The wait itself stops during suspend, so it ends late and never early. A thread that
        // reads the clock meanwhile sees the right time.
        let deadline = deadline
            .map(|deadline| SystemClock.now() + deadline.saturating_duration_since(self.now()));
        SystemClock.park(parker, deadline, interrupt);
    }

    fn remaining(&self, deadline: Instant) -> Duration {
        SystemClock.remaining(deadline)
    }
}

#[cfg(target_os = "linux")]
fn since_boot(_anchor: Instant) -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// Other systems use their monotonic clock.
#[cfg(not(target_os = "linux"))]
fn since_boot(anchor: Instant) -> Duration {
    SystemClock.now().saturating_duration_since(anchor)
}

/// Some instant, for tests of pure arithmetic.
#[cfg(test)]
pub(crate) fn origin() -> Instant {
    SystemClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_the_system_clock_while_the_machine_is_awake() {
        let clock = SuspendClock::new();
        let before = SystemClock.now();
        let now = clock.now();
        let after = SystemClock.now();
        let slack = Duration::from_millis(5);
        assert!(now + slack >= before && now <= after + slack);
    }
}
