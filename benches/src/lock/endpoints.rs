//! Lock and unlock through Sentinel and in a cluster, beside a server that is addressed directly.

use wheellock_fixture::{Cluster, Sentinels, Server};

use crate::harness::Contender;
use crate::lock::watched;

const DIRECT: &str = "wheellock, one server";

/// A master, addressed directly and through Sentinel.
#[must_use]
pub fn behind_sentinels(sentinels: &Sentinels) -> Vec<Contender> {
    vec![
        watched(DIRECT, &sentinels.master().url(), "bench:direc"),
        watched("wheellock, sentinel", &sentinels.url(), "bench:senti"),
    ]
}

/// A server alone, and the only node of a cluster.
#[must_use]
pub fn in_a_cluster(alone: &Server, cluster: &Cluster) -> Vec<Contender> {
    vec![
        watched(DIRECT, &alone.url(), "bench:direc"),
        watched("wheellock, cluster", &cluster.url(), "bench:clust"),
    ]
}
