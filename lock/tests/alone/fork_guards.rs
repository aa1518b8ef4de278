//! Guards in the child of a fork: inert there, valid in the parent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::forked::Child;
use crate::common::{LIMIT, SOON};
use crate::ran_in_a_child;
use wheellock::crossbeam_channel::Receiver;
use wheellock::{
    Campaign, Client, Error, FencedGuard, LockGuard, LostFuture, LostReason, MultiGuard,
    OwnedGuard, Permit, Permits, RedGuard, SemaphoreGuard, Term,
};
use wheellock_fixture::{Server, wait_until};

const LEASE: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(3600);

/// One guard of each type.
struct Guards {
    outer: LockGuard,
    inner: LockGuard,
    owned: OwnedGuard,
    fenced: FencedGuard,
    multi: MultiGuard,
    red: RedGuard,
    watched: Permit,
    leased: Permits,
    counted: SemaphoreGuard,
    campaign: Campaign,
    term: Term,
    /// Of another candidate.
    waiting: Campaign,
}

impl Guards {
    fn of(clients: &[Client; 3]) -> Self {
        let [client, other, _] = clients;
        let permits = client.expirable_semaphore("permits");
        permits.set_permits(4).unwrap();
        let campaign = client.leader_election("election").campaign().unwrap();
        let term = campaign.next_term().unwrap();
        let guards = Self {
            outer: client.lock("nested").lock().unwrap(),
            inner: client.lock("nested").lock().unwrap(),
            owned: client.lock("owned").sendable().lock().unwrap(),
            fenced: client.fenced_lock("fenced").lock().unwrap(),
            multi: client.multi_lock(&[&client.lock("one"), &other.lock("two")]).lock().unwrap(),
            red: Client::red_lock(clients, "red").lock().unwrap(),
            watched: permits.clone().watched().acquire().unwrap(),
            leased: permits.with_lease(LONG).acquire_many(2).unwrap(),
            counted: client.semaphore("permits").acquire(1).unwrap(),
            campaign,
            term,
            waiting: client.leader_election("election").campaign().unwrap(),
        };
        wait_until("all servers have joined", SOON, || guards.red.held_on() == 3);
        guards
    }

    /// The channel of each guard that can be lost.
    fn channels(&self) -> [&Receiver<LostReason>; 8] {
        [
            self.outer.lost(),
            self.inner.lost(),
            self.owned.lost(),
            self.fenced.lost(),
            self.multi.lost(),
            self.red.lost(),
            self.watched.lost().unwrap(),
            self.term.lost(),
        ]
    }

    fn futures(&self) -> [LostFuture; 5] {
        [
            self.outer.lost_future().unwrap(),
            self.owned.lost_future().unwrap(),
            self.fenced.lost_future().unwrap(),
            self.multi.lost_future().unwrap(),
            self.watched.lost_future().unwrap().unwrap(),
        ]
    }

    /// Whether each is held: all of them, or none.
    fn are_held(&self) -> bool {
        let all = [
            self.outer.is_held() && !self.outer.remaining().is_zero(),
            self.inner.check().is_ok(),
            self.owned.is_held() && self.owned.check().is_ok(),
            self.fenced.is_held() && self.fenced.check().is_ok(),
            self.multi.is_held() && !self.multi.remaining().is_zero(),
            self.red.held_on() == 3 && !self.red.remaining().is_zero(),
            self.watched.is_valid() && !self.watched.remaining().is_zero(),
            self.leased.is_valid() && !self.leased.remaining().is_zero(),
            self.campaign.is_leader(),
            self.term.is_leader(),
        ];
        assert!(all.iter().all(|held| *held == all[0]), "{all:?}");
        all[0]
    }

