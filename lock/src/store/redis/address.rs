//! Where a server is and who asks: a parsed URL.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};

#[cfg(feature = "tls")]
use super::trust::Trust;
use crate::credentials::CredentialsSource;
use crate::error::Error;
#[cfg(feature = "tls")]
use crate::tls_settings::TlsSettings;

/// What a URL says: where the keys are, and who asks for them.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(super) place: Place,
    pub(super) access: Access,
    /// Whether it is to be reached over TLS.
    #[cfg(feature = "tls")]
    encrypted: bool,
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On one server.
    Single(Address),
    /// On one server of this host.
    #[cfg(unix)]
    Unix(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// What one socket leads to.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    Tcp(Address),
    #[cfg(unix)]
    Unix(PathBuf),
}

/// Which database, who asks, and whom he believes. `Debug` leaves the password out.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// Asked at each connect, instead of the password.
    pub(super) credentials: Option<CredentialsSource>,
    /// If TLS is spoken.
    #[cfg(feature = "tls")]
    pub(super) trust: Option<Trust>,
}

impl Location {
    /// Parses `redis://[user][:password@]host[:port][/database]`, the same with `valkey://`, `rediss://` or
    /// `valkeys://`, or `unix:///path[?db=database&user=user&pass=password]`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (url, encrypted) = without_tls(url);
        if encrypted && cfg!(not(feature = "tls")) {
            return Err(invalid("TLS needs the cargo feature `tls` of wheellock"));
        }
        // The crate's message is not passed on: it may hold a piece of the URL, and so of the password.
        let url = redis::parse_redis_url(&url).ok_or_else(|| invalid(FORM))?;
        match url.fragment() {
            None => {}
            // What other clients understand by it.
            Some("insecure") => return Err(invalid(INSECURE)),
            Some(_) => {
                return Err(invalid("behind a # there is nothing to say; in a password it is %23"));
            }
        }
        let keys = ["db", "user", "pass"];
        if url.scheme().ends_with("unix")
            && url.query_pairs().any(|(key, _)| !keys.contains(&&*key))
        {
            return Err(invalid("a unix socket's query has db, user and pass, and nothing else"));
        }
        let info = url.into_connection_info().map_err(|_| invalid(FORM))?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                // An IPv6 literal comes in brackets, which are the URL's and not the address's.
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                Place::Single(Address { host, port: *port })
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(invalid(FORM)),
        };
        let settings = info.redis_settings();
        let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let access = Access {
            database: settings.db(),
            username: given(settings.username()),
            password: given(settings.password()),
            credentials: None,
            #[cfg(feature = "tls")]
            trust: None,
        };
        Ok(Self {
            place,
            access,
            #[cfg(feature = "tls")]
            encrypted,
        })
    }

    /// From now on, whoever connects asks for his credentials.
    pub(crate) fn ask_for_credentials(&mut self, source: CredentialsSource) {
        self.access.credentials = Some(source);
    }

    /// Reads the certificates, if the URL asks for TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn secure(&mut self, settings: Option<&TlsSettings>) -> Result<(), Error> {
        if self.encrypted {
            let default = TlsSettings::default();
            self.access.trust = Some(Trust::new(settings.unwrap_or(&default))?);
        } else if settings.is_some() {
            // Else he who wanted TLS would not have it, and not notice.
            return Err(Error::InvalidSetting {
                setting: "tls",
                reason: "the URL asks for none: it would begin with rediss://".to_owned(),
            });
        }
        Ok(())
    }

    /// Where the keys are, as text: two that say the same mean the same.
    pub(crate) fn identity(&self) -> String {
        let database = self.access.database;
        match &self.place {
            Place::Single(address) => format!("{}:{}/{database}", address.host, address.port),
            #[cfg(unix)]
            Place::Unix(path) => format!("{}/{database}", path.display()),
        }
    }
}

const FORM: &str = "it is not of the form redis://[user][:password@]host[:port][/database], \
                    or unix:///path[?db=database&user=user&pass=password]";

const INSECURE: &str = "#insecure is refused: whom a client does not look at may be anybody; \
                        name the authority of the server's certificate (TlsSettings)";

fn invalid(reason: &str) -> Error {
    Error::InvalidUrl { reason: reason.to_owned() }
}

/// The URL of the same server without TLS, and whether the URL asks for it.
fn without_tls(url: &str) -> (String, bool) {
    let split = url.split_once("://").map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    match split {
        Some((scheme, rest)) if scheme == "rediss" || scheme == "valkeys" => {
            (format!("redis://{rest}"), true)
        }
        _ => (url.to_owned(), false),
    }
}

impl From<Address> for Peer {
    fn from(address: Address) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            #[cfg(unix)]
            Self::Unix(path) => path.display().fmt(formatter),
        }
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
        let server = |url: &str| match Location::parse(url).unwrap().place {
            Place::Single(address) => address.to_string(),
            #[cfg(unix)]
            Place::Unix(path) => path.display().to_string(),
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
