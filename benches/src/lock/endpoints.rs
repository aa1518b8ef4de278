//! Lock and unlock through Sentinel and in a cluster, beside the same server addressed directly.

use wheellock_fixture::{Cluster, Sentinels};

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

/// The only node of a cluster, addressed directly and as a cluster.
#[must_use]
pub fn in_a_cluster(cluster: &Cluster) -> Vec<Contender> {
    let node = cluster.nodes().swap_remove(0);
    vec![
        watched(DIRECT, &node.url(), "bench:direc"),
        watched("wheellock, cluster", &cluster.url(), "bench:clust"),
    ]
}
