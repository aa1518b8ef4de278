//! What a child of a fork inherits of a client: each call is refused, a drop is quiet, and the
//! parent goes on as if there were no child. The child builds a client of its own.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::{Duration, Instant};

use crate::common::LIMIT;
use crate::common::forked::Child;
use crate::ran_in_a_child;
use wheellock::{
    Client, Clock, CountDownLatch, Error, ExpirableSemaphore, FencedLock, Job, JobRun,
    LeaderElection, Lock, LockStatus, Memory, MultiLock, OwnedGuard, PermitId, RedLock, Semaphore,
    ShutdownReport, SystemClock, Wait,
};
use wheellock_fixture::{Cluster, Sentinels, Server, wait_until};

/// Not lost while a busy machine does something else.
const LEASE: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(3600);

/// One handle of each type.
struct Handles {
    client: Client,
    locks: [Lock; 8],
    fenced: FencedLock,
    sendable: Lock<OwnedGuard>,
    semaphore: Semaphore,
    permits: ExpirableSemaphore,
    latch: CountDownLatch,
    job: Job,
    election: LeaderElection,
    multi: MultiLock,
    red: RedLock,
}

impl Handles {
    fn of(clients: &[Client; 3]) -> Self {
        let [client, other, _] = clients;
        let both = client.read_write_lock("both");
        Self {
            client: client.with_prefix("in "),
            locks: [
                client.lock("plain"),
                client.non_reentrant_lock("plain"),
                client.spin_lock("spin"),
                client.simple_lock("simple"),
                client.fair_lock("fair"),
                client.non_reentrant_fair_lock("fair"),
                both.read_lock(),
                both.write_lock(),
            ],
            fenced: client.fenced_lock("fenced"),
            sendable: client.fenced_lock("fenced").sendable(),
            semaphore: client.semaphore("semaphore"),
            permits: client.expirable_semaphore("permits"),
            latch: client.count_down_latch("latch"),
            job: client.job("job"),
            election: client.leader_election("election"),
            multi: client.multi_lock(&[&client.lock("one"), &other.lock("two")]),
            red: Client::red_lock(clients, "red"),
        }
    }
}

