//! A parsed URL: the address of a server, and the credentials for it.

#[cfg(unix)]
use std::ffi::OsString;
use std::fmt;
use std::net::Ipv6Addr;
#[cfg(unix)]
use std::os::unix::ffi::OsStringExt;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
#[cfg(feature = "redis")]
use redis::ConnectionAddr;

use crate::error::Error;
use crate::model::settings::ReplicaAcks;
use crate::store::redis::address::credentials::{Credentials, CredentialsSource};
#[cfg(feature = "tls")]
use crate::store::redis::address::tls_config::TlsConfig;
#[cfg(feature = "tls")]
use crate::store::redis::address::tls_settings::TlsSettings;

/// Where the keys are, and how to get access to them.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) place: Place,
    pub(crate) access: Access,
    /// Whether the URL requests TLS. `None` without a URL.
    #[cfg(feature = "tls")]
    pub(crate) encrypted: Option<bool>,
}

/// The servers that have the keys.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// One server.
    Single(Address),
    /// One server of this host, at the path of its unix socket.
    #[cfg(unix)]
    Unix(PathBuf),
    /// The master `name`, as reported by the sentinels.
    Master { name: String, sentinels: Vec<Address>, sentinel_access: Access },
    /// A cluster, described by these nodes.
    Cluster(Vec<Address>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The other end of a socket.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Tcp(Address),
    #[cfg(unix)]
    Unix(PathBuf),
}

/// Settings of each connection: database, credentials, TLS, required replica acknowledgements and
/// name. `Debug` omits the password.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) database: i64,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// Called at each connect, in place of the password.
    pub(crate) credentials: Option<CredentialsSource>,
    /// Connects with TLS if `Some`.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    /// The name of each connection, for `CLIENT LIST`. Contains only characters that a server
    /// accepts.
    pub(crate) connection_name: Option<Arc<str>>,
}

/// The default port of a server.
const PORT: u16 = 6379;
/// The default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

/// The longest host that a server can announce, in bytes.
const MAX_HOST_LENGTH: usize = 255;

