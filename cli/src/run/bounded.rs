//! Calls of the client that a server may keep waiting, and a bound for them.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use wheellock::crossbeam_channel::{Receiver, Select, bounded};
use wheellock::{Clock as _, SystemClock};

/// What `call` returns, on a thread of its own. `None` if it has not returned by `limit`, or within
/// `grace` of a message to `interrupted`, which stays in the channel. Then the thread goes on, and
/// ends with the process.
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