/// The result of each call that asks a server.
fn calls(
    of: &Handles,
    status: &LockStatus,
    id: PermitId,
) -> Vec<(&'static str, Result<(), Error>)> {
    let Handles { client, semaphore, permits, latch, job, election, multi, red, .. } = of;
    let (soon, none) = (SystemClock.now() + LIMIT, Wait::none);
    let run = |_: &JobRun<'_>| Ok::<_, Error>(());
    let mut calls = vec![
        ("Client::status", client.status("plain").map(drop)),
        ("Client::next_change", client.next_change(status, LIMIT).map(drop)),
        ("Client::locks", client.locks("*").try_for_each(|status| status.map(drop))),
        ("Client::ping", client.ping()),
        ("FencedLock::last_token", of.fenced.last_token().map(drop)),
        ("Lock<OwnedGuard>::last_token", of.sendable.last_token().map(drop)),
        ("Semaphore::acquire", semaphore.acquire(1).map(drop)),
        ("Semaphore::acquire of none", semaphore.acquire(0).map(drop)),
        ("Semaphore::try_acquire", semaphore.try_acquire(1).map(drop)),
        ("Semaphore::try_acquire_for", semaphore.try_acquire_for(1, LIMIT).map(drop)),
        ("Semaphore::try_acquire_with", semaphore.try_acquire_with(1, none()).map(drop)),
        ("Semaphore::release", semaphore.release(1)),
        ("Semaphore::release_if_exists", semaphore.release_if_exists(1).map(drop)),
        ("Semaphore::available_permits", semaphore.available_permits().map(drop)),
        ("Semaphore::drain_permits", semaphore.drain_permits().map(drop)),
        ("Semaphore::try_set_permits", semaphore.try_set_permits(1).map(drop)),
        ("Semaphore::try_set_permits_for", semaphore.try_set_permits_for(1, LONG).map(drop)),
        ("Semaphore::add_permits", semaphore.add_permits(1)),
        ("ExpirableSemaphore::acquire", permits.acquire().map(drop)),
        ("ExpirableSemaphore::try_acquire", permits.try_acquire().map(drop)),
        ("ExpirableSemaphore::try_acquire_for", permits.try_acquire_for(LIMIT).map(drop)),
        ("ExpirableSemaphore::try_acquire_with", permits.try_acquire_with(none()).map(drop)),
        ("ExpirableSemaphore::acquire_many", permits.acquire_many(2).map(drop)),
        ("ExpirableSemaphore::try_acquire_many", permits.try_acquire_many(2).map(drop)),
        (
            "ExpirableSemaphore::try_acquire_many_with",
            permits.try_acquire_many_with(2, none()).map(drop),
        ),
        ("ExpirableSemaphore::release", permits.release(&id)),
        ("ExpirableSemaphore::try_release", permits.try_release(&id).map(drop)),
        ("ExpirableSemaphore::release_all", permits.release_all(&[id]).map(drop)),
        ("ExpirableSemaphore::release_all of none", permits.release_all(&[]).map(drop)),
        ("ExpirableSemaphore::available_permits", permits.available_permits().map(drop)),
        ("ExpirableSemaphore::permits", permits.permits().map(drop)),
        ("ExpirableSemaphore::acquired_permits", permits.acquired_permits().map(drop)),
        ("ExpirableSemaphore::try_set_permits", permits.try_set_permits(1).map(drop)),
        ("ExpirableSemaphore::set_permits", permits.set_permits(1)),
        ("ExpirableSemaphore::add_permits", permits.add_permits(1)),
        ("ExpirableSemaphore::update_lease", permits.update_lease(&id, LONG).map(drop)),
        ("ExpirableSemaphore::remove_lease", permits.remove_lease(&id).map(drop)),
        ("ExpirableSemaphore::lease_of", permits.lease_of(&id).map(drop)),
        ("CountDownLatch::try_set_count", latch.try_set_count(1).map(drop)),
        ("CountDownLatch::count_down", latch.count_down()),
        ("CountDownLatch::count", latch.count().map(drop)),
        ("CountDownLatch::delete", latch.delete().map(drop)),
        ("CountDownLatch::wait", latch.wait()),
        ("CountDownLatch::wait_for", latch.wait_for(LIMIT).map(drop)),
        ("CountDownLatch::wait_with", latch.wait_with(none()).map(drop)),
        ("Job::run_once", job.run_once("slot", run).map(drop)),
        ("Job::run_once_with", job.run_once_with("slot", LIMIT, run).map(drop)),
        ("LeaderElection::campaign", election.campaign().map(drop)),
        ("LeaderElection::campaign_with", election.campaign_with(|_| {}).map(drop)),
        ("LeaderElection::leader", election.leader().map(drop)),
        ("MultiLock::lock", multi.lock().map(drop)),
        ("MultiLock::try_lock", multi.try_lock().map(drop)),
        ("MultiLock::try_lock_for", multi.try_lock_for(LIMIT).map(drop)),
        ("MultiLock::try_lock_until", multi.try_lock_until(soon).map(drop)),
        ("MultiLock::try_lock_with", multi.try_lock_with(none()).map(drop)),
        ("RedLock::lock", red.lock().map(drop)),
        ("RedLock::try_lock", red.try_lock().map(drop)),
        ("RedLock::try_lock_for", red.try_lock_for(LIMIT).map(drop)),
        ("RedLock::try_lock_until", red.try_lock_until(soon).map(drop)),
        ("RedLock::try_lock_with", red.try_lock_with(none()).map(drop)),
    ];
    for lock in &of.locks {
        calls.extend(calls_of(lock, soon));
    }
    calls
}

fn calls_of(lock: &Lock, soon: Instant) -> [(&'static str, Result<(), Error>); 11] {
    [
        ("Lock::lock", lock.lock().map(drop)),
        ("Lock::try_lock", lock.try_lock().map(drop)),
        ("Lock::try_lock_for", lock.try_lock_for(LIMIT).map(drop)),
        ("Lock::try_lock_until", lock.try_lock_until(soon).map(drop)),
        ("Lock::try_lock_with", lock.try_lock_with(Wait::none()).map(drop)),
        ("Lock::is_locked", lock.is_locked().map(drop)),
        ("Lock::remaining_lease", lock.remaining_lease().map(drop)),
        ("Lock::holder", lock.holder().map(drop)),
        ("Lock::holders", lock.holders().map(drop)),
        ("Lock::waiters", lock.waiters().map(drop)),
        ("Lock::force_unlock", lock.force_unlock().map(drop)),
    ]
}

/// What asks no server.
fn check_local_calls(of: &Handles, id: &str) {
    let Handles { client, locks, multi, red, .. } = of;
    assert!(!locks.iter().any(Lock::is_held_by_current_thread));
    assert_eq!(locks[0].hold_count(), 0);
    assert!(!multi.is_held_by_current_thread() && !red.is_held_by_current_thread());
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiters, stats.connections_made), (0, 0, 0));
    assert!(client.holds().is_empty() && client.warnings().is_empty());
    assert_eq!(client.shutdown(LIMIT), ShutdownReport::default());
    assert_eq!(client.id(), id);
    assert!(format!("{client:?}{locks:?}{multi:?}{red:?}").contains(id));
}

