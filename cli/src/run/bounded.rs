//! A time bound for calls of the client, which a hung server may delay.
//!
//! The client waits for a command under way, so a hung server would delay the end of the process by
//! several command timeouts. So connecting, the acquire and the release each run on a separate
//! thread, abandoned at the end of the wait, or a second after a signal or the end of the command.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use wheellock::crossbeam_channel::{Receiver, Select, bounded};
use wheellock::{Clock as _, SystemClock};

/// Runs `call` on a separate thread, and returns the result. `None` if `call` has not returned by
/// `limit`, or within `grace` of a message to `interrupted`, which stays in the channel. Then the
/// thread goes on, and ends with the process. An error if the thread cannot be started.
pub(crate) fn within<T: Send + 'static>(
    limit: Option<Instant>,
    interrupted: &Receiver<()>,
    grace: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (done, returned) = bounded(1);
    // A failure to send means that nobody waits for the result any more.
    let run = move || drop(done.send(call()));
    thread::Builder::new().name("call".to_owned()).spawn(run)?;
    let mut either = Select::new();
    either.recv(&returned);
    let interruption = either.recv(interrupted);
    let ready = match limit {
        Some(limit) => {
            let left = limit.saturating_duration_since(SystemClock.now());
            either.ready_timeout(left).ok()
        }
        None => Some(either.ready()),
    };
    let grace = if ready == Some(interruption) { grace } else { Duration::ZERO };
    Ok(returned.recv_timeout(grace).ok())
}
