//! When a wait on a socket ends, how a socket is made to keep to it, and which errors only say that
//! time has passed.

use std::io;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

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

    /// This deadline, or `longest` after the last reading of the clock, whichever is sooner.
    pub(crate) fn at_most(self, longest: Duration) -> Self {
        Self { deadline: self.deadline.min(self.read_at + longest), ..self }
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

/// The timeout to set on a socket so that a wait ends within `left`, and not after it. A thread
/// that wakes early reads the clock and waits again.
///
/// A kernel may count a socket's timeout in coarse steps. Linux rounds it up to those of a timer
/// wheel: by up to 8/63 of it, and two ticks of 1 to 10 ms. So 3 s would end 256 ms late.
pub(crate) fn socket_timeout(left: Duration) -> Duration {
    if left < COARSE { left } else { left / 4 * 3 }
}

/// The shortest timeout that is rounded by enough to justify a second wait.
const COARSE: Duration = Duration::from_millis(16);

/// Whether a timeout that is set already is as good as [`socket_timeout`], so that it can stay.
pub(crate) fn is_close_enough(set: Duration, left: Duration) -> bool {
    let longest = if left < COARSE { left + Duration::from_millis(1) } else { left / 8 * 7 };
    (left / 2..=longest).contains(&set)
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
    /// Writes what the kernel accepts: `WouldBlock` if that is nothing.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Reads what has arrived: `WouldBlock` if that is nothing.
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Reads what has arrived, and leaves it there: `WouldBlock` if that is nothing.
    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// On Linux one system call does it, and threads that read or write meanwhile notice nothing.
#[cfg(target_os = "linux")]
impl<S: std::os::fd::AsFd> Now for S {
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
impl Now for std::net::TcpStream {
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        without_blocking(|on| self.set_nonblocking(on), || io::Write::write(&mut &*self, bytes))
    }

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        without_blocking(|on| self.set_nonblocking(on), || io::Read::read(&mut &*self, buffer))
    }

    fn peek_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        without_blocking(|on| self.set_nonblocking(on), || self.peek(buffer))
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
impl Now for std::os::unix::net::UnixStream {
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
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

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
    fn a_wait_in_short_parts_ends_at_most_three_ticks_late() {
        for ticks_a_second in [100, 250, 300, 1000] {
            for millis in (1..20_000).step_by(7) {
                let tick = Duration::from_secs(1) / ticks_a_second;
                let (mut left, mut waits) = (Duration::from_millis(millis), 0);
                let late = loop {
                    waits += 1;
                    let set = socket_timeout(left);
                    assert!(set > Duration::ZERO);
                    assert!(is_close_enough(set, left), "{set:?} of {left:?}");
                    let woken = latest(set, ticks_a_second);
                    match left.checked_sub(woken) {
                        Some(rest) if !rest.is_zero() => left = rest,
                        _ => break woken.saturating_sub(left),
                    }
                };
                assert!(late <= tick * 3, "{millis} ms at {ticks_a_second}: {late:?}");
                assert!(waits < 12, "{waits}");
            }
        }
    }

    #[test]
    fn reads_of_seconds_end_on_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wait = |number: u64| {
            let mut stream = TcpStream::connect(address).unwrap();
            let length = Duration::from_millis(2_100 + 17 * number);
            let mut deadline = Deadline::after(length);
            while let Ok(left) = deadline.refresh().left() {
                stream.set_read_timeout(Some(socket_timeout(left))).unwrap();
                assert!(is_timeout_or_signal(&stream.read(&mut [0]).unwrap_err()));
            }
            deadline.read_at.saturating_duration_since(deadline.deadline)
        };
        let mut late: Vec<_> = thread::scope(|scope| {
            let waits: Vec<_> = (0..31).map(|number| scope.spawn(move || wait(number))).collect();
            waits.into_iter().map(|wait| wait.join().unwrap()).collect()
        });
        late.sort_unstable();
        // The median: rounded to 256 ms, it would be 128 ms, and a busy machine delays few of them
        // as much.
        let middle = late[late.len() / 2];
        assert!(middle < Duration::from_millis(60), "{late:?}");
    }
}