#[test]
fn each_call_of_an_inherited_handle_is_an_error_in_a_child() {
    if ran_in_a_child(each_call_of_an_inherited_handle_is_an_error_in_a_child) {
        return;
    }
    assert!(!Error::Forked.is_retryable() && !Error::Forked.is_outcome_unknown());
    let servers = [Server::start(), Server::start(), Server::start()];
    let clients = servers.each_ref().map(|server| Client::connect(&server.url()).unwrap());
    let inherited = Handles::of(&clients);
    let status = clients[0].status("plain").unwrap();
    inherited.permits.set_permits(1).unwrap();
    let permit = inherited.permits.acquire().unwrap();
    let id = permit.id();
    // This thread holds them, and has asked for a page of names.
    let guard = inherited.locks[0].lock().unwrap();
    let multi = inherited.multi.lock().unwrap();
    let red = inherited.red.lock().unwrap();
    wait_until("all servers have joined", LIMIT, || red.held_on() == 3);
    let mut pages = clients[0].locks("*");
    pages.next().unwrap().unwrap();

    let (own_id, memory) = (clients[0].id(), Memory::new());
    let child = Child::doing(LIMIT, || {
        for of in [&inherited, &Handles::of(&clients)] {
            for (call, result) in calls(of, &status, id) {
                assert_eq!(result, Err(Error::Forked), "{call}");
            }
            check_local_calls(of, &own_id);
        }
        assert_eq!(pages.next(), Some(Err(Error::Forked)));
        assert!(pages.next().is_none());
        let of_memory = Client::builder().in_memory(&memory).build();
        assert_eq!(of_memory.map(drop), Err(Error::Forked));
    });
    child.wait();
    assert!(guard.is_held() && multi.is_held() && red.is_held() && permit.is_valid());
    guard.unlock().unwrap();
    multi.unlock().unwrap();
    red.unlock().unwrap();
    permit.release().unwrap();
    assert!(clients.iter().all(|client| client.stats().lost == 0));
}

/// Drops the last handles of the parent's clients in a child, which then uses a client of its own.
/// How many connections the parent has made since.
fn drop_in_a_child(connect: &dyn Fn() -> Client) -> u64 {
    let [client, idle] = [connect(), connect()];
    let guard = client.lock("kept").lock().unwrap();
    idle.lock("idle").lock().unwrap().unlock().unwrap();
    wait_until("the lock is renewed", LIMIT, || guard.is_held() && client.stats().renewed > 0);
    let made = client.stats().connections_made;
    let mut held = Some((guard, client, idle));
    let child = Child::doing(LIMIT, || {
        let (guard, client, idle) = held.take().unwrap();
        assert_eq!(client.lock("kept").try_lock().map(drop), Err(Error::Forked));
        drop((guard, client, idle));
        let own = connect();
        assert!(own.lock("kept").try_lock().unwrap().is_none(), "the fork released it");
        let guard = own.lock("own").lock().unwrap();
        wait_until("the child's lock is renewed", LIMIT, || own.stats().renewed > 0);
        guard.unlock().unwrap();
    });
    child.wait();
    let (guard, client, idle) = held.unwrap();
    let renewed = client.stats().renewed;
    wait_until("the lock is renewed again", LIMIT, || client.stats().renewed > renewed);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    idle.ping().unwrap();
    let stats = client.stats();
    assert_eq!(stats.lost, 0);
    stats.connections_made - made
}

fn connect(url: &str) -> Client {
    Client::builder().url(url).watchdog_lease(LEASE).build().unwrap()
}

#[test]
fn a_client_that_a_child_drops_goes_on_in_the_parent() {
    if ran_in_a_child(a_client_that_a_child_drops_goes_on_in_the_parent) {
        return;
    }
    let server = Server::start();
    assert_eq!(drop_in_a_child(&|| connect(&server.url())), 0);
}

#[test]
fn a_cluster_client_that_a_child_drops_goes_on_in_the_parent() {
    if ran_in_a_child(a_cluster_client_that_a_child_drops_goes_on_in_the_parent) {
        return;
    }
    let cluster = Cluster::start(3, 0);
    drop_in_a_child(&|| connect(&cluster.url()));
}

#[test]
fn a_sentinel_client_that_a_child_drops_goes_on_in_the_parent() {
    if ran_in_a_child(a_sentinel_client_that_a_child_drops_goes_on_in_the_parent) {
        return;
    }
    let sentinels = Sentinels::start();
    drop_in_a_child(&|| connect(&sentinels.url()));
}