    /// Releases each by its method.
    fn release(self) -> [(&'static str, Result<(), Error>); 10] {
        [
            ("nested", self.inner.unlock()),
            ("nested", self.outer.keep_until_lease_ends()),
            ("owned", self.owned.unlock()),
            ("fenced", self.fenced.unlock()),
            ("one", self.multi.unlock()),
            ("red", self.red.unlock()),
            ("permits", self.watched.release()),
            ("permits", self.leased.release()),
            ("permits", self.counted.release()),
            ("election", self.term.resign()),
        ]
    }
}

fn poll(future: LostFuture) -> Poll<Option<LostReason>> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The owners on the servers, and how often each has its lock.
fn owners(servers: &[Server; 3]) -> Vec<String> {
    let names = ["nested", "owned", "fenced", "one", "two", "red", "election"];
    let of = |server: &Server| names.map(|name| server.command(&["HGETALL", name]).texts());
    servers.iter().flat_map(of).flatten().collect()
}

/// What a child sees of guards that it inherited.
fn look_from_a_fork(guards: &Guards, owner: &str, token: u64) {
    assert!(!guards.are_held());
    for lost in guards.channels() {
        assert_eq!(lost.recv_timeout(LIMIT), Ok(LostReason::Forked));
    }
    for future in guards.futures() {
        assert_eq!(poll(future), Poll::Ready(Some(LostReason::Forked)));
    }
    let Guards { outer, inner, owned, fenced, multi, red, campaign, waiting, term, .. } = guards;
    assert_eq!([outer.owner(), inner.owner()], [owner; 2]);
    assert_eq!((fenced.token(), owned.token(), multi.tokens()), (token, None, vec![None; 2]));
    for campaign in [campaign, waiting] {
        assert!(campaign.next_term().is_none() && campaign.terms().count() == 0);
        assert_eq!(campaign.error(), None);
        campaign.stop();
    }
    let shown = format!("{outer:?} {owned:?} {fenced:?} {multi:?} {red:?} {campaign:?} {term:?}");
    assert!(!shown.is_empty());
}

#[test]
fn inherited_guards_hold_nothing_and_release_nothing() {
    if ran_in_a_child(inherited_guards_hold_nothing_and_release_nothing) {
        return;
    }
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = servers
        .each_ref()
        .map(|server| Client::builder().url(&server.url()).watchdog_lease(LEASE).build().unwrap());
    let mut held = Some(Guards::of(&clients));
    let renewed = || clients.each_ref().map(|client| client.stats().renewed);
    let are_renewed = |before: [u64; 3]| {
        wait_until("all are renewed", LIMIT, || {
            renewed().iter().zip(before).all(|(now, before)| *now > before + 1)
        });
    };
    are_renewed([0; 3]);
    let owners_before = owners(&servers);
    let token = held.as_ref().unwrap().fenced.token();
    let owner = servers[0].command(&["HKEYS", "nested"]).texts().remove(0);

    // Nothing was asked of them before.
    let child = Child::doing(LIMIT, || {
        let guards = held.take().unwrap();
        look_from_a_fork(&guards, &owner, token);
        drop(guards);
    });
    child.wait();
    let guards = held.as_ref().unwrap();
    let futures = guards.futures();
    assert!(guards.are_held() && guards.channels().iter().all(|lost| lost.is_empty()));
    assert_eq!(guards.outer.owner(), owner);
    are_renewed(renewed());
    let mut asked = Some(futures);
    let child = Child::doing(LIMIT, || {
        let guards = held.take().unwrap();
        look_from_a_fork(&guards, &owner, token);
        for future in asked.take().unwrap() {
            assert_eq!(poll(future), Poll::Ready(Some(LostReason::Forked)));
        }
        for (name, released) in guards.release() {
            let is_forked = matches!(released, Err(Error::Lost { reason: LostReason::Forked, .. }));
            assert!(is_forked, "{name}: {released:?}");
        }
    });
    child.wait();

    let guards = held.unwrap();
    are_renewed(renewed());
    assert!(guards.are_held() && guards.channels().iter().all(|lost| lost.is_empty()));
    assert_eq!(owners(&servers), owners_before);
    assert!(asked.unwrap().into_iter().all(|future| poll(future).is_pending()));
    let permits = clients[0].expirable_semaphore("permits");
    assert_eq!(permits.available_permits(), Ok(0));
    for (name, released) in guards.release() {
        assert_eq!(released, Ok(()), "{name}");
    }
    assert_eq!(permits.available_permits(), Ok(4));
}
