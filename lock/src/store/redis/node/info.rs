//! `INFO`: whether the server may evict locks, whether it accepts writes without replicas, and its
//! run id.

use crate::error::truncated;
use crate::ops::value::Value;
use crate::store::redis::resp::encode::Command;

/// The fields of `INFO` that matter to locks. A missing field counts as harmless: a user may lack
/// the permission for `INFO`, and not every server has every field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    /// The eviction policy, if the policy may delete locks.
    pub(crate) evicting: Option<String>,
    /// Whether the server is a master with replicas.
    pub(crate) has_replicas: bool,
    /// Whether the server is a master with replicas, and accepts writes even after losing all
    /// replicas.
    pub(crate) writes_alone: bool,
    /// Whether the server is a node of a cluster.
    pub(crate) is_cluster: bool,
    /// The master's host and port, if the server is a replica.
    pub(crate) replica_of: Option<String>,
    /// A random id, changed by each start of the server.
    pub(crate) run_id: Option<String>,
}

/// Returns the command `INFO` for all sections. Only Redis 7 and later accept several section
/// names.
pub(crate) fn command() -> Vec<u8> {
    Command::of(&["INFO"])
}

impl Info {
    /// Parses the reply to `INFO`. An error reply counts as an `INFO` without fields.
    pub(crate) fn of(reply: &Value) -> Self {
        if let Value::Text(info) = reply { parse(info) } else { Self::default() }
    }
}

/// Parses the text of `INFO`.
fn parse(info: &str) -> Info {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let evicting = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
    let has_replicas = field("role") == Some("master")
        && field("connected_slaves").is_some_and(|number| number != "0");
    // Reported only with `min-replicas-to-write` and `min-replicas-max-lag` set.
    let needs_replicas = field("min_slaves_good_slaves").is_some();
    let replica_of = || {
        let (host, port) = (field("master_host")?, field("master_port")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(truncated(&format!("{host}:{port}")))
    };
    Info {
        is_cluster: field("redis_mode") == Some("cluster") || field("cluster_enabled") == Some("1"),
        replica_of: if field("role") == Some("slave") { replica_of() } else { None },
        evicting: evicting.map(truncated),
        has_replicas,
        writes_alone: has_replicas && !needs_replicas,
        run_id: field("run_id").filter(|id| !id.is_empty()).map(truncated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_but_noeviction_can_delete_a_lock() {
        let evicting = |policy: &str| {
            let info = format!(
                "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{policy}\r\nallocator:libc\r\n"
            );
            parse(&info).evicting
        };
        assert_eq!(evicting("noeviction"), None);
        for policy in ["allkeys-lru", "volatile-ttl", "something-new"] {
            assert_eq!(evicting(policy).as_deref(), Some(policy));
        }
    }

    #[test]
    fn master_with_replicas_writes_alone_without_min_replicas() {
        let alone = |role: &str, replicas: u32, more: &str| {
            let info = format!(
                "# Replication\r\nrole:{role}\r\nconnected_slaves:{replicas}\r\n{more}master_failover_state:x\r\n"
            );
            parse(&info).writes_alone
        };
        assert!(alone("master", 1, "") && alone("master", 12, "slave0:ip=10.0.0.1\r\n"));
        assert!(!alone("master", 1, "min_slaves_good_slaves:0\r\n"));
        assert!(!alone("master", 0, "") && !alone("slave", 1, ""));
        assert!(
            parse("role:master\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:0\r\n").has_replicas
        );
        assert!(!parse("role:slave\r\nconnected_slaves:1\r\n").has_replicas);
    }

    #[test]
    fn the_run_id_is_read() {
        let info = "# Server\r\nprocess_id:1\r\nrun_id:8a3f\r\ntcp_port:6379\r\n";
        assert_eq!(parse(info).run_id.as_deref(), Some("8a3f"));
    }

    #[test]
    fn missing_fields_count_as_harmless() {
        for info in ["", "maxmemory:0\r\n", "run_id:\r\n", "connected_slaves\r\nrole:master\r\n"] {
            assert_eq!(parse(info), Info::default());
        }
    }
}
