//! Where a server is and who asks: a parsed URL.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::error::Error;

/// One server, a database on it, and the credentials. `Debug` and `Display` leave the password out.
#[derive(Clone)]
pub(crate) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl Address {
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
        Ok(Self {
            // An IPv6 literal comes in brackets, which are the URL's and not the address's.
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: *port,
            database: settings.db(),
            username: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
        })
    }
}

impl Address {
    /// Host, port and database: where the keys are.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.database)
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

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Address")
            .field("server", &self.to_string())
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
        let address = Address::parse("redis://ann:s3cret@example.org:7000/3").unwrap();
        assert_eq!(address.to_string(), "example.org:7000");
        assert_eq!(address.database, 3);
        assert_eq!(address.username.as_deref(), Some("ann"));
        assert_eq!(address.password.as_deref(), Some("s3cret"));
        assert_eq!(Address::parse("redis://[::1]:7000").unwrap().to_string(), "[::1]:7000");
    }

    #[test]
    fn no_message_holds_the_password() {
        let address = Address::parse("redis://:s3cret@example.org").unwrap();
        assert!(!format!("{address:?} {address}").contains("s3cret"));
        for wrong in ["redis://:s3cret@host:99999/", "s3cret", "rediss://:s3cret@host/", ""] {
            let error = Address::parse(wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidUrl { .. }));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
