//! Where a server is and who asks: a parsed URL.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

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
    /// In the slots of a cluster, of which these nodes know.
    Cluster(Vec<Address>),
}

/// What one socket leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Which database, and who asks. `Debug` leaves the password out.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

impl Location {
    /// Parses `redis://[user][:password@]host[:port][/database]`, or
    /// `redis-cluster://[user][:password@]host:port[,host:port..]`, or the same with `valkey`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        match url.strip_prefix("redis-cluster://").or_else(|| url.strip_prefix("valkey-cluster://"))
        {
            Some(rest) => Self::parse_cluster(rest),
            None => Self::parse_single(url),
        }
    }

    /// Parses what follows the scheme of a cluster's URL.
    fn parse_cluster(rest: &str) -> Result<Self, Error> {
        let (credentials, places) = match rest.rsplit_once('@') {
            Some((credentials, places)) => (format!("{credentials}@"), places),
            None => (String::new(), rest),
        };
        let (hosts, path) = places.split_once('/').unwrap_or((places, ""));
        let urls: Vec<String> = hosts
            .split(',')
            .map(|host| format!("redis://{credentials}{}/{path}", host.trim()))
            .collect();
        Self::of_cluster(urls)
    }

    /// A cluster, of which the URLs name some nodes. Who asks stands in the first.
    pub(crate) fn of_cluster(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Error> {
        let mut seeds = Vec::new();
        let mut access: Option<Access> = None;
        for url in urls {
            let Self { place: Place::Single(address), access: own } = Self::parse_single(url.as_ref())?
            else {
                continue;
            };
            if own.database != 0 {
                return Err(Error::InvalidUrl { reason: "a cluster has only database 0".to_owned() });
            }
            if !seeds.contains(&address) {
                seeds.push(address);
            }
            let first = access.get_or_insert_with(|| own.clone());
            if own.password.is_some() && !first.is_the_same(&own) {
                return Err(Error::InvalidUrl {
                    reason: "the nodes of a cluster have one user and password".to_owned(),
                });
            }
        }
        match access {
            Some(access) => Ok(Self { place: Place::Cluster(seeds), access }),
            None => Err(Error::InvalidUrl { reason: "a cluster needs a node to ask".to_owned() }),
        }
    }

    fn parse_single(url: &str) -> Result<Self, Error> {
        // The crate's message is not passed on: it may hold a piece of the URL, and so of the password.
        let info = url.into_connection_info().map_err(|_| Error::InvalidUrl {
            reason: "it is not of the form redis://[user][:password@]host[:port][/database], or \
                     redis-cluster://[user][:password@]host:port[,host:port..]"
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
        };
        Ok(Self { place: Place::Single(Address { host, port: *port }), access })
    }

    /// Where the keys are, as text: two that say the same mean the same.
    pub(crate) fn identity(&self) -> String {
        let database = self.access.database;
        match &self.place {
            Place::Single(address) => format!("{}:{}/{database}", address.host, address.port),
            Place::Cluster(seeds) => {
                let mut seeds: Vec<String> = seeds.iter().map(Address::to_string).collect();
                seeds.sort();
                format!("{}/{database}", seeds.join(","))
            }
        }
    }
}

impl Address {
    /// Another server, which this one has named. Without a host it is beside this one.
    pub(super) fn beside(&self, host: &str, port: u16) -> Self {
        // A question mark is the host of a node that should have a name and has none.
        let host = if host.is_empty() || host == "?" { &self.host } else { host };
        Self { host: host.to_owned(), port }
    }
}

impl Access {
    fn is_the_same(&self, other: &Self) -> bool {
        self.username == other.username && self.password == other.password
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
            let Place::Single(address) = Location::parse(url).unwrap().place else { panic!("{url}") };
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
    fn a_clusters_url_gives_its_nodes_and_who_asks() {
        let location =
            Location::parse("redis-cluster://ann:s3cret@a:7000,[::1]:7001,b.example.org,a:7000").unwrap();
        let Place::Cluster(seeds) = &location.place else { panic!("{location:?}") };
        let seeds: Vec<String> = seeds.iter().map(Address::to_string).collect();
        assert_eq!(seeds, ["a:7000", "[::1]:7001", "b.example.org:6379"]);
        assert_eq!(location.access.username.as_deref(), Some("ann"));
        assert_eq!(location.access.password.as_deref(), Some("s3cret"));
        let turned = Location::parse("valkey-cluster://[::1]:7001,b.example.org,a:7000/").unwrap();
        assert_eq!(turned.identity(), location.identity());
        let urls = ["redis://:s3cret@a:7000", "redis://b:7000/0"];
        assert!(Location::of_cluster(urls).is_ok());
    }

    #[test]
    fn what_cannot_be_a_cluster_is_an_error_that_says_why() {
        let why = |location: Result<Location, Error>| match location {
            Err(Error::InvalidUrl { reason }) => reason,
            other => panic!("{other:?}"),
        };
        let of = |urls: &[&str]| why(Location::of_cluster(urls));
        assert!(why(Location::parse("redis-cluster://a:1,b:2/3")).contains("database 0"));
        assert!(of(&["redis://a", "redis://b/1"]).contains("database 0"));
        assert!(of(&["redis://:x@a", "redis://:y@b"]).contains("one user"));
        assert!(of(&[]).contains("a node"));
        for wrong in ["redis-cluster://", "redis-cluster://a:1,,b:2", "redis-cluster://a:x"] {
            assert!(why(Location::parse(wrong)).contains("form"), "{wrong}");
        }
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
