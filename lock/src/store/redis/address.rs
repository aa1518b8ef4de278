//! Where a server is and who asks: a parsed URL.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};

#[cfg(feature = "tls")]
use super::trust::Trust;
use crate::config::ReplicaAcks;
use crate::credentials::{Credentials, CredentialsSource};
use crate::error::Error;
#[cfg(feature = "tls")]
use crate::tls_settings::TlsSettings;

/// What a URL says: where the keys are, and who asks for them.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(super) place: Place,
    pub(super) access: Access,
    /// Whether TLS is asked for. `None` if nothing was said of it.
    #[cfg(feature = "tls")]
    pub(super) encrypted: Option<bool>,
}

/// Where the keys are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// On one server.
    Single(Address),
    /// On one server of this host.
    #[cfg(unix)]
    Unix(PathBuf),
    /// On the master of a name, which sentinels know.
    Master { name: String, sentinels: Vec<Address>, sentinel_access: Access },
    /// In the slots of a cluster, of which these nodes know.
    Cluster(Vec<Address>),
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

/// Which database, who asks, whom he believes, and which replicas have to hear of what is granted. `Debug` leaves the
/// password out.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// Asked at each connect, instead of the password.
    pub(super) credentials: Option<CredentialsSource>,
    /// If TLS is spoken.
    #[cfg(feature = "tls")]
    pub(super) trust: Option<Trust>,
    pub(super) replica_acks: Option<ReplicaAcks>,
}

/// Where a sentinel listens unless it is told otherwise.
const SENTINEL_PORT: u16 = 26379;

