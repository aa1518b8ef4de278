//! Deadlines of waits on a socket, timeouts of a socket, and the errors of a timeout.

use std::io;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::model::sync::SystemClock;

/// The end of a wait, and the last reading of the clock.
///
/// Reading the clock is a good part of the cost of a short command. So the last reading is stored,
/// and a command with an immediate reply does not read the clock again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    read_at: Instant,
    deadline: Instant,
}

impl Deadline {
    /// Returns a deadline `timeout` from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        let read_at = SystemClock.now();
        Self { read_at, deadline: read_at + timeout }
    }

    /// Returns the time when the wait ends.
    pub(crate) fn instant(self) -> Instant {
        self.deadline
    }

    /// Returns the last reading of the clock.
    pub(crate) fn read_at(self) -> Instant {
        self.read_at
    }

    /// Returns the time left at the last reading of the clock, or the error `TimedOut` if no time
    /// is left. A wait for the returned time ends late by the time since the reading.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(self.read_at);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Reads the clock, and returns the updated deadline. Call after anything that may take long.
    pub(crate) fn refresh(&mut self) -> Self {
        self.read_at = SystemClock.now();
        *self
    }
}

/// Shortest wait with a socket's own timeout. Shorter waits use [`wait_for`].
///
/// A kernel may count a socket's own timeout in coarse steps. Linux rounds the timeout up to the
/// steps of a timer wheel: by up to 8/63 of the timeout, plus two ticks of 1 to 10 ms. So 3 s would
/// end 256 ms late.
const COARSE: Duration = Duration::from_millis(64);

/// Returns the timeout to set on a socket for a part of a wait of `left`. A thread that wakes early
/// reads the clock and waits again. `None` if `left` is so short that the socket's own timeout
/// would end late.
pub(crate) fn socket_timeout(left: Duration) -> Option<Duration> {
    (left >= COARSE).then(|| left / 4 * 3)
}

/// Returns whether the timeout `set` may stay instead of [`socket_timeout`] of `left`.
pub(crate) fn is_close_enough(set: Duration, left: Duration) -> bool {
    (left / 2..=left / 8 * 7).contains(&set)
}

/// Waits until a socket is readable, writable or ended, for at most `left`. Fails with `WouldBlock`
/// when the time is over.
#[cfg_attr(all(test, wheellock_shuttle), expect(dead_code, reason = "no socket is real there"))]
pub(crate) fn wait_for(socket: impl AsFd, events: PollFlags, left: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&socket, events)], Some(&timeout))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Runs `action` with the socket in non-blocking mode, and returns the result. The socket is in
/// blocking mode before and afterwards.
#[cfg(not(target_os = "linux"))]
fn without_blocking<T>(
    set_nonblocking: impl Fn(bool) -> io::Result<()>,
    action: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    set_nonblocking(true)?;
    let done = action();
    set_nonblocking(false)?;
    done
}

/// Reads and writes on a blocking socket that do not block, and a write that may block.
#[cfg_attr(all(test, wheellock_shuttle), expect(dead_code, reason = "no socket is real there"))]
pub(crate) trait Now {
    /// Writes, and may block. Like the standard library, raises no signal if the peer is gone.
    fn write_blocking(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes as many bytes as the kernel accepts. Fails with `WouldBlock` if the kernel accepts
    /// none.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Reads the arrived bytes. Fails with `WouldBlock` if there are none.
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Copies the arrived bytes, without removing them. Fails with `WouldBlock` if there are none.
    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// On Linux each method is one system call, without effect on concurrent readers and writers.
#[cfg(target_os = "linux")]
impl<S: AsFd> Now for S {
    fn write_blocking(&self, bytes: &[u8]) -> io::Result<usize> {
        use rustix::net::{SendFlags, send};
        Ok(send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        use rustix::net::{SendFlags, send};
        Ok(send(self, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        use rustix::net::{RecvFlags, recv};
        Ok(recv(self, buffer, RecvFlags::DONTWAIT)?.0)
    }

    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        use rustix::net::{RecvFlags, recv};
        Ok(recv(self, buffer, RecvFlags::DONTWAIT | RecvFlags::PEEK)?.0)
    }
}

#[cfg(not(target_os = "linux"))]
impl Now for socket2::Socket {
    fn write_blocking(&self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, bytes)
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        without_blocking(|on| self.set_nonblocking(on), || io::Write::write(&mut &*self, bytes))
    }

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        without_blocking(|on| self.set_nonblocking(on), || io::Read::read(&mut &*self, buffer))
    }

    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        use rustix::net::{RecvFlags, recv};
        let peek = || Ok(recv(self, buffer, RecvFlags::PEEK)?.0);
        without_blocking(|on| self.set_nonblocking(on), peek)
    }
}

/// Returns whether a system call ended only because of its own timeout or a signal.
pub(crate) fn is_timeout_or_signal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The latest end of a timeout on a kernel's wheel of `ticks_a_second`.
    fn latest(timeout: Duration, ticks_a_second: u32) -> Duration {
        let tick = Duration::from_secs(1) / ticks_a_second;
        let mut step = tick;
        while timeout >= step * 63 {
            step *= 8;
        }
        timeout + step + tick * 2
    }

    #[test]
    fn a_wait_in_parts_leaves_the_last_part_to_the_exact_one() {
        for ticks_a_second in [100, 250, 300, 1000] {
            for millis in (1..20_000).step_by(7) {
                let (mut left, mut waits) = (Duration::from_millis(millis), 0);
                while let Some(set) = socket_timeout(left) {
                    waits += 1;
                    assert!(is_close_enough(set, left), "{set:?} of {left:?}");
                    left = left.saturating_sub(latest(set, ticks_a_second));
                    // On a kernel of the slowest ticks, the last part may be missing.
                    assert!(!left.is_zero() || ticks_a_second == 100, "{millis} ms");
                }
                assert!(waits < 12, "{waits}");
            }
        }
    }
}
