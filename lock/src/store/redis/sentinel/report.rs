//! Combines the sentinels' reports of their master into a decision. Pure.
//!
//! Each failover has a number, the configuration epoch. A sentinel that was cut off reports a
//! smaller epoch. So the highest epoch counts, as among the sentinels themselves. A majority of
//! addresses would be wrong for the second in which only the leader of the failover knows the new
//! master. A false report with a higher epoch is believed, because nothing distinguishes its sender
//! from this leader.
//!
//! A smaller epoch than the known epoch needs more than half of all sentinels: then the sentinels
//! were reset. Otherwise a sentinel that was cut off together with an old master could lead back to
//! this master.

use crate::ops::value::Value;
use crate::store::redis::address::url::Address;

/// The maximum number of known sentinels.
const MAX_SENTINELS: usize = 32;

/// The address of the master after the failover `epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterReport {
    pub(crate) address: Address,
    pub(crate) epoch: u64,
}

/// Returns whether no more sentinels need be queried: the last report names a new master, or
/// without a known report, more than half of all `sentinels` agree with the last report.
pub(crate) fn is_clear(
    reports: &[MasterReport],
    sentinels: usize,
    known: Option<&MasterReport>,
) -> bool {
    let Some(last) = reports.last() else { return false };
    match known {
        // The master has moved. A sentinel that repeats the known report may be outdated.
        Some(known) => last.epoch > known.epoch && last.address != known.address,
        None => votes(reports, last) * 2 > sentinels,
    }
}

/// Returns the number of reports that equal `candidate`.
fn votes(reports: &[MasterReport], candidate: &MasterReport) -> usize {
    reports.iter().filter(|other| *other == candidate).count()
}

/// Combines the reports of some sentinels, in any order, into the report of the present master.
///
/// Returns the reason if there is no report, if the newest reports disagree, or if their epoch is
/// older than `known` and at most half of all `sentinels` agree.
pub(crate) fn decide(
    reports: &[MasterReport],
    sentinels: usize,
    known: Option<&MasterReport>,
) -> Result<MasterReport, String> {
    // 1. Only reports with the highest epoch count.
    let newest = reports.iter().map(|report| report.epoch).max().unwrap_or(0);
    let newest: Vec<&MasterReport> =
        reports.iter().filter(|report| report.epoch == newest).collect();
    // 2. Among these the majority counts: a sentinel may be configured with another address.
    let Some(best) = newest.iter().copied().max_by_key(|candidate| votes(reports, candidate))
    else {
        return Err("no sentinel has replied".to_owned());
    };
    let agree = votes(reports, best);
    if agree * 2 <= newest.len() {
        let all: Vec<String> = newest.iter().map(|report| report.address.to_string()).collect();
        return Err(format!("the sentinels disagree: {}", all.join(", ")));
    }
    // 3. A step back needs a majority of all sentinels.
    if known.is_some_and(|known| best.epoch < known.epoch) && agree * 2 <= sentinels {
        let old = &best.address;
        return Err(format!("only sentinels with an outdated state reply: {old}"));
    }
    Ok(best.clone())
}

/// Parses the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`: host and port. `None` if the reply has
/// another form.
pub(crate) fn parse_address(reply: &Value) -> Option<Address> {
    let Value::Array(words) = reply else { return None };
    let [Value::Text(host), Value::Text(port)] = words.as_slice() else { return None };
    Address::named(host, port.parse().ok()?)
}