impl Location {
    /// Parses a URL of one of these forms:
    ///
    /// * `redis://[user][:password@]host[:port][/database]`
    /// * `redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database]`
    /// * `redis-cluster://[user][:password@]host:port[,host:port..]`
    /// * `unix:///path[?db=database&user=user&pass=password]`
    ///
    /// `valkey` may replace `redis`. `rediss` and `valkeys` request TLS.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        // A copied line end, perhaps at the end of a password.
        if url.contains(|letter: char| letter.is_ascii_control()) {
            return Err(invalid_form(
                "it has a control character, which is written as %0A or alike",
            ));
        }
        let (url, encrypted) = without_tls(url);
        if encrypted && cfg!(not(feature = "tls")) {
            return Err(invalid(NO_TLS));
        }
        let location = match url.split_once("://") {
            Some(("redis-sentinel" | "valkey-sentinel", rest)) => {
                Self::parse_sentinels(without_parameters(rest)?)?
            }
            Some(("redis-cluster" | "valkey-cluster", rest)) => {
                Self::parse_cluster(without_parameters(rest)?)?
            }
            _ => Self::parse_single(&url)?,
        };
        Ok(Self {
            #[cfg(feature = "tls")]
            encrypted: Some(encrypted),
            ..location
        })
    }

    /// Returns the location of master `name` behind these sentinels, each `host` or `host:port`.
    pub(crate) fn of_master(name: &str, sentinels: &[&str]) -> Result<Self, Error> {
        Self::behind_sentinels("", sentinels, name, "0")
    }

    /// Sets the credentials for the sentinels. Returns `false` without sentinels.
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

    /// Parses the rest of a URL with sentinels, after its scheme.
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

    /// Returns the location of master `name` behind the sentinels `hosts`. `user` is empty, or the
    /// credentials with the final `@`.
    fn behind_sentinels(
        user: &str,
        hosts: &[&str],
        name: &str,
        database: &str,
    ) -> Result<Self, Error> {
        // The messages repeat no part of the URL: a password may be in the wrong place.
        let wrong = |reason: &str| Error::InvalidUrl { reason: reason.to_owned() };
        // The characters that a sentinel's configuration allows.
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
        if name.is_empty() || !name.chars().all(is_letter) {
            return Err(wrong(
                "it is not of the form redis-sentinel://[user][:password@]host[:port][,..]/master[/database], \
                 with a master's name of letters, digits, dots, dashes and underscores",
            ));
        }
        parse_database(database)?;
        let (mut sentinels, mut access) = (Vec::new(), None);
        for host in hosts {
            let is_plain = |letter: char| !letter.is_whitespace() && !"@/?#".contains(letter);
            if host.is_empty() || !host.chars().all(is_plain) {
                return Err(wrong("one of its sentinels is not of the form host[:port]"));
            }
            // A port follows the last colon, but in an IPv6 address the bracket.
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
            let one = Self::parse_single(&format!("redis://{user}{host}{port}/{database}"))?;
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

    /// Parses the URL of one server. The scheme must not request TLS.
    pub(crate) fn parse_single(url: &str) -> Result<Self, Error> {
        match url.split_once("://") {
            Some(("redis" | "valkey", rest)) => Self::parse_tcp(rest),
            Some(("unix" | "redis+unix" | "valkey+unix", rest)) => Self::parse_unix(rest),
            Some(_) => Err(invalid_form("its scheme is not known")),
            None => Err(invalid_form("it has no scheme")),
        }
    }

    /// Parses `[user][:password@]host[:port][/database]`.
    fn parse_tcp(rest: &str) -> Result<Self, Error> {
        let rest = without_parameters(rest)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let address = parse_address(place)?;
        let (username, password) = user.split_once(':').unwrap_or((user, ""));
        let access = Access {
            database: parse_database(path.trim_matches('/'))?,
            username: decode(username)?,
            password: decode(password)?,
            ..Access::default()
        };
        Ok(Self::new(Place::Single(address), access))
    }

    /// Parses `/path[?db=database&user=user&pass=password]`.
    #[cfg(unix)]
    fn parse_unix(rest: &str) -> Result<Self, Error> {
        let (path, query) = split_query(rest)?;
        if !path.starts_with('/') || path == "/" {
            return Err(invalid_form("it names no path"));
        }
        let (mut access, mut has_password) = (Access::default(), false);
        for parameter in parameters(query) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            // A plus means a space, as in the query of a web page.
            let value = value.replace('+', " ");
            match name {
                "db" => access.database = parse_database(&value)?,
                "user" => access.username = decode(&value)?,
                "pass" => (access.password, has_password) = (decode(&value)?, true),
                _ => {
                    let known =
                        "a unix socket's query has `db`, `user` and `pass`, and nothing else";
                    // The rest of a password may follow an `&` not written as `%26`.
                    return Err(unknown(Some(parameter).filter(|_| !has_password), known));
                }
            }
        }
        let path = OsString::from_vec(percent_decode_str(path).collect());
        Ok(Self::new(Place::Unix(path.into()), access))
    }

    #[cfg(not(unix))]
    fn parse_unix(_rest: &str) -> Result<Self, Error> {
        Err(invalid("this platform has no unix sockets"))
    }

    /// Converts a connection of the redis crate into the server, the database and the credentials.
    #[cfg(feature = "redis")]
    pub(crate) fn of_connection(info: impl redis::IntoConnectionInfo) -> Result<Self, Error> {
        // Omit the crate's message, which may contain a part of the password.
        let info = info
            .into_connection_info()
            .map_err(|_| invalid("the redis crate does not accept the connection"))?;
        let tcp = |host: &str, port| {
            // The redis crate retains the brackets around an IPv6 address.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let address = Address::named(host, port).filter(|_| port > 0);
            address.map(Place::Single).ok_or_else(|| invalid("the host or the port is not valid"))
        };
        let place = match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => return Err(invalid(INSECURE)),
            ConnectionAddr::TcpTls { .. } if cfg!(not(feature = "tls")) => {
                return Err(invalid(NO_TLS));
            }
            ConnectionAddr::TcpTls { tls_params: Some(_), .. } => {
                return Err(invalid("certificates are given by ClientBuilder::tls"));
            }
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                tcp(host, *port)?
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(invalid("this kind of connection is not supported")),
        };
        let settings = info.redis_settings();
        if settings.db() < 0 {
            return Err(invalid("its database is negative"));
        }
        let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let access = Access {
            database: settings.db(),
            username: given(settings.username()),
            password: given(settings.password()),
            ..Access::default()
        };
        Ok(Self {
            #[cfg(feature = "tls")]
            encrypted: Some(matches!(info.addr(), ConnectionAddr::TcpTls { .. })),
            ..Self::new(place, access)
        })
    }

    fn new(place: Place, access: Access) -> Self {
        Self {
            place,
            access,
            #[cfg(feature = "tls")]
            encrypted: None,
        }
    }

    /// Sets the callback for credentials. Sentinels have separate credentials.
    pub(crate) fn ask_for_credentials(&mut self, source: CredentialsSource) {
        self.access.credentials = Some(source);
    }

    /// Reads the certificates if TLS is requested by the URL or, without a URL, by `settings`.
    /// Fails if the URL requests no TLS and there are `settings`.
    #[cfg(feature = "tls")]
    pub(crate) fn secure(&mut self, settings: Option<&TlsSettings>) -> Result<(), Error> {
        if self.encrypted.unwrap_or(settings.is_some()) {
            let default = TlsSettings::default();
            let tls = TlsConfig::new(settings.unwrap_or(&default))?;
            if let Place::Master { sentinel_access, .. } = &mut self.place {
                sentinel_access.tls = Some(tls.clone());
            }
            self.access.tls = Some(tls);
        } else if settings.is_some() {
            // Ignoring the settings would connect without TLS, unnoticed.
            let reason = "the URL does not ask for TLS: begin it with rediss://";
            return Err(Error::invalid_setting("tls", reason));
        }
        Ok(())
    }

    /// Sets how many replicas have to acknowledge a grant.
    pub(crate) fn ask_replicas(&mut self, acks: ReplicaAcks) {
        self.access.replica_acks = Some(acks);
    }

    /// Sets the name of the connections to `wheellock:LABEL`. A server accepts printable ASCII
    /// without spaces, so `_` replaces all other characters.
    pub(crate) fn name_connections(&mut self, label: &str) {
        let accepted = |letter: char| if letter.is_ascii_graphic() { letter } else { '_' };
        let label: String = label.chars().map(accepted).collect();
        self.access.connection_name = Some(format!("wheellock:{label}").into());
    }

    /// Returns a text identifying the keys: equal for locations of the same keys.
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
    /// Returns an address named by a server. `None` unless the host has 1 to 255 bytes of visible
    /// ASCII, because errors and logs repeat the host.
    pub(crate) fn named(host: &str, port: u16) -> Option<Self> {
        let is_host = (1..=MAX_HOST_LENGTH).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_graphic());
        is_host.then(|| Self { host: host.to_owned(), port })
    }

    /// Returns the address of another server, named by the server at `self`. Without a host, both
    /// servers are on the same host. `None` if the host is invalid.
    pub(crate) fn beside(&self, host: &str, port: u16) -> Option<Self> {
        // A node without its configured host name reports a question mark.
        if host.is_empty() || host == "?" {
            return Some(Self { host: self.host.clone(), port });
        }
        Self::named(host, port)
    }
}

