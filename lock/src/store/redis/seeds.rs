//! A cluster's URL: some of its nodes, and who asks them.

use super::address::{Access, Location, Place};
use crate::error::Error;

impl Location {
    /// Parses what follows the scheme of a cluster's URL.
    pub(super) fn parse_cluster(rest: &str) -> Result<Self, Error> {
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
            let Self { place: Place::Single(address), access: own } =
                Self::parse_single(url.as_ref())?
            else {
                continue;
            };
            if own.database != 0 {
                return Err(Error::InvalidUrl {
                    reason: "a cluster has only database 0".to_owned(),
                });
            }
            if !seeds.contains(&address) {
                seeds.push(address);
            }
            let first = access.get_or_insert_with(|| own.clone());
            if own.password.is_some() && !are_the_same(first, &own) {
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
}

fn are_the_same(one: &Access, other: &Access) -> bool {
    one.username == other.username && one.password == other.password
}

#[cfg(test)]
mod tests {
    use super::super::address::Address;
    use super::*;

    #[test]
    fn a_clusters_url_gives_its_nodes_and_who_asks() {
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
}
