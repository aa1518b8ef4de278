//! Leader elections: one leads, and is followed when it resigns, stops, dies or is lost.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::common::in_memory::InMemory;
use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, now, pause, wait_for_a_waiter};
use wheellock::crossbeam_channel::{RecvTimeoutError, bounded};
use wheellock::{Campaign, Client, Error, LeaderChanges, LeaderElection, LostReason, Wait};
use wheellock_fixture::{Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn election(client: &Client) -> LeaderElection {
    client.leader_election("scheduler")
}

fn campaign(client: &Client) -> Campaign {
    election(client).campaign().unwrap()
}

/// A candidate that waits for the lead.
fn waiting(client: &Client) -> Campaign {
    let campaign = campaign(client);
    wait_for_a_waiter(client);
    campaign
}

on_all_stores! {
    fn an_election_in_braces_is_refused(setup: &TestStore) {
        let election = setup.client().leader_election("{scheduler}");
        assert!(matches!(election.campaign(), Err(Error::InvalidName { .. })));
        assert!(matches!(election.leader(), Err(Error::InvalidName { .. })));
        let election = setup.client().leader_election("{scheduler}:eu");
        assert_eq!(election.leader().unwrap(), None);
    }

    fn one_candidate_leads_and_everybody_knows_which(setup: &TestStore) {
        let [client, other, observer] = [setup.client(), setup.client(), setup.client()];
        assert_eq!(election(&observer).leader(), Ok(None));
        let first = campaign(&client);
        let term = first.next_term().unwrap();
        assert!(term.is_leader() && first.is_leader());
        let second = waiting(&other);
        assert!(!second.is_leader());
        let leader = election(&observer).leader().unwrap().unwrap();
        assert_eq!(leader.term, term.number());
        assert!(leader.owner.starts_with(&client.id()), "{leader:?}");
        term.resign().unwrap();
        assert!(!first.is_leader());
        let next = second.next_term().unwrap();
        assert!(next.number() > leader.term);
        let leader = election(&observer).leader().unwrap().unwrap();
        assert_eq!(leader.term, next.number());
        assert!(leader.owner.starts_with(&other.id()), "{leader:?}");
    }

    fn whoever_drops_stops_or_shuts_down_is_followed_at_once(setup: &TestStore) {
        let other = setup.client();
        let ends: [fn(&Client, Campaign); 4] = [
            |_, campaign| drop(campaign.next_term().unwrap()),
            |_, campaign| drop(campaign),
            |_, campaign| {
                let term = campaign.next_term().unwrap();
                campaign.stop();
                assert!(!term.is_leader());
                assert!(campaign.next_term().is_none() && campaign.error().is_none());
            },
            |client, campaign| {
                let term = campaign.next_term().unwrap();
                let report = client.shutdown(SOON);
                assert_eq!((report.released, report.unreleased.len()), (1, 0));
                assert_eq!(term.lost().recv(), Ok(LostReason::Shutdown));
                drop(term);
                assert!(campaign.next_term().is_none());
                assert_eq!(campaign.error(), Some(Error::Shutdown));
            },
        ];
        for end in ends {
            let client = setup.client();
            let first = campaign(&client);
            wait_until("it leads", SOON, || first.is_leader());
            let second = waiting(&other);
            let ended = now();
            end(&client, first);
            let term = second.next_term().unwrap();
            // Its lease is 30 s, and a message that is lost costs one.
            assert!(now() - ended < SECOND * 5);
            drop(term);
            drop(second);
            wait_until("nobody leads", SOON, || election(&other).leader() == Ok(None));
        }
    }

    fn lost_term_reports_reason_and_candidate_campaigns_again(setup: &TestStore) {
        let client = setup.client();
        let campaign = campaign(&client);
        let term = campaign.next_term().unwrap();
        assert!(client.fenced_lock("scheduler").force_unlock().unwrap());
        assert_eq!(term.lost().recv_timeout(SOON), Ok(LostReason::Deleted));
        assert!(!term.is_leader() && !campaign.is_leader());
        let number = term.number();
        let resigned = term.resign();
        assert!(matches!(resigned, Err(Error::Lost { .. })), "{resigned:?}");
        assert!(campaign.next_term().unwrap().number() > number);
    }

    fn lost_unclaimed_term_is_followed_by_new_term(setup: &TestStore) {
        let client = setup.client();
        let campaign = campaign(&client);
        for _ in 0..3 {
            wait_until("it leads", SOON, || campaign.is_leader());
            let leader = || election(&client).leader().unwrap().map(|leader| leader.term);
            let term = leader();
            assert!(client.fenced_lock("scheduler").force_unlock().unwrap());
            wait_until("another term", SOON, || leader() > term);
        }
        assert!(campaign.next_term().unwrap().is_leader());
    }

    fn callback_return_or_panic_on_campaign_thread_ends_term(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let (tell, told) = bounded(9);
        let mut times = 0;
        let campaign = election(&client)
            .campaign_with(move |term| {
                times += 1;
                let name = thread::current().name().map(str::to_owned);
                tell.send((times, name, term.is_leader())).unwrap();
                match times {
                    1 => {}
                    2 => std::panic::resume_unwind(Box::new("a panic that is counted")),
                    _ => assert!(term.lost().recv().is_err(), "it was stopped"),
                }
            })
            .unwrap();
        for time in 1..=3 {
            let (times, name, leads) = told.recv_timeout(SOON).unwrap();
            assert_eq!((times, name.as_deref(), leads), (time, Some("lock-election"), true));
        }
        assert_eq!(client.stats().callback_panics, 1);
        let next = waiting(&other);
        campaign.stop();
        assert!(next.next_term().unwrap().is_leader());
        assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected), "it has ended");
    }

    fn stop_and_wait_keeps_leadership_until_callback_ends(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let (tell, told) = bounded(1);
        let (go_on, gone_on) = bounded::<()>(0);
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let first = election(&client)
            .campaign_with(move |term| {
                let asked = term.revocation().recv().unwrap();
                assert!(term.is_asked() && term.is_leader());
                tell.send(asked.reason).unwrap();
                // Ends its work, which takes as long as the test likes.
                gone_on.recv().unwrap_err();
                assert!(term.is_leader());
                ended.store(true, Ordering::SeqCst);
            })
            .unwrap();
        wait_until("it leads", SOON, || first.is_leader());
        let second = waiting(&other);
        thread::scope(|scope| {
            let stopped = scope.spawn(|| first.stop_and_wait(SOON));
            assert!(told.recv_timeout(SOON).unwrap().contains("stopped"));
            assert!(first.is_leader() && !second.is_leader());
            // Time is over for an impatient caller, and the term goes on.
            assert!(!first.stop_and_wait(Duration::from_millis(10)));
            assert!(first.is_leader());
            drop(go_on);
            let next = second.next_term().unwrap();
            assert!(has_ended.load(Ordering::SeqCst), "two lead");
            assert!(stopped.join().unwrap() && !first.is_leader());
            assert!(next.is_leader());
        });
        assert!(first.stop_and_wait(Duration::ZERO), "it has ended");
    }

    fn stop_and_wait_waits_for_claimed_but_not_unclaimed_term(setup: &TestStore) {
        let client = setup.client();
        let first = campaign(&client);
        let term = first.next_term().unwrap();
        thread::scope(|scope| {
            let stopped = scope.spawn(|| first.stop_and_wait(SOON));
            term.revocation().recv_timeout(SOON).unwrap();
            assert!(term.is_leader() && term.is_asked());
            term.resign().unwrap();
            assert!(stopped.join().unwrap());
        });
        assert!(first.next_term().is_none());
        let second = campaign(&client);
        wait_until("it leads", SOON, || second.is_leader());
        assert!(second.stop_and_wait(SOON));
        assert!(!second.is_leader());
        assert_eq!(election(&client).leader(), Ok(None));
        // There is nothing to wait for.
        let _leads = client.fenced_lock("scheduler").lock().unwrap();
        assert!(waiting(&client).stop_and_wait(Duration::ZERO));
    }

    fn stop_and_wait_inside_own_callback_returns_without_waiting(setup: &TestStore) {
        let client = setup.client();
        let own: Arc<OnceLock<Campaign>> = Arc::default();
        let (tell, told) = bounded(1);
        let campaign = Arc::clone(&own);
        let started = election(&client).campaign_with(move |term| {
            wait_until("the campaign is known", SOON, || campaign.get().is_some());
            let waited = campaign.get().unwrap().stop_and_wait(SOON * 6);
            tell.send((waited, term.is_asked(), term.is_leader())).unwrap();
        });
        assert!(own.set(started.unwrap()).is_ok());
        assert_eq!(told.recv_timeout(SOON), Ok((false, true, true)));
        wait_until("nobody leads", SOON, || election(&client).leader() == Ok(None));
    }

    fn an_observer_sees_each_change_and_waits_for_the_next(setup: &TestStore) {
        let [client, other, observer] = [setup.client(), setup.client(), setup.client()];
        let mut changes = election(&observer).changes().unwrap();
        assert_eq!(changes.leader(), None);
        assert!(!changes.wait(Duration::from_millis(10)).unwrap());
        let first = campaign(&client);
        assert!(changes.wait(SOON).unwrap());
        let leader = changes.leader().unwrap().clone();
        assert!(leader.owner.starts_with(&client.id()));
        assert!(!changes.wait(Duration::ZERO).unwrap());
        let second = waiting(&other);
        first.stop();
        // It may see that nobody leads in between.
        wait_until("the other leads", SOON, || {
            changes.wait(SOON).unwrap();
            changes.leader().is_some_and(|next| next.term > leader.term)
        });
        assert!(changes.leader().unwrap().owner.starts_with(&other.id()));
        drop(second);
        assert!(changes.wait(SOON).unwrap());
        assert_eq!(changes.leader(), None);
        let (cancel, cancelled) = bounded::<()>(0);
        drop(cancel);
        let ended = changes.wait(Wait::forever().or_cancelled(&cancelled));
        assert!(matches!(ended, Err(Error::Cancelled { .. })), "{ended:?}");
    }

    fn the_leaders_value_is_found_while_it_leads(setup: &TestStore) {
        let [client, other, observer] = [setup.client(), setup.client(), setup.client()];
        let of = |client: &Client, value: &str| election(client).with_value(value).campaign();
        let first = of(&client, "10.0.0.7:8080").unwrap();
        let term = first.next_term().unwrap();
        let mut changes = election(&observer).changes().unwrap();
        let value = |changes: &LeaderChanges| changes.leader().and_then(|it| it.value.clone());
        wait_until("the value is known", SOON, || {
            changes.wait(Duration::from_millis(100)).unwrap();
            value(&changes).is_some()
        });
        assert_eq!(value(&changes).as_deref(), Some("10.0.0.7:8080"));
        let second = of(&other, "10.0.0.8:8080").unwrap();
        wait_for_a_waiter(&other);
        term.resign().unwrap();
        first.stop();
        wait_until("the next value is known", SOON, || {
            changes.wait(Duration::from_millis(100)).unwrap();
            value(&changes).as_deref() == Some("10.0.0.8:8080")
        });
        assert!(second.is_leader());
        drop(second);
        // The next leader of that client says nothing.
        let third = campaign(&other);
        let term = third.next_term().unwrap();
        let leader = election(&observer).leader().unwrap().unwrap();
        assert_eq!((leader.term, leader.value), (term.number(), None));
        assert!(matches!(of(&client, &"x".repeat(1001)), Err(Error::InvalidSetting { .. })));
    }

    fn whoever_asks_for_the_elections_name_asks_the_leader(setup: &TestStore) {
        let [client, other] = [setup.client(), setup.client()];
        let campaign = campaign(&client);
        let term = campaign.next_term().unwrap();
        assert!(!term.is_asked());
        wait_until("the leader hears", SOON, || {
            assert_eq!(other.lock("scheduler").ask("deploy").unwrap().holders, 1);
            term.is_asked()
        });
        assert_eq!(term.revocation().recv_timeout(SOON).unwrap().reason, "deploy");
        assert!(term.is_leader());
    }

    fn a_campaign_that_cannot_be_ends_with_its_error(setup: &TestStore) {
        let client = setup.client();
        let nameless = client.leader_election("").campaign();
        assert!(matches!(nameless, Err(Error::InvalidName { .. })));
        setup.put_text("scheduler");
        let campaign = campaign(&client);
        assert!(campaign.next_term().is_none());
        assert!(matches!(campaign.error(), Some(Error::WrongType { .. })));
        client.shutdown(SOON);
        assert!(matches!(election(&client).campaign(), Err(Error::Shutdown)));
    }

    fn candidates_of_one_client_are_candidates_like_others(setup: &TestStore) {
        let client = setup.client();
        let [first, second] = [campaign(&client), campaign(&client)];
        wait_until("one leads", SOON, || first.is_leader() || second.is_leader());
        for _ in 0..2 {
            assert!(first.is_leader() != second.is_leader());
            let (leads, follows) =
                if first.is_leader() { (&first, &second) } else { (&second, &first) };
            wait_until("the other one leads", SOON, || {
                // It stands behind the other for a second. A busy machine may take longer.
                if leads.is_leader() {
                    leads.next_term().unwrap().resign().unwrap();
                }
                follows.is_leader()
            });
        }
    }
}