impl Access {
    /// Creates the access with a user and a password.
    pub(crate) fn new(username: Option<&str>, password: &str) -> Self {
        let username = username.map(str::to_owned);
        Self { username, password: Some(password.to_owned()), ..Self::default() }
    }

    /// Returns an error for a user without a password: nothing would be sent, and the server would
    /// use its default user.
    pub(crate) fn check_user(&self) -> Result<(), Error> {
        if self.username.is_some() && self.password.is_none() && self.credentials.is_none() {
            return Err(invalid(
                "it has a user and no password: write user:password@, or :password@ without a \
                 user, or give the password by ClientBuilder::credentials",
            ));
        }
        Ok(())
    }

    /// Returns the credentials of the URL or the builder, if there is a password.
    pub(crate) fn fixed_credentials(&self) -> Option<Credentials> {
        let password = self.password.clone()?;
        Some(Credentials { username: self.username.clone(), password })
    }
}

/// The forms of a URL.
const FORMS: &str = "redis://[user][:password@]host[:port][/database], \
                     redis-sentinel://[user][:password@]host[:port][,host[:port]..]/master[/database], \
                     redis-cluster://[user][:password@]host:port[,host:port..], \
                     unix:///path[?db=database&user=user&pass=password], redis+unix:// for the last; \
                     with valkey for redis, and with rediss or valkeys for TLS";

