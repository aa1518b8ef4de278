//! Rules which derive checks from a server's facts and latencies, without sending commands.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::doctor::diagnosis::{Check, CheckState};
use crate::error::truncated;
use crate::ops::value::Value;

/// The oldest supported version of Redis, major and minor: the oldest version that runs all
/// scripts.
const OLDEST: (u64, u64) = (6, 2);

/// The maximum lag of a replica in seconds, as in `min-replicas-max-lag 1`.
const MOST_LAG: u64 = 1;

/// Maximum difference between the clock rates of server and client, as `is_held` allows.
const MOST_DRIFT: f64 = 0.01;

/// The minimum number of sentinels, of which one may fail.
const FEWEST_SENTINELS: usize = 3;

/// The minimum ratio of a lease to the time after which a failure of the master is detected.
const LEASES: u32 = 3;

/// Maximum hand-over time with notifications. Without them, waiters poll once a second.
const WOKEN_WITHIN: Duration = Duration::from_millis(500);

/// The facts that a server reports about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The fields of `INFO`. Empty if the server did not answer `INFO`.
    info: BTreeMap<String, String>,
    /// The settings by `CONFIG GET`. Empty if the server did not answer `CONFIG GET`.
    config: BTreeMap<String, String>,
}

impl Facts {
    /// Adds the fields of a reply to `INFO`. A refusal adds nothing.
    pub(crate) fn learn_info(&mut self, reply: &Value) {
        let Value::Text(text) = reply else { return };
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        self.info.extend(fields.map(|(name, value)| (name.to_owned(), truncated(value))));
    }

    /// Adds the settings of a reply to `CONFIG GET`. A refusal adds nothing.
    pub(crate) fn learn_config(&mut self, reply: &Value) {
        let Value::Array(parts) = reply else { return };
        for pair in parts.chunks_exact(2) {
            if let [Value::Text(name), Value::Text(value)] = pair {
                self.config.insert(name.clone(), truncated(value));
            }
        }
    }

    /// Returns the field `name` of `INFO`, if reported.
    pub(crate) fn info(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    /// Returns the setting `name`, if reported.
    fn config(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str)
    }

    /// Returns the field `name` of `INFO` as a number.
    fn number(&self, name: &str) -> Option<u64> {
        self.info(name)?.parse().ok()
    }

    /// Returns the setting `name` as a number of seconds.
    fn seconds(&self, name: &str) -> Option<Duration> {
        self.config(name)?.parse().ok().map(Duration::from_secs)
    }
}

/// Checks the server's product and version.
pub(crate) fn server(facts: &Facts) -> Check {
    const NAME: &str = "server";
    let product = [("valkey_version", "Valkey"), ("dragonfly_version", "Dragonfly")]
        .into_iter()
        .find_map(|(field, product)| Some((product, facts.info(field)?)))
        .or_else(|| Some(("Redis", facts.info("redis_version")?)));
    let Some((product, version)) = product else {
        return Check::warn(
            NAME,
            "the server does not tell its version",
            "permit +info, or see the table of services in the guide",
        );
    };
    let found = format!("{product} {version}");
    match (product, major_and_minor(version)) {
        ("Dragonfly", _) => Check::warn(NAME, found, "the locks are not tested on Dragonfly"),
        (_, Some(version)) if version >= OLDEST => Check::ok(NAME, found),
        (_, Some(_)) => Check::fail(NAME, found, "use Redis 6.2 or later, or Valkey"),
        (_, None) => Check::warn(NAME, found, "this version is not known: use Redis or Valkey"),
    }
}

/// Returns whether the server has sharded channels; `true` if the version is unknown.
pub(crate) fn has_sharded_channels(facts: &Facts) -> bool {
    facts.info("redis_version").and_then(major_and_minor).is_none_or(|version| version >= (7, 0))
}

