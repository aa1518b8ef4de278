//! A cluster's URL: the addresses of some nodes, and the credentials.

use crate::error::Error;
use crate::store::redis::address::url::{Access, Location, Place, invalid};

impl Location {
    /// Parses the rest of a cluster's URL, after its scheme.
    pub(crate) fn parse_cluster(rest: &str) -> Result<Self, Error> {
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

    /// Returns the location of a cluster with some nodes given by `urls`. The first URL contains
    /// the credentials. Fails if the URLs disagree on credentials or TLS.
    pub(crate) fn of_cluster(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Error> {
        let mut seeds = Vec::new();
        let mut first: Option<Self> = None;
        for url in urls {
            let node = Self::parse(url.as_ref())?;
            let Place::Single(address) = &node.place else {
                return Err(invalid("a node of a cluster is given as redis://host:port"));
            };
            if node.access.database != 0 {
                return Err(invalid("a cluster has only database 0"));
            }
            if !seeds.contains(address) {
                seeds.push(address.clone());
            }
            let first = first.get_or_insert_with(|| node.clone());
            if node.access.password.is_some() && !have_same_credentials(&first.access, &node.access)
            {
                return Err(invalid("the nodes of a cluster must have one user and password"));
            }
            #[cfg(feature = "tls")]
            if first.encrypted != node.encrypted {
                return Err(invalid("either all nodes of a cluster use TLS, or none"));
            }
        }
        let first = first.ok_or_else(|| invalid("a cluster needs at least one node"))?;
        Ok(Self { place: Place::Cluster(seeds), ..first })
    }
}

/// Returns whether the users and the passwords are equal.
fn have_same_credentials(one: &Access, other: &Access) -> bool {
    one.username == other.username && one.password == other.password
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::address::url::Address;

    #[test]
    fn a_clusters_url_gives_its_nodes_and_credentials() {
        let location =
            Location::parse("redis-cluster://ann:s3cret@a:7000,[::1]:7001,b.example.org,a:7000")
                .unwrap();
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
    fn an_invalid_cluster_is_an_error_that_says_why() {
        let why = |location: Result<Location, Error>| match location {
            Err(Error::InvalidUrl { reason }) => reason,
            other => panic!("{other:?}"),
        };
        let of = |urls: &[&str]| why(Location::of_cluster(urls));
        assert!(why(Location::parse("redis-cluster://a:1,b:2/3")).contains("database 0"));
        assert!(of(&["redis://a", "redis://b/1"]).contains("database 0"));
        assert!(of(&["redis://:x@a", "redis://:y@b"]).contains("one user"));
        assert!(of(&[]).contains("one node"));
        for (wrong, what) in [
            ("redis-cluster://", "no host"),
            ("redis-cluster://a:1,,b:2", "no host"),
            ("redis-cluster://a:x", "port"),
        ] {
            assert!(why(Location::parse(wrong)).contains(what), "{wrong}");
        }
    }
}