/// Returns the configuration epoch in the reply to `SENTINEL MASTER`. Zero without an epoch.
pub(crate) fn parse_epoch(reply: &Value) -> u64 {
    field(reply, "config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0)
}

/// Returns the known sentinels after a reply to `SENTINEL SENTINELS`: the seeds, `source`, and the
/// sentinels named in the reply `others`, without duplicates. `None` if the reply is no list.
pub(crate) fn known_sentinels(
    seeds: &[Address],
    source: &Address,
    others: &Value,
) -> Option<Vec<Address>> {
    let Value::Array(others) = others else { return None };
    let named = others.iter().filter_map(|other| {
        let port = field(other, "port")?.parse().ok()?;
        Address::named(field(other, "ip")?, port)
    });
    let mut known = seeds.to_vec();
    for address in std::iter::once(source.clone()).chain(named) {
        if !known.contains(&address) && known.len() < MAX_SENTINELS {
            known.push(address);
        }
    }
    Some(known)
}

/// Returns the value after `name` in a list of names and values. `None` without the name.
fn field<'a>(list: &'a Value, name: &str) -> Option<&'a str> {
    let Value::Array(words) = list else { return None };
    words.chunks_exact(2).find_map(|pair| match pair {
        [Value::Text(key), Value::Text(value)] if key == name => Some(value.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(port: u16, epoch: u64) -> MasterReport {
        MasterReport { address: Address { host: "10.0.0.1".to_owned(), port }, epoch }
    }

    fn words(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::Text((*word).to_owned())).collect())
    }

    #[test]
    fn report_of_the_latest_failover_outweighs_older_reports() {
        let all = [report(1, 5), report(2, 6), report(1, 5)];
        assert_eq!(decide(&all, 3, None), Ok(report(2, 6)));
        assert_eq!(decide(&all, 3, Some(&report(1, 5))), Ok(report(2, 6)));
    }

    #[test]
    fn known_failover_is_reverted_only_by_a_majority_of_sentinels() {
        let known = report(2, 6);
        assert!(decide(&[report(1, 5)], 3, Some(&known)).is_err());
        assert!(decide(&[report(1, 5), report(3, 4)], 3, Some(&known)).is_err());
        let twice = [report(1, 0), report(1, 0)];
        assert_eq!(decide(&twice, 3, Some(&known)), Ok(report(1, 0)));
        assert_eq!(decide(&[report(1, 0)], 1, Some(&known)), Ok(report(1, 0)));
    }

    #[test]
    fn majority_decides_within_an_epoch_and_a_tie_is_a_disagreement() {
        let most = [report(1, 0), report(2, 0), report(2, 0)];
        assert_eq!(decide(&most, 3, None), Ok(report(2, 0)));
        let reason = decide(&[report(1, 0), report(2, 0)], 2, None).unwrap_err();
        assert_eq!(reason, "the sentinels disagree: 10.0.0.1:1, 10.0.0.1:2");
        assert!(decide(&[report(1, 0), report(2, 0), report(3, 0)], 3, None).is_err());
    }

    #[test]
    fn reports_are_clear_on_a_majority_or_a_newer_failover() {
        assert!(!is_clear(&[report(1, 5)], 3, None));
        assert!(is_clear(&[report(1, 5), report(1, 5)], 3, None));
        assert!(!is_clear(&[report(1, 5), report(1, 5)], 4, None));
        assert!(is_clear(&[report(1, 5)], 1, None));
        let known = report(1, 5);
        assert!(is_clear(&[report(2, 6)], 3, Some(&known)));
        assert!(!is_clear(&[report(2, 5)], 3, Some(&known)));
        assert!(!is_clear(&[report(1, 5), report(1, 5)], 3, Some(&known)));
    }

    #[test]
    fn an_address_with_a_host_that_cannot_be_one_is_no_address() {
        assert_eq!(parse_address(&words(&["10.0.0.1", "7000"])), Some(report(7000, 0).address));
        for wrong in [["", "1"], ["a b", "1"], ["a\u{1b}[2J", "1"], ["a", "x"], ["a", "70000"]] {
            assert_eq!(parse_address(&words(&wrong)), None, "{wrong:?}");
        }
    }

    #[test]
    fn known_sentinels_are_seeds_plus_sentinels_named_in_a_reply() {
        let address = |port| report(port, 0).address;
        let named = |port: u16| words(&["ip", "10.0.0.1", "port", &port.to_string()]);
        let others = Value::Array(vec![named(3), named(1), words(&["ip", "a b", "port", "1"])]);
        let known = known_sentinels(&[address(1), address(2)], &address(4), &others);
        assert_eq!(known, Some([1, 2, 4, 3].map(address).to_vec()));
        let others = Value::Array((0..1000).map(named).collect());
        let known = known_sentinels(&[address(1)], &address(1), &others).unwrap();
        assert_eq!(known.len(), MAX_SENTINELS);
        assert_eq!(known_sentinels(&[address(1)], &address(1), &Value::Nil), None);
    }
}
