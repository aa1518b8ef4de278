//! What sentinels report of their master, from what they send.
//!
//! An input is what is sent, decoded as from connections. Three replies are those of one sentinel,
//! to `SENTINEL MASTER`, `SENTINEL SENTINELS` and `SENTINEL GET-MASTER-ADDR-BY-NAME`. An integer in
//! place of the first of them ends a query of so many sentinels, between 0 and 15: what was
//! reported since the last one is decided, beside what was decided before.
//!
//! # What holds for every input
//!
//! * Nothing panics.
//! * A host that is reported has 1 to 255 bytes, all of them visible ASCII.
//! * At most 32 sentinels are known, the configured ones among them, and none twice.
//! * What is decided does not depend on the order of the reports. It is the one address that more
//!   than half of the reports with the highest epoch name. A lower epoch than the known one needs
//!   more than half of all sentinels.
//! * The query is clear, so that no other sentinel need be asked, only once more than half of all
//!   agree, or one reports a later failover to another address.

#![cfg_attr(fuzzing, no_main)]

mod wheellock;

use std::io::Read;

use wheellock::ops::value::Value;
use wheellock::store::redis::address::url::Address;
use wheellock::store::redis::resp::decode::Decoder;
use wheellock::store::redis::sentinel::report::{
    MasterReport, decide, is_clear, known_sentinels, parse_address, parse_epoch,
};
use wheellock::{error, model, ops, store, waits};

#[cfg(not(fuzzing))]
mod replay;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    run(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    replay::main("sentinel_reports", run)
}

/// Runs the replies of an input, and returns the number of reports and decisions.
///
/// # Panics
///
/// If something does not hold.
fn run(mut bytes: &[u8]) -> usize {
    let address = |port| Address { host: "seed".to_owned(), port };
    let seeds = [address(1), address(2), address(3)];
    let (mut decoder, mut operations) = (Decoder::new(), 0);
    let mut next = || decoder.next(bytes.by_ref()).ok();
    let (mut reports, mut known) = (Vec::new(), None);
    while let Some(first) = next() {
        if let Value::Integer(number) = first {
            let sentinels = usize::try_from(number.rem_euclid(16)).unwrap_or(0);
            if let Some(decided) = check_decision(&reports, sentinels, known.as_ref()) {
                known = Some(decided);
            }
            reports.clear();
        } else {
            let (Some(others), Some(address)) = (next(), next()) else { break };
            check_sentinels(&seeds, &others);
            if let Some(address) = parse_address(&address) {
                check_host(&address);
                reports.push(MasterReport { address, epoch: parse_epoch(&first) });
            }
        }
        operations += 1;
    }
    operations
}

fn check_host(address: &Address) {
    let is_plain = address.host.bytes().all(|byte| byte.is_ascii_graphic());
    assert!(is_plain && (1..=255).contains(&address.host.len()), "{address:?}");
}

fn check_sentinels(seeds: &[Address], others: &Value) {
    let source = Address { host: "source".to_owned(), port: 4 };
    let Some(known) = known_sentinels(seeds, &source, others) else {
        assert!(!matches!(others, Value::Array(_)));
        return;
    };
    assert!(known.len() <= 32 && known.starts_with(seeds) && known.contains(&source));
    for (index, address) in known.iter().enumerate() {
        check_host(address);
        assert!(!known[..index].contains(address), "{address} twice");
    }
}

/// Decides what the reports mean, and compares that with the rules as they are stated.
fn check_decision(
    reports: &[MasterReport],
    sentinels: usize,
    known: Option<&MasterReport>,
) -> Option<MasterReport> {
    let decided = decide(reports, sentinels, known).ok();
    let reversed: Vec<_> = reports.iter().rev().cloned().collect();
    assert_eq!(decide(&reversed, sentinels, known).ok(), decided, "in another order");

    let newest = reports.iter().map(|report| report.epoch).max();
    let of_newest = reports.iter().filter(|report| Some(report.epoch) == newest).count();
    let votes = |one: &MasterReport| reports.iter().filter(|other| *other == one).count();
    let has_majority =
        |one: &&MasterReport| Some(one.epoch) == newest && votes(one) * 2 > of_newest;
    let expected = reports.iter().find(has_majority).filter(|best| {
        let steps_back = known.is_some_and(|known| best.epoch < known.epoch);
        !steps_back || votes(best) * 2 > sentinels
    });
    assert_eq!(decided.as_ref(), expected, "{reports:?}");

    // Without something known, it is clear once more than half of all agree.
    if known.is_none() && is_clear(reports, sentinels, None) {
        let last = reports.last();
        assert!(last.is_some_and(|last| votes(last) * 2 > sentinels), "{reports:?}");
    }
    if let Some(known) = known
        && is_clear(reports, sentinels, Some(known))
    {
        let last = reports.last();
        assert!(last.is_some_and(|last| last.epoch > known.epoch && last.address != known.address));
    }
    decided
}