/// Returns the first two numbers of `version`, such as 7 and 2 of `7.2.4`; `None` for another form.
fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Checks whether keys of locks may be evicted.
pub(crate) fn eviction(facts: &Facts) -> Check {
    const NAME: &str = "eviction";
    let policy = facts.info("maxmemory_policy").or_else(|| facts.config("maxmemory-policy"));
    let limit = facts.number("maxmemory");
    match (policy, limit) {
        (None, _) => Check::warn(
            NAME,
            "the server does not tell its eviction policy",
            "set maxmemory-policy noeviction, and permit +info",
        ),
        (Some("noeviction"), _) => Check::ok(NAME, "noeviction"),
        (Some(policy), Some(0)) => Check::warn(
            NAME,
            format!("{policy} evicts locks once maxmemory is set"),
            "CONFIG SET maxmemory-policy noeviction",
        ),
        (Some(policy), _) => Check::fail(
            NAME,
            format!("{policy} evicts locks"),
            "CONFIG SET maxmemory-policy noeviction",
        ),
    }
}

/// Checks which locks a restart of the server loses, and whether the last write to the disk has
/// failed.
pub(crate) fn persistence(facts: &Facts) -> Check {
    const NAME: &str = "persistence";
    let Some(appends) = facts.info("aof_enabled") else {
        return Check::not_checked(NAME, "the server does not tell it");
    };
    let failed = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"]
        .into_iter()
        .find(|field| facts.info(field).is_some_and(|status| status != "ok"));
    if facts.info("loading") == Some("1") {
        return Check::fail(NAME, "the server loads its data", "wait until it has loaded them");
    }
    if let Some(field) = failed {
        let found = format!("the last write failed: {field}, and the server may refuse locks");
        return Check::fail(NAME, found, "look into the server's log, and free its disk");
    }
    let lost = "start a failed server only after the longest lease, or CONFIG SET appendonly yes";
    match (appends, facts.config("appendfsync"), facts.config("save")) {
        ("1", Some(sync), _) => Check::ok(NAME, format!("append-only file, appendfsync {sync}")),
        ("1", None, _) => Check::ok(NAME, "append-only file"),
        (_, _, Some("")) => Check::warn(NAME, "none: a restart loses every lock", lost),
        (_, _, Some(save)) => Check::warn(
            NAME,
            format!("snapshots only (save {save}): a restart loses what came after the last one"),
            lost,
        ),
        (_, _, None) => {
            Check::warn(NAME, "no append-only file: a restart loses locks, or all of them", lost)
        }
    }
}

/// A client's requirements for the master's replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replication {
    /// Whether a replica may become the master, as far as the client knows.
    pub(crate) fails_over: bool,
    /// Number of replicas that must acknowledge a grant.
    pub(crate) acks: Option<u32>,
}

/// Checks whether the master has replicas, and refuses writes without them.
pub(crate) fn replicas(facts: &Facts, Replication { fails_over, acks }: Replication) -> Check {
    const NAME: &str = "replicas";
    match facts.info("role") {
        Some("master") => {}
        Some(_) => {
            let host = facts.info("master_host").unwrap_or("?");
            let port = facts.info("master_port").unwrap_or("?");
            let found = "it is a replica, which grants no locks";
            return Check::fail(NAME, found, format!("use its master, {host}:{port}"));
        }
        None => return Check::not_checked(NAME, "the server does not tell it"),
    }
    let all = facts.number("connected_slaves").unwrap_or(0);
    let near = (0..all)
        .filter_map(|number| facts.info(&format!("slave{number}")))
        .filter(|replica| is_near(replica))
        .count();
    let near = u64::try_from(near).unwrap_or(u64::MAX);
    let found = match (all, near) {
        (0, _) => "no replicas".to_owned(),
        (all, near) if all == near => format!("{all} connected, none behind by more than 1 s"),
        (all, near) => format!("{all} connected, {near} of them not behind"),
    };
    let min_replicas = "CONFIG SET min-replicas-to-write 1 and CONFIG SET min-replicas-max-lag 1";
    if let Some(acks) = acks.map(u64::from)
        && near < acks
    {
        let found = format!("{found}; {acks} have to acknowledge each acquire");
        return Check::fail(NAME, found, "add replicas, or lower replica_acks");
    }
    if all == 0 {
        return if fails_over {
            Check::warn(NAME, "no replicas, so nothing can fail over", "add two replicas")
        } else {
            Check::ok(NAME, found)
        };
    }
    if near < all {
        return Check::warn(NAME, found, "look at the replicas and their network");
    }
    // Reported only where both settings are set.
    if facts.info("min_slaves_good_slaves").is_none() {
        let found = format!("{found}; a master that is cut off from them goes on granting locks");
        return Check::warn(NAME, found, min_replicas);
    }
    if all == 1 {
        let found = format!("{found}; without it the master refuses all locks");
        return Check::warn(NAME, found, "add a second replica");
    }
    Check::ok(NAME, format!("{found}; writes are refused without them"))
}