#[test]
fn a_leader_that_stood_still_for_its_lease_leads_no_more() {
    let setup = InMemory::new();
    let client = setup.client();
    let campaign = campaign(&client);
    let term = campaign.next_term().unwrap();
    setup.clock.advance(SECOND * 3600);
    assert!(term.is_leader());
    setup.clock.jump(SECOND * 31);
    assert!(!term.is_leader() && !campaign.is_leader());
    assert_eq!(term.lost().recv_timeout(SOON), Ok(LostReason::Paused));
}

#[test]
fn the_leader_is_shown_with_the_label_of_its_client() {
    let server = Server::start();
    let labelled = |label| built(Client::builder().url(&server.url()).label(label));
    let (candidate, observer) = (labelled("scheduler on db3"), labelled("operator"));
    let campaign = campaign(&candidate);
    let term = campaign.next_term().unwrap();
    let leader = || election(&observer).leader().unwrap().unwrap();
    wait_until("the record is there", SOON, || leader().label.is_some());
    assert_eq!(leader().label.as_deref(), Some("scheduler on db3"));
    assert_eq!(leader().term, term.number());
}

#[test]
fn a_leader_that_dies_is_followed_within_its_lease() {
    let setup = InMemory::new();
    let (client, other) = (setup.client(), setup.client());
    // A program that has died renews nothing.
    let dead = client.fenced_lock("scheduler").with_lease(SECOND * 30).lock().unwrap();
    let campaign = waiting(&other);
    setup.clock.advance(SECOND * 29);
    assert!(!campaign.is_leader());
    setup.clock.advance(SECOND);
    assert!(campaign.next_term().unwrap().number() > dead.token());
}