/// The error for a URL that requests TLS without the cargo feature.
const NO_TLS: &str = "TLS needs the cargo feature `tls` of wheellock";

/// The error for the fragment `#insecure`, which other clients take as a request to skip
/// verification.
const INSECURE: &str = "#insecure is refused: an unverified server cannot be trusted; \
                        name the authority of the server's certificate (TlsSettings)";

/// Returns the error for an invalid URL.
pub(crate) fn invalid(reason: &str) -> Error {
    Error::InvalidUrl { reason: reason.to_owned() }
}

/// Returns the error for an invalid URL, with the valid forms. The text repeats no part of the URL,
/// which may be a part of the password.
fn invalid_form(reason: &str) -> Error {
    invalid(&format!("{reason}; a URL is one of: {FORMS}"))
}

/// Returns the part before the query. Fails if the query has a parameter.
fn without_parameters(rest: &str) -> Result<&str, Error> {
    let (place, query) = split_query(rest)?;
    match parameters(query).next() {
        Some(parameter) => Err(unknown(
            Some(parameter).filter(|_| !query.contains('@')),
            "a URL of this scheme has no parameters, as settings are methods of the ClientBuilder",
        )),
        None => Ok(place),
    }
}

/// Splits `rest` at the question mark into the part before and the query. Fails if there is a
/// fragment.
fn split_query(rest: &str) -> Result<(&str, &str), Error> {
    let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, it)| (rest, Some(it)));
    match fragment {
        None => Ok(rest.split_once('?').unwrap_or((rest, ""))),
        // Other clients skip verification for this fragment.
        Some("insecure") => Err(invalid(INSECURE)),
        Some(_) => Err(invalid("it has a fragment; a # in a password is written as %23")),
    }
}

/// Returns the parameters of a query, without empty parameters.
fn parameters(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|parameter| !parameter.is_empty())
}

/// Returns the error for an unknown parameter. `parameter` is `None` if the text may be a part of a
/// password. `known` says which parameters are known.
fn unknown(parameter: Option<&str>, known: &str) -> Error {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || "-_".contains(letter);
    let name = parameter.and_then(|parameter| parameter.split_once('=')).map(|(name, _)| name);
    match name.filter(|name| (1..=32).contains(&name.len()) && name.chars().all(is_letter)) {
        Some(name) => invalid(&format!("the parameter `{name}` is not known: {known}")),
        None => invalid(&format!(
            "what follows the ? is not known: {known}; in a password a ? is written as %3F, \
             and a & as %26"
        )),
    }
}

/// Parses `host[:port]`.
fn parse_address(place: &str) -> Result<Address, Error> {
    // A port follows the last colon, but in an IPv6 address the bracket.
    let port = place.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
    let (host, port) = port.unwrap_or((place, ""));
    let port = match port {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
            invalid_form(
                "its port is not a number from 1 to 65535 (a / in a password is written as %2F)",
            )
        })?,
    };
    if host.is_empty() {
        return Err(invalid_form("it names no host"));
    }
    let is_letter = |letter: char| !r"%:<>[\]^|".contains(letter);
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse().ok().map(|ip: Ipv6Addr| Address { host: ip.to_string(), port }),
        None => Address::named(host, port).filter(|_| host.chars().all(is_letter)),
    };
    address.ok_or_else(|| invalid_form("its host is not a name or an IP address"))
}

