//! `wheellock bench`: measures the cost of a lock on this machine with this server.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use wheellock::crossbeam_channel::{Receiver, Sender, after, bounded};
use wheellock::{Client, Clock as _, Error as LockError, Lock, SystemClock};

use crate::arguments::Bench;
use crate::exit;
use crate::output::say;
use crate::server;

/// Uncounted rounds at the start, in which connections are made and scripts are loaded.
const WARM_UP: usize = 20;

/// The most rounds of a measurement.
const MOST: usize = 1_000_000;

/// Time limit for the waiter to begin its wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pause in which the waiter's thread falls asleep.
const SETTLING: Duration = Duration::from_millis(1);

/// Runs both measurements, and returns the exit code.
pub(crate) fn bench(bench: &Bench) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&bench.server, None)?;
    let rival = server::connect(&bench.server, None)?;
    // The client's id makes the name unique.
    let name = format!("wheellock-bench:{}", client.id());
    let progress = Progress::new(bench.seconds);

    let lock = client.lock(&name);
    let pairs = progress.measure("lock + unlock", || pair(&lock))?;
    say(&line("lock + unlock, uncontended", pairs))?;

    let waiter = Waiter::start(&rival, &name)?;
    let hand_overs = progress.measure("hand-over", || hand_over(&lock, &rival, &waiter))?;
    say(&line("hand-over to a waiter of another client", hand_overs))?;
    Ok(exit::SUCCESS)
}

fn now() -> Instant {
    SystemClock.now()
}

fn pair(lock: &Lock) -> Result<Duration, Box<dyn Error>> {
    let begun = now();
    lock.lock()?.unlock()?;
    Ok(now() - begun)
}

/// The time from just before the release until the waiter has the lock.
fn hand_over(lock: &Lock, rival: &Client, waiter: &Waiter) -> Result<Duration, Box<dyn Error>> {
    let guard = lock.lock()?;
    waiter.begin.send(())?;
    // The waiter must be asleep before the release. The client counts the waiter earlier, so a
    // pause follows.
    let deadline = now() + PATIENCE;
    while rival.stats().waiters == 0 {
        if now() > deadline {
            return Err("the waiter does not wait".into());
        }
        pause(SETTLING / 10);
    }
    pause(SETTLING);
    let begun = now();
    guard.unlock()?;
    let acquired = waiter.acquired.recv()??;
    Ok(acquired.saturating_duration_since(begun))
}

fn pause(time: Duration) {
    // `after` always sends a message.
    after(time).recv().ok();
}

/// A thread that acquires and releases the lock once for each message to `begin`.
struct Waiter {
    begin: Sender<()>,
    acquired: Receiver<Result<Instant, LockError>>,
}

impl Waiter {
    fn start(client: &Client, name: &str) -> io::Result<Self> {
        let (begin, rounds) = bounded::<()>(1);
        let (report, acquired) = bounded(1);
        let lock = client.lock(name);
        let wait = move || {
            for () in rounds {
                let outcome = lock.lock().and_then(|guard| {
                    let acquired = now();
                    guard.unlock().map(|()| acquired)
                });
                if report.send(outcome).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("waiter".to_owned()).spawn(wait)?;
        Ok(Self { begin, acquired })
    }
}

/// Repeats a measurement for `time`, and shows the progress on a terminal.
struct Progress {
    time: Duration,
    is_shown: bool,
}

impl Progress {
    fn new(time: Duration) -> Self {
        Self { time, is_shown: io::stderr().is_terminal() }
    }

    fn measure(
        &self,
        what: &str,
        mut once: impl FnMut() -> Result<Duration, Box<dyn Error>>,
    ) -> Result<Vec<Duration>, Box<dyn Error>> {
        for _ in 0..WARM_UP {
            once()?;
        }
        let begun = now();
        let (mut times, mut shown) = (Vec::new(), 0);
        loop {
            let passed = now() - begun;
            if !times.is_empty() && passed >= self.time || times.len() >= MOST {
                self.show("\r\x1b[K");
                return Ok(times);
            }
            let tenths = passed.as_millis() * 10 / self.time.as_millis().max(1);
            if tenths > shown {
                shown = tenths;
                self.show(&format!("\r{what}: {} %", tenths.min(10) * 10));
            }
            times.push(once()?);
        }
    }

    fn show(&self, text: &str) {
        if self.is_shown {
            // A failed write loses only the display of the progress.
            write!(io::stderr(), "{text}").ok();
        }
    }
}

fn line(what: &str, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let (median, slow) = (quantile(&times, 50), quantile(&times, 99));
    format!("{what}: median {median:.1?}, 99 % within {slow:.1?}, {} measured", times.len())
}

/// The time not exceeded by `percent` percent of the sorted times. Zero if there are no times.
fn quantile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_times() {
        let times: Vec<Duration> = (1..=101).map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 50), Duration::from_millis(51));
        assert_eq!(quantile(&times, 99), Duration::from_millis(100));
        assert_eq!(quantile(&times[..1], 99), Duration::from_millis(1));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }
}