/// Returns whether a replica is online and within [`MOST_LAG`]. `replica` is a line such as
/// `ip=10.0.0.1,port=6379,state=online,offset=14,lag=0`.
fn is_near(replica: &str) -> bool {
    let field = |name: &str| {
        replica.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let lag = field("lag").and_then(|lag| lag.parse::<u64>().ok());
    field("state") == Some("online") && lag.is_none_or(|lag| lag <= MOST_LAG)
}

/// The mechanism by which a replica becomes the master, and the time to detect a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failover {
    /// The client knows of no failover.
    None,
    /// `down-after-milliseconds`, if a sentinel reports the value, and the number of sentinels.
    Sentinel { down_after: Option<Duration>, sentinels: usize },
    /// The time is `cluster-node-timeout` in the server's configuration.
    Cluster,
}

/// Checks whether a watched `lease` outlasts a failover by the mechanism `by`.
pub(crate) fn failover(facts: &Facts, by: Failover, lease: Duration) -> Check {
    const NAME: &str = "failover";
    let (setting, silence) = match by {
        Failover::None => return Check::ok(NAME, "the client knows of no failover"),
        Failover::Sentinel { down_after, .. } => ("down-after-milliseconds", down_after),
        Failover::Cluster => {
            let timeout = facts.config("cluster-node-timeout").and_then(|text| text.parse().ok());
            ("cluster-node-timeout", timeout.map(Duration::from_millis))
        }
    };
    let Some(silence) = silence else {
        let why = format!("{setting} is not told; the lease is {lease:?}");
        return Check::not_checked(NAME, why);
    };
    let found = format!("{setting} is {silence:?}, the lease {lease:?}");
    if silence * LEASES > lease {
        let most = lease / LEASES;
        let outlasts = silence * LEASES;
        let repair = format!("{setting} {}, or watchdog_lease of {outlasts:?}", most.as_millis());
        return Check::warn(NAME, found, repair);
    }
    if let Failover::Sentinel { sentinels, .. } = by
        && sentinels < FEWEST_SENTINELS
    {
        let found = format!("{found}; {sentinels} sentinels, of which none may fail");
        return Check::warn(NAME, found, "run three sentinels on three machines");
    }
    Check::ok(NAME, found)
}

/// Two readings of the server's clock, each between the start and the end of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReadings {
    /// Time between the readings, by the server's clock.
    pub(crate) server: Duration,
    /// From the end of the first query to the start of the second, by the client's clock.
    pub(crate) shortest: Duration,
    /// From the start of the first query to the end of the second, by the client's clock.
    pub(crate) longest: Duration,
}

/// Checks whether the rates of the server's clock and this machine's clock are equal, within
/// [`MOST_DRIFT`]. Without `readings` the check fails.
pub(crate) fn clock(readings: Option<ClockReadings>) -> Check {
    const NAME: &str = "clock";
    let Some(ClockReadings { server, shortest, longest }) = readings else {
        return Check::fail(
            NAME,
            "the server does not tell its time, or its clock was set back",
            "permit +time, and slew the server's clock instead of stepping it",
        );
    };
    // The true rate lies between `lowest` and `highest`. No divisor is zero.
    let shortest = shortest.max(Duration::from_nanos(1));
    let longest = longest.max(shortest);
    let lowest = server.as_secs_f64() / longest.as_secs_f64();
    let highest = server.as_secs_f64() / shortest.as_secs_f64();
    let percent = |rate: f64| (rate - 1.0) * 100.0;
    let found = format!(
        "in {longest:.0?} the rate against this machine is between {:+.2} % and {:+.2} %",
        percent(lowest),
        percent(highest)
    );
    if lowest > 1.0 + MOST_DRIFT || highest < 1.0 - MOST_DRIFT {
        Check::fail(NAME, found, "slew the clocks of both machines instead of stepping them")
    } else if highest - lowest > 2.0 * MOST_DRIFT {
        Check::not_checked(NAME, format!("{found}: the round trips are too long to tell more"))
    } else {
        Check::ok(NAME, found)
    }
}