/// Parses the number of a database. An empty text means database 0.
fn parse_database(database: &str) -> Result<i64, Error> {
    let is_number = database.chars().all(|digit| digit.is_ascii_digit());
    match database {
        "" => Some(0),
        database => database.parse().ok().filter(|_| is_number),
    }
    .ok_or_else(|| invalid_form("its database is not a number"))
}

/// Decodes the percent signs of a user or a password. Returns `None` for an empty text.
fn decode(text: &str) -> Result<Option<String>, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| invalid("its user or its password is not UTF-8"))?;
    Ok(Some(decoded.into_owned()).filter(|text| !text.is_empty()))
}

/// Returns the URL with a scheme without TLS. The second value is `true` if the URL requests TLS,
/// by an `s` after `redis` or `valkey`.
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
    use proptest::prelude::*;
    use redis::{ConnectionAddr, IntoConnectionInfo};

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
    fn sentinel_url_gives_master_name_sentinels_and_credentials() {
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
    fn the_order_of_sentinels_and_duplicates_do_not_matter() {
        let identity = |url: &str| Location::parse(url).unwrap().identity();
        let one = identity("redis-sentinel://a,b:1/mymaster");
        assert_eq!(one, identity("valkey-sentinel://:secret@b:1,a,a:26379/mymaster/0"));
        assert_eq!(one, Location::of_master("mymaster", &["b:1", "a"]).unwrap().identity());
        assert_ne!(one, identity("redis-sentinel://a,b:1/other"));
        assert_ne!(one, identity("redis-sentinel://a,b:1/mymaster/1"));
        assert_ne!(one, identity("redis-sentinel://a,b:2/mymaster"));
    }

    #[test]
    fn invalid_sentinel_url_error_omits_the_password() {
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
    fn no_message_contains_the_password() {
        let location = Location::parse("redis://:s3cret@example.org").unwrap();
        assert!(!format!("{location:?} {}", location.identity()).contains("s3cret"));
        for wrong in ["redis://:s3cret@host:99999/", "s3cret", "rediss://:s3cret@host/x", ""] {
            let error = Location::parse(wrong).unwrap_err();
            assert!(matches!(error, Error::InvalidUrl { .. }));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn error_for_an_ampersand_in_a_password_omits_the_password() {
        let error = |url: &str| Location::parse(url).unwrap_err().to_string();
        for rest in ["secret", "secret=x", "user=ann&secret=x"] {
            let error = error(&format!("unix:///run/lock.sock?pass=my&{rest}"));
            assert!(!error.contains("secret") && error.contains("%26"), "{error}");
        }
        assert!(error("unix:///run/lock.sock?password=my&secret=x").contains("`password`"));
    }

    #[test]
    fn a_user_needs_a_password_or_a_callback_that_gives_one() {
        let checked = |url: &str| Location::parse(url).unwrap().access.check_user();
        for wrong in ["redis://s3cret@a", "redis://s3cret:@a", "unix:///run/lock.sock?user=s3cret"]
        {
            let error = checked(wrong).unwrap_err().to_string();
            assert!(error.contains("no password") && !error.contains("s3cret"), "{error}");
        }
        for right in ["redis://a", "redis://:s3cret@a", "redis://ann:s3cret@a"] {
            assert_eq!(checked(right), Ok(()), "{right}");
        }
        let mut location = Location::parse("redis-cluster://ann@a").unwrap();
        let source = CredentialsSource::new(|| Ok(Credentials::password("s3cret")));
        location.ask_for_credentials(source);
        assert_eq!(location.access.check_user(), Ok(()));
    }

    #[test]
    fn a_password_is_never_shortened() {
        for control in ["\t", "\n", "\r", "\0"] {
            let error = Location::parse(&format!("redis://:s3{control}cret@a")).unwrap_err();
            assert!(error.to_string().contains("control character"), "{error}");
        }
        let location = Location::parse("redis://:s3%09%0Acret@a").unwrap();
        assert_eq!(location.access.password.as_deref(), Some("s3\t\ncret"));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_connection_of_the_redis_crate_gives_what_its_url_gives() {
        for url in [
            "redis://ann:s%40cret@example.org:7000/3",
            "redis://[::1]",
            "valkey://:s3cret@a",
            "unix:///run/lock.sock?db=2&user=ann&pass=s%26+cret",
        ] {
            let (ours, theirs) = (Location::parse(url), Location::of_connection(url));
            let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
            assert_eq!(ours.identity(), theirs.identity());
            assert_eq!(ours.access.username, theirs.access.username, "{url}");
            assert_eq!(ours.access.password, theirs.access.password, "{url}");
        }
        let refused = |connection: ConnectionAddr| {
            let info = connection.into_connection_info().unwrap();
            match Location::of_connection(info) {
                Err(Error::InvalidUrl { reason }) => reason,
                other => panic!("{other:?}"),
            }
        };
        let tls = |insecure| ConnectionAddr::TcpTls {
            host: "a".to_owned(),
            port: 1,
            insecure,
            tls_params: None,
        };
        assert!(refused(tls(true)).contains("insecure"));
        assert!(refused(ConnectionAddr::Tcp("a b".to_owned(), 1)).contains("host"));
        assert!(refused(ConnectionAddr::Tcp("a".to_owned(), 0)).contains("port"));
        #[cfg(not(feature = "tls"))]
        assert!(refused(tls(false)).contains("feature"));
        #[cfg(feature = "tls")]
        {
            let info = tls(false).into_connection_info().unwrap();
            assert_eq!(Location::of_connection(info).unwrap().encrypted, Some(true));
        }
        let error = Location::of_connection("http://:s3cret@a").unwrap_err().to_string();
        assert!(!error.contains("s3cret"), "{error}");
    }

    proptest! {
        #[test]
        fn a_url_is_parsed_as_by_the_redis_crate(
            scheme in "redis|valkey",
            user in "([a-z%0-9.]{0,6}:)?",
            password in "([a-zA-Z0-9%+=:!.-]{0,8}@)?",
            host in "[a-z][a-z0-9.-]{0,8}|\\[::1\\]|10\\.0\\.0\\.1|\\[0:0::2\\]",
            port in "(:[0-9]{1,6})?",
            path in "(/[0-9]{0,3}/?)?",
        ) {
            let user = if password.is_empty() { String::new() } else { user };
            let url = format!("{scheme}://{user}{password}{host}{port}{path}");
            let theirs = redis::parse_redis_url(&url)
                .and_then(|url| url.into_connection_info().ok());
            match (Location::parse(&url), theirs) {
                (Ok(ours), Some(theirs)) => {
                    let ConnectionAddr::Tcp(host, port) = theirs.addr() else { panic!() };
                    let host = host.trim_matches(['[', ']']).to_owned();
                    let Place::Single(address) = &ours.place else { panic!() };
                    prop_assert_eq!(address, &Address { host, port: *port });
                    let theirs = theirs.redis_settings();
                    let empty = |text: Option<&str>| text.unwrap_or_default().to_owned();
                    let access = ours.access;
                    prop_assert_eq!(empty(access.username.as_deref()), empty(theirs.username()));
                    prop_assert_eq!(empty(access.password.as_deref()), empty(theirs.password()));
                    prop_assert_eq!(access.database, theirs.db());
                }
                (Ok(_), None) => prop_assert!(false, "only accepted here: {}", url),
                (Err(error), Some(theirs)) => {
                    let is_zero = theirs.addr().to_string().ends_with(":0");
                    prop_assert!(is_zero, "{}: {}", url, error);
                }
                (Err(_), None) => {}
            }
        }
    }
}
