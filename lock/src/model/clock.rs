//! The clock for leases: monotonic time including suspend.
//!
//! Rust's `Instant` stops during suspend on Linux and macOS, but the server's clock does not. A
//! laptop closed for an hour would trust expired leases. So the client's clock reads
//! `CLOCK_BOOTTIME` on Linux and `CLOCK_MONOTONIC` on Apple's systems. By Apple's manual page
//! `clock_gettime(3)`, `CLOCK_MONOTONIC` advances while the system is asleep; `Instant` reads
//! `CLOCK_UPTIME_RAW` there, which does not advance.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use hashed_wheel::{Clock, Parker, SystemClock};

/// Monotonic time including suspend. The clock's instants start out equal to [`Instant::now`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuspendClock {
    anchor: Instant,
    boot_at_anchor: Duration,
}

impl SuspendClock {
    /// Makes a clock that begins with the present time of the system's monotonic clock.
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
        // The wait itself stops during suspend, so it ends late and never early. A thread which
        // reads the clock meanwhile sees the right time.
        let deadline = deadline
            .map(|deadline| SystemClock.now() + deadline.saturating_duration_since(self.now()));
        SystemClock.park(parker, deadline, interrupt);
    }

    fn remaining(&self, deadline: Instant) -> Duration {
        SystemClock.remaining(deadline)
    }
}

/// Returns the time since the start of the machine, including suspend.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn since_boot(_anchor: Instant) -> Duration {
    #[cfg(target_os = "linux")]
    const WITH_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(target_vendor = "apple")]
    const WITH_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let time = rustix::time::clock_gettime(WITH_SUSPEND);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// Returns the time since `anchor` by the monotonic clock of any other system.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
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
