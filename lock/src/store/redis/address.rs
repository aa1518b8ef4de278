//! Where a server is and who asks: a parsed URL.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::config::ReplicaAcks;
use crate::error::Error;

/// What a URL says: where the keys are, and who asks for them.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(super) place: Place,
    pub(super) access: Access,
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On one server.
    Single(Address),
}

/// What one socket leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Which database, who asks, and which replicas have to hear of what is granted. `Debug` leaves the password out.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) replica_acks: Option<ReplicaAcks>,
}

impl Location {
    /// Parses `redis://[user][:password@]host[:port][/database]`, or the same with `valkey://`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        // The crate's message is not passed on: it may hold a piece of the URL, and so of the password.
        let info = url.into_connection_info().map_err(|_| Error::InvalidUrl {
            reason: "it is not of the form redis://[user][:password@]host[:port][/database]"
                .to_owned(),
        })?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(Error::InvalidUrl {
                reason: "TLS and unix sockets are not supported yet, only redis:// and valkey://"
                    .to_owned(),
            });
        };
        let settings = info.redis_settings();
        // An IPv6 literal comes in brackets, which are the URL's and not the address's.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let access = Access {
            database: settings.db(),
            username: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            replica_acks: None,
        };
        Ok(Self { place: Place::Single(Address { host, port: *port }), access })
    }

    /// The same, where so many replicas have to hear of what is granted.
    pub(crate) fn with_replica_acks(mut self, acks: Option<ReplicaAcks>) -> Self {
        self.access.replica_acks = acks;
        self
    }

    /// Where the keys are, as text: two that say the same mean the same.
    pub(crate) fn identity(&self) -> String {
        let Place::Single(address) = &self.place;
        format!("{}:{}/{}", address.host, address.port, self.access.database)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Access")
            .field("database", &self.database)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_host_port_database_and_credentials() {
        let server = |url: &str| {
            let Place::Single(address) = Location::parse(url).unwrap().place;
            address.to_string()
        };
        assert_eq!(server("redis://ann:s3cret@example.org:7000/3"), "example.org:7000");
        assert_eq!(server("redis://[::1]:7000"), "[::1]:7000");
        let access = Location::parse("redis://ann:s3cret@example.org:7000/3").unwrap().access;
        assert_eq!(access.database, 3);
        assert_eq!(access.username.as_deref(), Some("ann"));
        assert_eq!(access.password.as_deref(), Some("s3cret"));
    }

    #[test]
    fn no_message_holds_the_password() {
        let location = Location::parse("redis://:s3cret@example.org").unwrap();
        assert!(!format!("{location:?} {}", location.identity()).contains("s3cret"));
        for wrong in ["redis://:s3cret@host:99999/", "s3cret", "rediss://:s3cret@host/", ""] {
            let error = Location::parse(wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidUrl { .. }));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