#[test]
fn resigned_leader_waits_a_second_before_next_campaign() {
    let setup = InMemory::new();
    let client = setup.client();
    let campaign = campaign(&client);
    campaign.next_term().unwrap().resign().unwrap();
    setup.clock.advance(SECOND * 99 / 100);
    pause(Duration::from_millis(50));
    assert!(!campaign.is_leader());
    // Whenever its pause has begun, it is over by then.
    wait_until("it leads", SOON, || {
        setup.clock.advance(SECOND);
        campaign.is_leader()
    });
}

#[test]
fn campaign_survives_server_outage_and_thread_ends_on_drop() {
    let server = Server::start();
    let client = Client::builder()
        .url(&server.url())
        .command_timeout(Duration::from_millis(250))
        .watchdog_lease(SECOND * 2)
        .build()
        .unwrap();
    let campaign = campaign(&client);
    let term = campaign.next_term().unwrap();
    server.kill();
    term.lost().recv_timeout(SOON).unwrap();
    drop(term);
    wait_until("it fails", SOON, || campaign.error().is_some_and(|error| error.is_retryable()));
    server.start_again();
    let term = campaign.next_term().unwrap();
    assert!(campaign.error().is_none());
    server.kill();
    // It waits for nobody.
    drop(campaign);
    assert!(!term.is_leader());
}
