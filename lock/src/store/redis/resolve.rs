//! Name resolution with a deadline. The operating system's has none.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::asking::Asking;

/// Resolves one host, or another when a server has moved.
#[derive(Debug)]
pub(super) struct Resolver {
    asking: Asking<Vec<SocketAddr>>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { asking: Asking::new() }
    }
}

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
        let about = format!("{host}:{port}");
        let asked = about.clone();
        let question = move || {
            let addresses = asked.to_socket_addrs();
            addresses.map(Iterator::collect).map_err(|error| error.to_string())
        };
        let late = "the name was not resolved in time";
        self.asking.ask("lock-resolver", &about, question, timeout, late)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

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
