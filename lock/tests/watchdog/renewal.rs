//! How renewals are sent: which commands a real server receives, and how one hold's failure affects
//! others.

use std::sync::Arc;
use std::time::Duration;

use crate::common::expected::Expected;
use crate::common::in_memory::InMemory;
use crate::common::{ProxiedServer, Script, built, limit_user, limited_user};
use wheellock::{Client, Error, LockGuard, LostReason, ManualClock, Memory, Warning};
use wheellock_fixture::{Fault, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn all_held(guards: &[LockGuard]) -> bool {
    guards.iter().all(LockGuard::is_held)
}

#[test]
fn a_key_that_fails_its_script_does_not_affect_others() {
    let server = Server::start();
    let clock = ManualClock::new();
    let builder = Client::builder().url(&limited_user(&server, &[]));
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guards: Vec<_> =
        (0..60).map(|number| client.lock(&format!("open:{number}")).lock().unwrap()).collect();
    let forbidden = client.lock("forbidden").lock().unwrap();
    // From now on any script with this key in it is refused as a whole.
    limit_user(&server, &["resetkeys", "~open:*"]);

    clock.advance(SECOND * 10);
    assert_eq!(client.stats().renewed, 60);
    assert!(forbidden.is_held(), "it may yet be allowed again");
    clock.advance(SECOND * 20);
    assert_eq!(forbidden.lost().try_recv(), Ok(LostReason::Refused { code: "NOPERM" }));
    assert!(all_held(&guards));
    assert_eq!(client.stats().lost, 1);
    let warnings = client.warnings();
    let is_told = |warning: &Warning| matches!(warning, Warning::RenewalsRefused { refusal, .. } if refusal.contains("NOPERM"));
    assert_eq!(warnings.iter().filter(|warning| is_told(warning)).count(), 1, "{warnings:?}");
}

/// A server that answers every renewal with an error is not one that does not answer.
#[test]
fn a_loss_by_misconf_names_it_and_is_warned_of_once() {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    let builder = setup.builder().clock(Arc::new(clock.clone()));
    let client = built(builder);
    let guards: Vec<_> =
        (0..3).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
    let refusal = "MISCONF Redis is configured to save RDB snapshots";
    let answer = Fault::AnswerInstead(format!("-{refusal}\r\n").into_bytes());
    let _refused = setup.proxy.on(setup.is_any(Script::Renew), answer).always();
    clock.advance(SECOND * 12);
    assert!(all_held(&guards));
    let expected = [Expected::RenewalsRefused(refusal.to_owned())];
    assert_eq!(client.warnings(), expected);
    clock.advance(SECOND * 20);
    for guard in &guards {
        assert_eq!(guard.lost().try_recv(), Ok(LostReason::Refused { code: "MISCONF" }));
        let told = guard.check().unwrap_err().to_string();
        assert!(told.contains("MISCONF") && told.contains("refused"), "{told}");
    }
    assert_eq!(client.stats().losses.because(LostReason::Refused { code: "ERR" }), 3);
    assert_eq!(client.warnings(), expected);
}

#[test]
fn a_refusal_that_passes_is_outlived() {
    let server = Server::start();
    let clock = ManualClock::new();
    let builder = Client::builder().url(&limited_user(&server, &[]));
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guard = client.lock("a").lock().unwrap();
    limit_user(&server, &["resetkeys"]);
    clock.advance(SECOND * 20);
    assert!(client.stats().unanswered_renewals > 0);
    limit_user(&server, &["~*"]);
    clock.advance(SECOND * 60);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn refusing_server_gets_few_more_requests_than_renewal_scripts() {
    let server = Server::start();
    let clock = ManualClock::new();
    let builder = Client::builder().url(&limited_user(&server, &[]));
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guards: Vec<_> =
        (0..1100).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
    limit_user(&server, &["resetkeys"]);
    // Eleven scripts of a hundred, and ten holds alone. The wheel gives out a thousand and some at
    // a time, so the rest may come in a turn of its own: four scripts, and one alone.
    clock.jump(SECOND * 15);
    let first = client.stats().renewal_scripts;
    assert!((21..=26).contains(&first), "{first}");
    // Once it is known to, one hold alone.
    clock.jump(SECOND * 3);
    let second = client.stats().renewal_scripts - first;
    assert!((12..=17).contains(&second), "{second}");
    limit_user(&server, &["~*"]);
    clock.advance(SECOND * 3);
    assert!(client.stats().renewed >= 1100, "{:?}", client.stats());
    assert!(all_held(&guards));
    assert_eq!(client.stats().lost, 0);
}

#[test]
fn holds_behind_many_refused_ones_are_renewed() {
    let server = Server::start();
    let clock = ManualClock::new();
    let builder = Client::builder().url(&limited_user(&server, &[])).renewal_batch(600, 600);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let take = |name: &str| -> Vec<_> {
        (0..300).map(|number| client.lock(&format!("{name}:{number}")).lock().unwrap()).collect()
    };
    let (closed, open) = (take("closed"), take("open"));
    limit_user(&server, &["resetkeys", "~open:*"]);
    // All in one script.
    clock.jump(SECOND * 10);
    clock.advance(SECOND * 15);
    assert!(all_held(&closed) && all_held(&open));
    clock.advance(SECOND * 10);
    assert!(all_held(&open));
    assert_eq!(client.stats().losses.because(LostReason::Refused { code: "NOPERM" }), 300);
    assert_eq!(client.stats().lost, 300);
}

#[test]
fn a_script_has_never_more_keys_than_the_setting_says() {
    let setup = InMemory::new();
    let client = setup.client();
    // Twelve beyond a full script.
    let guards: Vec<_> =
        (0..37).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
    setup.clock.jump(SECOND * 15);
    let stats = client.stats();
    assert_eq!((stats.renewed, stats.renewal_scripts), (37, 2));
    assert!(all_held(&guards));
}

#[test]
fn renewal_lateness_counts_from_first_due_time_despite_retries() {
    let setup = InMemory::new();
    let client = setup.client();
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    setup.clock.advance(SECOND * 15);
    assert!(client.stats().renewal_retries > 1);
    setup.memory.set_unreachable(false);
    setup.clock.advance(SECOND * 3);
    let late = client.stats().renewal_lateness;
    assert!(late.count == 1 && late.max >= SECOND * 5 && late.max < SECOND * 8, "{late:?}");
    // The next is on time again.
    setup.clock.advance(SECOND * 20);
    let late = client.stats().renewal_lateness;
    assert!(late.count == 3 && late.p50 < SECOND / 10, "{late:?}");
    assert!(guard.is_held());
}

#[test]
fn the_size_of_a_script_is_a_setting() {
    let server = Server::start();
    let clock = ManualClock::new();
    let client = Client::builder()
        .url(&server.url())
        .clock(Arc::new(clock.clone()))
        .renewal_batch(5, 10)
        .build()
        .unwrap();
    let guards: Vec<_> =
        (0..300).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    // All due at once: in scripts for those that are behind.
    clock.jump(SECOND * 15);
    wait_until("all are renewed", SECOND * 10, || client.stats().renewed == 300);
    assert_eq!(client.stats().renewal_scripts, 30);
    assert!(all_held(&guards));
}

#[test]
fn a_size_out_of_its_bounds_is_refused() {
    for (keys, behind) in [(0, 10), (10, 9), (10, 1001)] {
        let refused =
            Client::builder().in_memory(&Memory::new()).renewal_batch(keys, behind).build();
        assert!(
            matches!(refused, Err(Error::InvalidSetting { setting: "renewal_batch", .. })),
            "{keys}, {behind}"
        );
    }
}

#[test]
fn hanging_server_gets_a_single_renewal_attempt_at_a_time() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).renewal_batch(5, 10).build().unwrap();
    let guards: Vec<_> =
        (0..1000).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    memory.set_unreachable(true);
    clock.jump(SECOND * 15);
    // One of a hundred scripts asked; in memory there is no pipeline. The others wait with it.
    assert_eq!(client.stats().renewal_scripts, 1);
    memory.set_unreachable(false);
    clock.advance(SECOND * 10);
    assert!(all_held(&guards));
    assert!(client.stats().renewed >= 1000);
}

