//! Name resolution with a deadline, which the operating system's resolver lacks.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::store::redis::net::single_flight::{Relaunch, SingleFlight};

/// Resolves one host, and another host after the server has moved. A hung look-up does not block
/// the next look-ups: a resolver may take long to notice that its servers answer again.
#[derive(Debug)]
pub(crate) struct Resolver {
    flights: SingleFlight<Vec<SocketAddr>>,
    look_up: fn(&str) -> io::Result<Vec<SocketAddr>>,
}

/// When a look-up without a result is started again. A look-up takes milliseconds, or hangs. Eight
/// threads cover the 10 s after which most resolvers give up.
const RELAUNCH: Relaunch = Relaunch { after: Duration::from_secs(2), max_threads: 8 };

impl Default for Resolver {
    fn default() -> Self {
        Self::with(|host| host.to_socket_addrs().map(Iterator::collect))
    }
}

impl Resolver {
    /// Creates a resolver that calls `look_up` with a text `host:port`.
    fn with(look_up: fn(&str) -> io::Result<Vec<SocketAddr>>) -> Self {
        Self { flights: SingleFlight::with_relaunch(RELAUNCH), look_up }
    }

    /// Returns the addresses of `host` with `port`, or an error within `timeout`. A separate thread
    /// resolves a name.
    pub(crate) fn resolve(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let key = format!("{host}:{port}");
        let (name, look_up) = (key.clone(), self.look_up);
        let late = "the name was not resolved in time";
        self.flights.call(&key, move || look_up(&name), timeout, late)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn callers_at_the_same_time_all_get_the_addresses() {
        let resolver = Resolver::default();
        thread::scope(|scope| {
            let callers: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| resolver.resolve("localhost", 7000, LIMIT)))
                .collect();
            for caller in callers {
                let addresses = caller.join().unwrap().unwrap();
                assert!(addresses.iter().all(|address| address.ip().is_loopback()));
                assert!(!addresses.is_empty());
            }
        });
    }

    #[test]
    fn an_ip_address_needs_no_resolution() {
        let resolver = Resolver::default();
        let addresses = resolver.resolve("::1", 7000, Duration::ZERO).unwrap();
        assert_eq!(addresses, ["[::1]:7000".parse().unwrap()]);
    }

    #[test]
    fn a_look_up_that_hangs_is_not_waited_for() {
        static LOOK_UPS: AtomicUsize = AtomicUsize::new(0);
        let resolver = Resolver::with(|_| {
            if LOOK_UPS.fetch_add(1, Ordering::SeqCst) == 0 {
                // Beyond the end of the test.
                crossbeam_channel::never::<()>().recv().ok();
            }
            Ok(vec!["127.0.0.1:7000".parse().unwrap()])
        });
        let addresses = resolver.resolve("hangs.example.org", 7000, LIMIT).unwrap();
        assert_eq!(addresses.len(), 1);
        assert_eq!(LOOK_UPS.load(Ordering::SeqCst), 2);
    }
}