/// Checks the durations of pairs of lock and unlock against `command_timeout`. Sorts `times`.
pub(crate) fn latency(times: &mut [Duration], command_timeout: Duration) -> Check {
    const NAME: &str = "latency";
    let (p50, p99) = (quantile(times, 50), quantile(times, 99));
    let found = format!("lock and unlock: p50 {p50:.1?}, p99 {p99:.1?} ({} pairs)", times.len());
    // A pair is two commands.
    if p99 > command_timeout / 5 {
        let repair =
            format!("the command timeout is {command_timeout:?}: move closer, or raise it");
        return Check::warn(NAME, found, repair);
    }
    Check::ok(NAME, found)
}

/// Checks the durations of hand-overs to a waiter of another client. Sorts `times`.
pub(crate) fn hand_over(times: &mut [Duration]) -> Check {
    const NAME: &str = "hand_over";
    let (p50, p99) = (quantile(times, 50), quantile(times, 99));
    let found = format!("to another client: p50 {p50:.1?}, p99 {p99:.1?} ({} times)", times.len());
    if p50 > WOKEN_WITHIN {
        let repair = "messages do not wake waiters, so they poll: see the permissions and proxies";
        return Check::warn(NAME, found, repair);
    }
    Check::ok(NAME, found)
}

/// Sorts `times`, and returns the quantile at `percent`; zero if empty.
fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

/// Checks whether the server closes connections between two renewals.
pub(crate) fn idle(facts: &Facts, lease: Duration) -> Check {
    const NAME: &str = "idle_connections";
    let proxies = "a proxy or firewall in between is not checked";
    let Some(timeout) = facts.seconds("timeout") else {
        return Check::not_checked(
            NAME,
            format!("the server does not tell its timeout; {proxies}"),
        );
    };
    let renewals = lease / 3;
    let found = match timeout {
        Duration::ZERO => format!("the server closes none; {proxies}"),
        timeout => format!("the server closes them after {timeout:?}; {proxies}"),
    };
    if !timeout.is_zero() && timeout <= renewals {
        let found = format!("{found}; renewals come every {renewals:?}");
        return Check::warn(NAME, found, "CONFIG SET timeout 0, or more than a third of the lease");
    }
    if facts.config("tcp-keepalive") == Some("0") {
        let found = format!("{found}; connections of machines that are gone stay");
        return Check::warn(NAME, found, "CONFIG SET tcp-keepalive 300");
    }
    Check::ok(NAME, found)
}