impl Location {
    /// Parses `redis://[user][:password@]host[:port][/database]` or
    /// `redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database]` or
    /// `redis-cluster://[user][:password@]host:port[,host:port..]`, or the same with `valkey` for `redis`; with `rediss` or `valkeys` over TLS. Or `unix:///path[?db=database&user=user&pass=password]`.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let (url, encrypted) = without_tls(url);
        if encrypted && cfg!(not(feature = "tls")) {
            return Err(invalid("TLS needs the cargo feature `tls` of wheellock"));
        }
        let location = match url.split_once("://") {
            Some(("redis-sentinel" | "valkey-sentinel", rest)) => Self::parse_sentinels(rest)?,
            Some(("redis-cluster" | "valkey-cluster", rest)) => Self::parse_cluster(rest)?,
            _ => Self::parse_single(&url)?,
        };
        Ok(Self {
            #[cfg(feature = "tls")]
            encrypted: Some(encrypted),
            ..location
        })
    }

    /// The master `name`, as these sentinels, `host` or `host:port`, know it.
    pub(crate) fn of_master(name: &str, sentinels: &[&str]) -> Result<Self, Error> {
        Self::behind_sentinels("", sentinels, name, "0")
    }

    /// Who asks the sentinels. False if there are none.
    pub(crate) fn set_sentinel_access(&mut self, access: Access) -> bool {
        match &mut self.place {
            Place::Single(_) | Place::Cluster(_) => false,
            #[cfg(unix)]
            Place::Unix(_) => false,
            Place::Master { sentinel_access, .. } => {
                *sentinel_access = access;
                true
            }
        }
    }

    fn parse_sentinels(rest: &str) -> Result<Self, Error> {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        let hosts: Vec<&str> = hosts.split(',').collect();
        Self::behind_sentinels(&user, &hosts, name, database)
    }

    fn behind_sentinels(
        user: &str,
        hosts: &[&str],
        name: &str,
        database: &str,
    ) -> Result<Self, Error> {
        // Nothing of the URL is repeated in these texts: a password in the wrong place would stand in them.
        let wrong = |reason: &str| Error::InvalidUrl { reason: reason.to_owned() };
        // What a sentinel's own configuration allows.
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if name.is_empty() || !name.chars().all(is_letter) {
            return Err(wrong(
                "it is not of the form redis-sentinel://[user][:password@]host[:port][,..]/master[/database], \
                 with a master's name of letters, digits, dots, dashes and underscores",
            ));
        }
        if !database.chars().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong("its database is not a number"));
        }
        let (mut sentinels, mut access) = (Vec::new(), None);
        for host in hosts {
            let is_plain = |letter: char| !letter.is_whitespace() && !"@/?#".contains(letter);
            if host.is_empty() || !host.chars().all(is_plain) {
                return Err(wrong("one of its sentinels is not of the form host[:port]"));
            }
            // A port follows the last colon, and in an IPv6 address the bracket.
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
            let one = Self::parse_single(&format!("redis://{user}{host}{port}/{database}"))
                .map_err(|_| {
                    wrong("one of its sentinels, or its user and password, cannot be read")
                })?;
            if let Place::Single(address) = one.place
                && !sentinels.contains(&address)
            {
                sentinels.push(address);
            }
            access = Some(one.access);
        }
        let access = access.ok_or_else(|| wrong("it names no sentinel"))?;
        let (name, sentinel_access) = (name.to_owned(), Access::default());
        Ok(Self::new(Place::Master { name, sentinels, sentinel_access }, access))
    }

    pub(super) fn parse_single(url: &str) -> Result<Self, Error> {
        // The crate's message is not passed on: it may hold a piece of the URL, and so of the password.
        let url = redis::parse_redis_url(url).ok_or_else(|| invalid(FORM))?;
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
            ..Access::default()
        };
        Ok(Self::new(place, access))
    }

    fn new(place: Place, access: Access) -> Self {
        Self {
            place,
            access,
            #[cfg(feature = "tls")]
            encrypted: None,
        }
    }

    /// From now on, whoever connects asks for his credentials. Not so at sentinels, which have others.
    pub(crate) fn ask_for_credentials(&mut self, source: CredentialsSource) {
        self.access.credentials = Some(source);
    }

    /// Reads the certificates, if TLS is asked for: by the URL, or, where there is none, by settings for it.
    #[cfg(feature = "tls")]
    pub(crate) fn secure(&mut self, settings: Option<&TlsSettings>) -> Result<(), Error> {
        if self.encrypted.unwrap_or(settings.is_some()) {
            let default = TlsSettings::default();
            let trust = Trust::new(settings.unwrap_or(&default))?;
            if let Place::Master { sentinel_access, .. } = &mut self.place {
                sentinel_access.trust = Some(trust.clone());
            }
            self.access.trust = Some(trust);
        } else if settings.is_some() {
            // Else he who wanted TLS would not have it, and not notice.
            return Err(Error::InvalidSetting {
                setting: "tls",
                reason: "the URL asks for none: it would begin with rediss://".to_owned(),
            });
        }
        Ok(())
    }

    /// From now on, so many replicas have to hear of what is granted.
    pub(crate) fn ask_replicas(&mut self, acks: ReplicaAcks) {
        self.access.replica_acks = Some(acks);
    }

    /// Where the keys are, as text: two that say the same mean the same.
    pub(crate) fn identity(&self) -> String {
        let database = self.access.database;
        match &self.place {
            Place::Single(address) => format!("{}:{}/{database}", address.host, address.port),
            #[cfg(unix)]
            Place::Unix(path) => format!("{}/{database}", path.display()),
            Place::Master { name, sentinels, .. } => {
                let mut sentinels: Vec<String> = sentinels.iter().map(Address::to_string).collect();
                sentinels.sort();
                format!("{name}@{}/{database}", sentinels.join(","))
            }
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
    /// Somebody who has that password.
    pub(crate) fn new(username: Option<&str>, password: &str) -> Self {
        let username = username.map(str::to_owned);
        Self { username, password: Some(password.to_owned()), ..Self::default() }
    }

    /// What the URL or the builder says of who asks, if there is a password.
    pub(super) fn given(&self) -> Option<Credentials> {
        let password = self.password.clone()?;
        Some(Credentials { username: self.username.clone(), password })
    }
}

const FORM: &str = "it is not of the form redis://[user][:password@]host[:port][/database], \
                    or unix:///path[?db=database&user=user&pass=password]";

const INSECURE: &str = "#insecure is refused: whom a client does not look at may be anybody; \
                        name the authority of the server's certificate (TlsSettings)";

fn invalid(reason: &str) -> Error {
    Error::InvalidUrl { reason: reason.to_owned() }
}

/// The same URL without TLS, and whether it asks for it: by an `s` behind `redis` or `valkey`.
fn without_tls(url: &str) -> (String, bool) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), false) };
    let scheme = scheme.to_ascii_lowercase();
    let (name, kind) =
        scheme.split_once('-').map_or((&*scheme, ""), |(name, _)| scheme.split_at(name.len()));
    match name {
        "rediss" | "valkeys" => (format!("{}{kind}://{rest}", &name[..name.len() - 1]), true),
        _ => (format!("{scheme}://{rest}"), false),
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
            other => panic!("{other:?}"),
        };
        assert_eq!(server("redis://ann:s3cret@example.org:7000/3"), "example.org:7000");
        assert_eq!(server("redis://[::1]:7000"), "[::1]:7000");
        let access = Location::parse("redis://ann:s3cret@example.org:7000/3").unwrap().access;
        assert_eq!(access.database, 3);
        assert_eq!(access.username.as_deref(), Some("ann"));
        assert_eq!(access.password.as_deref(), Some("s3cret"));
    }

    #[test]
    fn a_sentinel_url_gives_a_name_the_sentinels_and_the_credentials_of_the_master() {
        let url = "redis-sentinel://ann:s%40cret@one.example.org,[::1]:7000,10.0.0.1:7001,[::2]/my-master.1/3";
        let location = Location::parse(url).unwrap();
        let Place::Master { name, sentinels, sentinel_access } = &location.place else { panic!() };
        let sentinels: Vec<String> = sentinels.iter().map(Address::to_string).collect();
        assert_eq!(name, "my-master.1");
        let known = ["one.example.org:26379", "[::1]:7000", "10.0.0.1:7001", "[::2]:26379"];
        assert_eq!(sentinels, known);
        assert_eq!(location.access.database, 3);
        assert_eq!(location.access.username.as_deref(), Some("ann"));
        assert_eq!(location.access.password.as_deref(), Some("s@cret"));
        assert_eq!(sentinel_access.password, None);
    }

    #[test]
    fn the_order_of_the_sentinels_does_not_matter_and_one_counts_once() {
        let identity = |url: &str| Location::parse(url).unwrap().identity();
        let one = identity("redis-sentinel://a,b:1/mymaster");
        assert_eq!(one, identity("valkey-sentinel://:secret@b:1,a,a:26379/mymaster/0"));
        assert_eq!(one, Location::of_master("mymaster", &["b:1", "a"]).unwrap().identity());
        assert_ne!(one, identity("redis-sentinel://a,b:1/other"));
        assert_ne!(one, identity("redis-sentinel://a,b:1/mymaster/1"));
        assert_ne!(one, identity("redis-sentinel://a,b:2/mymaster"));
    }

    #[test]
    fn a_sentinel_url_that_is_wrong_is_refused_without_its_password() {
        for wrong in [
            "redis-sentinel://",
            "redis-sentinel:///mymaster",
            "redis-sentinel://:s3cret@/mymaster",
            "redis-sentinel://:s3cret@a",
            "redis-sentinel://:s3cret@a/",
            "redis-sentinel://:s3cret@a//0",
            "redis-sentinel://:s3cret@a/my master",
            "redis-sentinel://:s3cret@a/mymaster/x",
            "redis-sentinel://:s3cret@a/mymaster/-1",
            "redis-sentinel://:s3cret@a/mymaster/0/1",
            "redis-sentinel://:s3cret@a/mymaster?x=1",
            "redis-sentinel://:s3cret@a/mymaster/0?x=1",
            "redis-sentinel://:s3cret@a/mymaster/99999999999999999999",
            "redis-sentinel://:s3cret@a,/mymaster",
            "redis-sentinel://:s3cret@a,,b/mymaster",
            "redis-sentinel://:s3cret@a:99999/mymaster",
            "redis-sentinel://:s3cret@a:x/mymaster",
            "redis-sentinel://:s3cret@a b/mymaster",
            "redis-sentinel://:s3cret/x@a/mymaster",
            "rediss-sentinel://:s3cret@a",
        ] {
            match Location::parse(wrong) {
                Err(error @ Error::InvalidUrl { .. }) => {
                    assert!(!error.to_string().contains("s3cret"), "{error}");
                }
                other => panic!("{wrong}: {other:?}"),
            }
        }
        for (name, sentinels) in
            [("", vec!["a"]), ("mymaster", vec![]), ("mymaster", vec!["u:s3cret@a"])]
        {
            let error = Location::of_master(name, &sentinels).unwrap_err();
            assert!(matches!(error, Error::InvalidUrl { .. }), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn no_message_holds_the_password() {
        let location = Location::parse("redis://:s3cret@example.org").unwrap();
        assert!(!format!("{location:?} {}", location.identity()).contains("s3cret"));
        for wrong in ["redis://:s3cret@host:99999/", "s3cret", "rediss://:s3cret@host/x", ""] {
            let error = Location::parse(wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidUrl { .. }));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
