//! A fork of a process that campaigns: its candidates stay the parent's, and the child may have one
//! of its own.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::forked::Child;
use crate::common::wait_for_a_waiter;
use crate::ran_in_a_child;
use wheellock::crossbeam_channel::TryRecvError;
use wheellock::{Campaign, Client, Error, LeaderElection, LostReason, Term};
use wheellock_fixture::{RawConnection, Server, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

fn election(client: &Client) -> LeaderElection {
    client.leader_election("scheduler")
}

/// What the parent has: a candidate that leads, and one that waits.
struct Candidates {
    leading: Campaign,
    term: Term,
    waiting: Campaign,
}

/// In a child: what it inherits is no candidate, ends nothing, and does not hang. Its own candidate
/// follows the parent's.
fn follow_from_a_fork(client: &Client, server: SocketAddr, inherited: Candidates) {
    let Candidates { leading, term, waiting } = inherited;
    let number = term.number();
    for campaign in [&leading, &waiting] {
        assert!(!campaign.is_leader());
        assert_eq!(campaign.error(), None);
        assert!(campaign.next_term().is_none() && campaign.terms().count() == 0);
        campaign.stop();
    }
    assert!(!term.is_leader());
    assert_eq!(term.lost().try_recv(), Err(TryRecvError::Empty));
    let forked = Error::Lost { name: "scheduler".to_owned(), reason: LostReason::Forked };
    assert_eq!(term.resign(), Err(forked));
    drop((leading, waiting));
    let leader = election(client).leader().unwrap().unwrap();
    assert_eq!(leader.term, number, "the fork has ended the parent's term");

    let own = election(client).campaign().unwrap();
    wait_for_a_waiter(client);
    RawConnection::open(server).unwrap().command(&["SET", "waits", "1"]);
    let term = own.next_term().unwrap();
    assert!(term.number() > number && term.is_leader() && own.is_leader());
    term.resign().unwrap();
}

#[test]
fn a_fork_during_a_campaign_leaves_the_parents_candidates_and_a_child_that_can_follow() {
    if ran_in_a_child(
        a_fork_during_a_campaign_leaves_the_parents_candidates_and_a_child_that_can_follow,
    ) {
        return;
    }
    let server = Server::start();
    let connect = || Client::connect(&server.url()).unwrap();
    let [client, other] = [connect(), connect()];
    let leading = election(&client).campaign().unwrap();
    let term = leading.next_term().unwrap();
    let waiting = election(&other).campaign().unwrap();
    wait_for_a_waiter(&other);
    let mut candidates = Some(Candidates { leading, term, waiting });
    let child = Child::doing(LIMIT, || {
        follow_from_a_fork(&client, server.address(), candidates.take().unwrap());
    });
    let Candidates { leading, term, waiting } = candidates.unwrap();
    wait_until("the child waits for the lead", LIMIT, || {
        server.command(&["DEL", "waits"]).integer() == 1
    });
    assert!(term.is_leader() && leading.is_leader() && !waiting.is_leader());
    let number = term.number();
    term.resign().unwrap();
    leading.stop();
    // It leads before the child or after it.
    let next = waiting.next_term().unwrap();
    assert!(next.number() > number && next.is_leader());
    next.resign().unwrap();
    child.wait();
}