/// Returns the worst of the `checks` of all servers, with the address of the server in the finding.
///
/// The finding names no server if all findings are equal. Returns `None` without checks.
pub(crate) fn merge(checks: Vec<(String, Check)>) -> Option<Check> {
    let servers = checks.len();
    let is_same = |(_, check): &(String, Check)| check.found == checks[0].1.found;
    let all_same = checks.iter().all(is_same);
    let worst = checks.iter().map(|(_, check)| check.state).max()?;
    let bad = checks.iter().filter(|(_, check)| check.state == worst).count();
    let (server, mut check) = checks.into_iter().find(|(_, check)| check.state == worst)?;
    if servers > 1 && !all_same {
        check.found = match worst {
            CheckState::Ok => format!("{} ({server}, and {} more)", check.found, servers - 1),
            _ => format!("{} ({server}, one of {bad} of {servers} servers)", check.found),
        };
    }
    Some(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Redis 7.0.15, with a replica.
    const REDIS: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
        # Persistence\r\nloading:0\r\nrdb_last_bgsave_status:ok\r\naof_enabled:0\r\n\
        aof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n\
        # Replication\r\nrole:master\r\nconnected_slaves:1\r\n\
        slave0:ip=127.0.0.1,port=7001,state=online,offset=14,lag=0\r\n";

    /// From Valkey 8.1.1.
    const VALKEY: &str = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\n\
        valkey_version:8.1.1\r\n";

    const LEASE: Duration = Duration::from_secs(30);

    fn facts(info: &str, settings: &[(&str, &str)]) -> Facts {
        let mut facts = Facts::default();
        facts.learn_info(&Value::Text(info.to_owned()));
        for (name, value) in settings {
            let pair = [name, value].map(|word| Value::Text((*word).to_owned()));
            facts.learn_config(&Value::Array(pair.to_vec()));
        }
        facts
    }

    fn state_of(check: &Check) -> CheckState {
        // What is wrong has a repair, and nothing else has.
        assert_eq!(check.repair.is_some(), check.state >= CheckState::Warn, "{check:?}");
        check.state
    }

    #[test]
    fn a_version_that_runs_the_scripts_is_ok() {
        for (info, state) in [
            (REDIS, CheckState::Ok),
            (VALKEY, CheckState::Ok),
            ("redis_version:6.2.14\r\n", CheckState::Ok),
            ("redis_version:6.0.20\r\n", CheckState::Fail),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.30.0\r\n", CheckState::Warn),
            ("redis_version:unstable\r\n", CheckState::Warn),
            ("", CheckState::Warn),
        ] {
            assert_eq!(state_of(&server(&facts(info, &[]))), state, "{info}");
        }
        assert_eq!(server(&facts(VALKEY, &[])).found, "Valkey 8.1.1");
    }

    #[test]
    fn a_policy_that_evicts_fails_with_a_limit_and_warns_without() {
        let of = |policy: &str, limit: &str| {
            let info = format!("maxmemory_policy:{policy}\r\nmaxmemory:{limit}\r\n");
            state_of(&eviction(&facts(&info, &[])))
        };
        assert_eq!(of("noeviction", "100"), CheckState::Ok);
        assert_eq!(of("volatile-ttl", "0"), CheckState::Warn);
        assert_eq!(of("volatile-ttl", "100"), CheckState::Fail);
        assert_eq!(state_of(&eviction(&facts("", &[]))), CheckState::Warn);
        let settings = [("maxmemory-policy", "allkeys-lru")];
        assert_eq!(state_of(&eviction(&facts("", &settings))), CheckState::Fail);
    }

    #[test]
    fn persistence_tells_what_a_restart_loses() {
        for (settings, state, said) in [
            (&[("save", "")][..], CheckState::Warn, "every lock"),
            (&[("save", "3600 1")], CheckState::Warn, "snapshots only"),
            (&[], CheckState::Warn, "no append-only file"),
        ] {
            let check = persistence(&facts(REDIS, settings));
            assert_eq!(state_of(&check), state);
            assert!(check.found.contains(said), "{check:?}");
        }
        let appends = REDIS.replace("aof_enabled:0", "aof_enabled:1");
        assert_eq!(state_of(&persistence(&facts(&appends, &[]))), CheckState::Ok);
        let fails = REDIS.replace("bgsave_status:ok", "bgsave_status:err");
        assert_eq!(state_of(&persistence(&facts(&fails, &[]))), CheckState::Fail);
        assert_eq!(state_of(&persistence(&facts("", &[]))), CheckState::NotChecked);
    }

    #[test]
    fn replication_check_needs_close_replicas_and_min_replicas_set() {
        let of = |info: &str, fails_over, acks| {
            state_of(&replicas(&facts(info, &[]), Replication { fails_over, acks }))
        };
        let line = "slave0:ip=127.0.0.1,port=7001,state=online,offset=14,lag=0";
        let two = REDIS.replace("connected_slaves:1", "connected_slaves:2")
            + &line.replace("slave0", "slave1")
            + "\r\nmin_slaves_good_slaves:2\r\n";
        assert_eq!(of(&two, true, Some(2)), CheckState::Ok);
        assert_eq!(of(&two, true, Some(3)), CheckState::Fail);
        assert_eq!(of(&two.replace("lag=0", "lag=9"), true, None), CheckState::Warn);
        assert_eq!(of(&two.replace("online", "wait_bgsave"), true, Some(1)), CheckState::Fail);
        assert_eq!(of(REDIS, false, None), CheckState::Warn);
        let none = REDIS.replace("connected_slaves:1", "connected_slaves:0");
        assert_eq!(of(&none, false, None), CheckState::Ok);
        assert_eq!(of(&none, true, None), CheckState::Warn);
        let replica = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\n";
        assert_eq!(of(replica, false, None), CheckState::Fail);
        assert_eq!(of("", false, None), CheckState::NotChecked);
    }

    #[test]
    fn a_lease_lasts_three_times_as_long_as_a_failover() {
        let sentinel = |seconds, sentinels| Failover::Sentinel {
            down_after: Some(Duration::from_secs(seconds)),
            sentinels,
        };
        let of = |by| state_of(&failover(&Facts::default(), by, LEASE));
        assert_eq!(of(Failover::None), CheckState::Ok);
        assert_eq!(of(sentinel(10, 3)), CheckState::Ok);
        assert_eq!(of(sentinel(11, 3)), CheckState::Warn);
        assert_eq!(of(sentinel(10, 2)), CheckState::Warn);
        assert_eq!(of(Failover::Cluster), CheckState::NotChecked);
        let default = facts("", &[("cluster-node-timeout", "15000")]);
        assert_eq!(state_of(&failover(&default, Failover::Cluster, LEASE)), CheckState::Warn);
    }

    #[test]
    fn a_clock_fails_only_beyond_what_the_round_trips_explain() {
        let of = |server, shortest, longest| {
            let millis = Duration::from_millis;
            let readings = ClockReadings {
                server: millis(server),
                shortest: millis(shortest),
                longest: millis(longest),
            };
            state_of(&clock(Some(readings)))
        };
        assert_eq!(of(300, 299, 301), CheckState::Ok);
        assert_eq!(of(305, 299, 301), CheckState::Fail);
        assert_eq!(of(295, 299, 301), CheckState::Fail);
        // The true rate may be right.
        assert_eq!(of(305, 250, 350), CheckState::NotChecked);
        assert_eq!(of(400, 250, 350), CheckState::Fail);
        assert_eq!(of(1, 0, 2), CheckState::NotChecked);
        assert_eq!(state_of(&clock(None)), CheckState::Fail);
    }

    #[test]
    fn slow_locks_and_waiters_that_poll_warn() {
        let timeout = Duration::from_secs(3);
        let quick = Duration::from_millis(1);
        assert_eq!(state_of(&latency(&mut [quick; 200], timeout)), CheckState::Ok);
        assert_eq!(state_of(&latency(&mut [timeout / 2; 200], timeout)), CheckState::Warn);
        assert_eq!(state_of(&hand_over(&mut [quick, quick, timeout])), CheckState::Ok);
        assert_eq!(state_of(&hand_over(&mut [quick, timeout, timeout])), CheckState::Warn);
        assert_eq!(quantile(&mut [], 99), Duration::ZERO);
    }

    #[test]
    fn a_server_that_closes_between_renewals_warns() {
        let of = |timeout, keepalive| {
            let settings = [("timeout", timeout), ("tcp-keepalive", keepalive)];
            state_of(&idle(&facts("", &settings), LEASE))
        };
        assert_eq!(of("0", "300"), CheckState::Ok);
        assert_eq!(of("10", "300"), CheckState::Warn);
        assert_eq!(of("11", "300"), CheckState::Ok);
        assert_eq!(of("0", "0"), CheckState::Warn);
        assert_eq!(state_of(&idle(&Facts::default(), LEASE)), CheckState::NotChecked);
    }

    #[test]
    fn of_several_servers_the_worst_is_shown_with_its_address() {
        let of = |policies: &[&str]| {
            let one = |policy: &&str| {
                let info = format!("maxmemory_policy:{policy}\r\nmaxmemory:1\r\n");
                ((*policy).to_owned(), eviction(&facts(&info, &[])))
            };
            merge(policies.iter().map(one).collect())
        };
        let worst = of(&["noeviction", "allkeys-lru", "noeviction"]).unwrap();
        assert_eq!(worst.state, CheckState::Fail);
        assert!(worst.found.contains("(allkeys-lru, one of 1 of 3 servers)"), "{worst:?}");
        assert_eq!(of(&["noeviction", "noeviction"]).unwrap().found, "noeviction");
        assert_eq!(of(&[]), None);
    }
}
