//! When a wait on a socket ends, how a socket is made to keep to it, and which errors only say that
//! time has passed.

use std::io;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::model::sync::SystemClock;

/// When a wait ends.
///
/// Reading the clock is a good part of the cost of a short command. So the time of the last reading
/// is kept, and a command that is answered at once does not read the clock again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    read_at: Instant,
    deadline: Instant,
}

impl Deadline {
    /// So long from now.
    pub(crate) fn after(timeout: Duration) -> Self {
        let read_at = SystemClock.now();
        Self { read_at, deadline: read_at + timeout }
    }

    pub(crate) fn instant(self) -> Instant {
        self.deadline
    }

    /// When the clock was read last.
    pub(crate) fn read_at(self) -> Instant {
        self.read_at
    }

    /// What was left when the clock was read last. A wait of that length ends late by what has
    /// passed since.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(self.read_at);
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Reads the clock: after anything that may have taken long.
    pub(crate) fn refresh(&mut self) -> Self {
        self.read_at = SystemClock.now();
        *self
    }
}

/// A shorter wait is left to [`wait_for`].
///
/// A kernel may count a socket's own timeout in coarse steps. Linux rounds it up to those of a timer
/// wheel: by up to 8/63 of it, and two ticks of 1 to 10 ms. So 3 s would end 256 ms late.
const COARSE: Duration = Duration::from_millis(64);

/// The timeout to set on a socket for a part of a wait of `left`. A thread that wakes early reads
/// the clock and waits again. `None` if the rest is so short that the socket's own timeout would
/// end late.
pub(crate) fn socket_timeout(left: Duration) -> Option<Duration> {
    (left >= COARSE).then(|| left / 4 * 3)
}

/// Whether a timeout that is set already is as good as [`socket_timeout`], so that it can stay.
pub(crate) fn is_close_enough(set: Duration, left: Duration) -> bool {
    (left / 2..=left / 8 * 7).contains(&set)
}

/// Waits until a socket can be read, or written, or has ended: for `left` at most, and no longer.
/// `WouldBlock` if nothing has happened by then.
#[cfg_attr(all(test, wheellock_shuttle), expect(dead_code, reason = "no socket is real there"))]
pub(crate) fn wait_for(socket: impl AsFd, events: PollFlags, left: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(&socket, events)], Some(&timeout))? {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        _ => Ok(()),
    }
}

/// Runs `action` on a socket that does not block meanwhile.
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

/// A socket that blocks, and on which one call need not.
#[cfg_attr(all(test, wheellock_shuttle), expect(dead_code, reason = "no socket is real there"))]
pub(crate) trait Now {
    /// Writes as the standard library does: a peer that has gone raises no signal.
    fn write_blocking(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes what the kernel accepts: `WouldBlock` if that is nothing.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Reads what has arrived: `WouldBlock` if that is nothing.
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Reads what has arrived, and leaves it there: `WouldBlock` if that is nothing.
    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// On Linux one system call does it, and threads that read or write meanwhile notice nothing.
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

/// Whether a system call ended only because of its own timeout or a signal.
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