#[test]
fn statistics_report_scripts_lateness_and_loss_reasons() {
    let clock = ManualClock::new();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let client = Client::builder().in_memory(&memory).build().unwrap();
    let guards: Vec<_> =
        (0..200).map(|number| client.lock(&format!("lock {number}")).lock().unwrap()).collect();
    assert_eq!(client.stats().renewal_lateness.count, 0);
    // Due after ten seconds at the latest: late by what the process stood still beyond.
    clock.jump(SECOND * 15);
    let stats = client.stats();
    assert_eq!((stats.renewed, stats.renewal_lateness.count), (200, 200));
    assert!(stats.renewal_lateness.p50 > SECOND * 5, "{:?}", stats.renewal_lateness);
    assert_eq!((stats.renewal_scripts, stats.renewal_round_trip.count), (8, 8));

    memory.delete("lock 7");
    memory.set_unreachable(true);
    clock.advance(SECOND * 25);
    memory.set_unreachable(false);
    assert!(client.stats().renewal_retries > 200);
    clock.advance(SECOND * 10);
    assert_eq!(client.stats().losses.because(LostReason::Deleted), 1);
    memory.set_unreachable(true);
    clock.advance(SECOND * 31);
    let stats = client.stats();
    assert_eq!(stats.losses.because(LostReason::ServerUnreachable), 199);
    assert_eq!(stats.lost, 200);
    assert!(!guards.iter().any(LockGuard::is_held));
}

#[test]
fn connections_are_counted_so_that_it_shows_when_they_break() {
    let server = Server::start();
    let client = Client::connect(&server.url()).unwrap();
    let before = client.stats().connections_made;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    client.lock("a").lock().unwrap().unlock().unwrap();
    assert!(client.stats().connections_made > before);
}

#[test]
fn a_server_that_became_a_replica_is_resolved_again() {
    let server = Server::start();
    let clock = ManualClock::new();
    let client =
        Client::builder().url(&server.url()).clock(Arc::new(clock.clone())).build().unwrap();
    let guard = client.lock("a").lock().unwrap();
    clock.advance(SECOND * 10);
    assert_eq!(client.stats().renewed, 1);
    let connections = client.stats().connections_made;
    // A replica without a master: it keeps its keys and refuses writes.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    clock.advance(SECOND * 10);
    assert!(client.stats().unanswered_renewals > 0);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    clock.advance(SECOND * 10);
    assert!(guard.is_held());
    assert!(client.stats().connections_made > connections, "whoever answers the name by then");
}
