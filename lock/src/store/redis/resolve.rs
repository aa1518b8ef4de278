//! Name resolution with a deadline. The operating system's has none, so it runs on a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hashed_wheel::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

/// Resolves one host, or another when a server has moved. At most one thread runs for it at a time: a resolver that hangs
/// is waited for, not piled up. All who ask while it runs share its answer, and nobody who asks later.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    latest: Mutex<Option<Arc<Resolution>>>,
}

#[derive(Debug)]
struct Resolution {
    host: String,
    port: u16,
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

/// The addresses, or what the system said.
type Answer = Result<Vec<SocketAddr>, String>;

impl Resolver {
    /// The addresses of `host`, or an error within `timeout`.
    pub(super) fn resolve(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let resolution = {
            let mut latest = self.latest.lock();
            match &*latest {
                Some(running) if running.is_for(host, port) && running.answer.lock().is_none() => {
                    Arc::clone(running)
                }
                _ => Arc::clone(latest.insert(start(host.to_owned(), port)?)),
            }
        };
        resolution.wait(timeout)
    }
}

impl Resolution {
    fn is_for(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port == port
    }

    fn wait(&self, timeout: Duration) -> io::Result<Vec<SocketAddr>> {
        let deadline = SystemClock.now() + timeout;
        let mut answer = self.answer.lock();
        loop {
            match &*answer {
                Some(Ok(addresses)) => return Ok(addresses.clone()),
                Some(Err(reason)) => return Err(io::Error::other(reason.clone())),
                None => {}
            }
            let left = deadline.saturating_duration_since(SystemClock.now());
            if left.is_zero() {
                let reason = "the name was not resolved in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            self.answered.wait_for(&mut answer, left);
        }
    }
}

fn start(host: String, port: u16) -> io::Result<Arc<Resolution>> {
    let (answer, answered) = (Mutex::default(), Condvar::new());
    let resolution = Arc::new(Resolution { host: host.clone(), port, answer, answered });
    let running = Arc::clone(&resolution);
    thread::Builder::new().name("lock-resolver".to_owned()).spawn(move || {
        let answer = (host.as_str(), port)
            .to_socket_addrs()
            .map(Iterator::collect)
            .map_err(|error| error.to_string());
        *running.answer.lock() = Some(answer);
        running.answered.notify_all();
    })?;
    Ok(resolution)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn all_who_ask_at_once_get_the_addresses() {
        let resolver = Resolver::default();
        thread::scope(|scope| {
            let askers: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| resolver.resolve("localhost", 7000, LIMIT)))
                .collect();
            for asker in askers {
                let addresses = asker.join().unwrap().unwrap();
                assert!(addresses.iter().all(|address| address.ip().is_loopback()));
                assert!(!addresses.is_empty());
            }
        });
    }

    #[test]
    fn an_address_needs_no_resolution() {
        let resolver = Resolver::default();
        let addresses = resolver.resolve("::1", 7000, Duration::ZERO).unwrap();
        assert_eq!(addresses, ["[::1]:7000".parse().unwrap()]);
    }
}
