//! What holders and clients are notified of: losses with their reasons, long holds, and servers
//! that endanger locks.
//!
//! On a manual clock the callbacks have run when `advance` returns.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::expected::{Expected, lost};
use crate::common::in_memory::InMemory;
use crate::common::{
    ProxiedServer, SLACK, SOON, Script, TIMEOUT, built, limited_user, pause, timed,
};
use crossbeam_channel::{Receiver, TryRecvError, bounded, unbounded};
use parking_lot::Mutex;
use wheellock::Fault::{ClockBack, ClockForward};
use wheellock::{
    Client, ClientBuilder, Error, Faults, LockGuard, LostLock, LostReason, ManualClock, Memory,
    Warning,
};
use wheellock_fixture::{Fault, Server, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(10);

/// A client, and the losses that it reports.
fn reporting(setup: &InMemory) -> (Client, Receiver<LostLock>) {
    let (tell, told) = unbounded();
    let client = built(setup.builder().on_lost(move |lost| tell.send(lost.clone()).unwrap()));
    (client, told)
}

/// What a report says, but for the time.
fn said(lost: &LostLock) -> (String, String, LostReason) {
    (lost.name().to_owned(), lost.owner().to_owned(), lost.reason())
}

/// The losses that were reported since the last look.
fn all(told: &Receiver<LostLock>) -> Vec<(String, String, LostReason)> {
    told.try_iter().map(|lost| said(&lost)).collect()
}

fn expected(guard: &LockGuard, reason: LostReason) -> (String, String, LostReason) {
    (guard.name(), guard.owner().to_owned(), reason)
}

fn lost_error(name: &str, reason: LostReason) -> Expected {
    lost(name, reason)
}

// Asking.

#[test]
fn check_passes_during_hold_and_later_returns_loss_reason() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let leased = client.lock("leased").with_lease(SECOND * 10).lock().unwrap();
    let watched = client.lock("watched").lock().unwrap();
    setup.clock.advance(SECOND * 9);
    assert_eq!((leased.check(), watched.check()), (Ok(()), Ok(())));
    setup.clock.advance(SECOND);
    assert_eq!(leased.check(), lost_error("leased", LostReason::Expired));
    assert_eq!(watched.check(), Ok(()));
    setup.memory.delete("watched");
    // Local: no query was sent.
    assert_eq!(watched.check(), Ok(()));
    setup.clock.advance(SECOND * 10);
    assert_eq!(watched.check(), lost_error("watched", LostReason::Deleted));
    let report = client.shutdown(SECOND);
    assert_eq!(report.released, 0);
}

/// A guard that is nested in another goes: its channel closes, though the hold goes on.
fn closes(told: &Receiver<LostReason>, drop_guard: impl FnOnce()) {
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    drop_guard();
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn a_nested_guard_leaves_no_listener_behind() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let outer = client.lock("a").lock().unwrap();
    let (first, second) =
        (client.lock("a").lock().unwrap(), client.fenced_lock("a").lock().unwrap());
    let told = [first.lost().clone(), second.lost().clone()];
    // In either order.
    closes(&told[0], || drop(first));
    closes(&told[1], || second.unlock().unwrap());
    let owned = client.lock("owned").with_owner("task");
    let outermost = owned.lock().unwrap();
    let inner = owned.lock().unwrap();
    closes(&inner.lost().clone(), || drop(inner));
    setup.memory.delete("a");
    setup.clock.advance(SECOND * 11);
    assert_eq!(outer.lost().try_recv(), Ok(LostReason::Deleted));
    assert!(outermost.is_held());
}

#[test]
fn nested_guards_of_several_locks_leave_no_listeners_behind() {
    let setups = [InMemory::new(), InMemory::new(), InMemory::new()];
    let clients: Vec<Client> = setups.iter().map(|setup| built(setup.builder())).collect();
    let (a, b) = (clients[0].lock("a"), clients[0].lock("b"));
    let multi = clients[0].multi_lock(&[&a, &b]);
    let outer = multi.lock().unwrap();
    let inner = multi.lock().unwrap();
    closes(&inner.lost().clone(), || drop(inner));
    assert_eq!(outer.lost().try_recv(), Err(TryRecvError::Empty));

    let red = Client::red_lock(&clients, "red");
    let outer = red.lock().unwrap();
    let inner = red.lock().unwrap();
    closes(&inner.lost().clone(), || inner.unlock().unwrap());
    assert_eq!(outer.lost().try_recv(), Err(TryRecvError::Empty));
}

#[test]
fn loss_found_by_nested_guard_release_reaches_lost_channel() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let (outer, inner) = (client.lock("a").lock().unwrap(), client.lock("a").lock().unwrap());
    let told = inner.lost().clone();
    setup.memory.delete("a");
    assert_eq!(inner.unlock(), lost_error("a", LostReason::Deleted));
    assert_eq!(told.try_recv(), Ok(LostReason::Deleted));
    assert_eq!(outer.lost().try_recv(), Ok(LostReason::Deleted));
}

#[test]
fn a_check_after_a_shutdown_says_so() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let guard = client.lock("a").lock().unwrap();
    client.shutdown(SECOND);
    assert_eq!(guard.check(), lost_error("a", LostReason::Shutdown));
}

#[test]
fn hold_unrenewed_because_of_process_pause_is_lost_as_paused() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    let watched = client.lock("watched").lock().unwrap();
    let leased = client.lock("leased").with_lease(SECOND * 20).lock().unwrap();
    setup.clock.jump(SECOND * 45);
    assert_eq!(watched.check(), lost_error("watched", LostReason::Paused));
    assert_eq!(leased.check(), lost_error("leased", LostReason::Expired));
    let mut told = all(&told);
    told.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        told,
        [expected(&leased, LostReason::Expired), expected(&watched, LostReason::Paused)]
    );
}

#[test]
fn an_unanswered_renewal_before_a_pause_is_lost_as_unreachable() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    let guard = client.lock("a").lock().unwrap();
    setup.memory.set_unreachable(true);
    setup.clock.advance(SECOND * 15);
    assert!(client.stats().unanswered_renewals > 0);
    setup.clock.jump(SECOND * 45);
    assert_eq!(all(&told), [expected(&guard, LostReason::ServerUnreachable)]);
}

#[test]
fn holds_that_were_never_tried_are_lost_as_unreachable_too() {
    let server = Server::start();
    let (tell, told) = unbounded();
    // The locks are taken, and some of them renewed, in this time on a busy machine too.
    let lease = SECOND * 5;
    let builder = Client::builder().url(&server.url()).watchdog_lease(lease);
    let client = built(
        builder
            .command_timeout(SOON)
            .on_lost(move |lost| tell.send((lost.name().to_owned(), lost.reason())).unwrap()),
    );
    // More than can be tried, one thousand after the other, before their validity ends.
    let guards: Vec<_> =
        (0..9000).map(|number| client.lock(&number.to_string()).lock().unwrap()).collect();
    server.pause();
    wait_until("all are lost", SOON, || client.stats().held == 0);
    server.resume();
    client.shutdown(SOON);
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told.len(), guards.len());
    let wrong: Vec<_> =
        told.iter().filter(|(_, reason)| *reason != LostReason::ServerUnreachable).collect();
    assert!(wrong.is_empty(), "{} of {}: {:?}", wrong.len(), told.len(), wrong.first());
    drop(guards);
}

// Being told of losses.

#[test]
fn every_loss_is_reported_exactly_once() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    let take = |name: &str| client.lock(name).with_lease(SECOND * 10).lock().unwrap();
    let mut expect = Vec::new();

    // The ticker.
    let guard = take("ticker");
    setup.clock.advance(SECOND * 10);
    expect.push(expected(&guard, LostReason::Expired));
    assert_eq!(all(&told), expect);
    assert!(guard.check().is_err() && guard.unlock().is_err());

    // The renewal thread.
    let guard = client.lock("renewal").lock().unwrap();
    setup.memory.delete("renewal");
    setup.clock.advance(SECOND * 10);
    expect.push(expected(&guard, LostReason::Deleted));
    drop(guard);

    // A caller, before the ticker comes to it.
    let guard = take("check");
    setup.clock.advance(guard.remaining());
    assert!(guard.check().is_err());
    expect.push(expected(&guard, LostReason::Expired));
    setup.clock.advance(TICK * 2);
    drop(guard);

    let guard = take("unlock");
    setup.clock.advance(guard.remaining());
    expect.push(expected(&guard, LostReason::Expired));
    assert_eq!(guard.unlock(), lost_error("unlock", LostReason::Expired));
    setup.clock.advance(TICK * 2);

    let guard = take("nested");
    setup.clock.advance(guard.remaining());
    setup.memory.delete("nested");
    let next = client.lock("nested").lock().unwrap();
    assert_ne!(next.owner(), guard.owner());
    expect.push(expected(&guard, LostReason::Expired));
    setup.clock.advance(TICK * 2);
    next.unlock().unwrap();
    drop(guard);

    let guard = take("nested unlock");
    let inner = take("nested unlock");
    setup.clock.advance(guard.remaining());
    assert_eq!(inner.unlock(), lost_error("nested unlock", LostReason::Expired));
    expect.push(expected(&guard, LostReason::Expired));
    setup.clock.advance(TICK * 2);
    drop(guard);

    let guard = take("forced");
    client.lock("forced").force_unlock().unwrap();
    expect.push(expected(&guard, LostReason::Deleted));
    setup.clock.advance(SECOND * 10);
    assert!(guard.unlock().is_err());

    // A caller that the server notifies.
    let guard = take("gone");
    setup.memory.delete("gone");
    expect.push(expected(&guard, LostReason::Deleted));
    assert_eq!(guard.unlock(), lost_error("gone", LostReason::Deleted));

    let guard = take("overwritten");
    setup.memory.put_text("overwritten");
    expect.push(expected(&guard, LostReason::TakenOver));
    drop(guard);

    let guard = take("gone, nested");
    setup.memory.delete("gone, nested");
    expect.push(expected(&guard, LostReason::Deleted));
    let next = take("gone, nested");
    drop(guard);
    next.unlock().unwrap();

    // Not one that is released.
    take("released").unlock().unwrap();
    drop(take("dropped"));

    setup.clock.advance(SECOND * 30);
    client.shutdown(SECOND);
    assert_eq!(all(&told), expect[1..]);
    assert_eq!(client.stats().lost, 10);
    assert_eq!((client.stats().unreported, client.stats().callback_panics), (0, 0));
}

#[test]
fn a_loss_report_has_the_time_held() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    let guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 100);
    setup.memory.flush_all();
    setup.clock.advance(SECOND * 10);
    let held_for = told.try_recv().unwrap().held_for();
    assert!(held_for > SECOND * 100 && held_for <= SECOND * 110, "{held_for:?}");
    drop(guard);
}

#[test]
fn a_shutdown_reports_only_holds_that_had_ended() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    let held = client.lock("held").lock().unwrap();
    let over = client.lock("over").with_lease(SECOND * 5).lock().unwrap();
    // Within a tick, without a check.
    setup.clock.advance(over.remaining());
    let report = client.shutdown(SECOND);
    assert_eq!(report.released, 1);
    assert_eq!(all(&told), [expected(&over, LostReason::Expired)]);
    assert_eq!(held.lost().recv(), Ok(LostReason::Shutdown));
    assert_eq!(over.lost().recv(), Ok(LostReason::Expired));
    drop((held, over));
    assert!(told.is_empty());
}

#[test]
fn a_grant_after_its_lease_is_reported_once() {
    let server = Server::start();
    let (tell, told) = unbounded();
    let client = built(
        Client::builder().url(&server.url()).on_lost(move |lost| tell.send(lost.clone()).unwrap()),
    );
    server.pause();
    thread::scope(|scope| {
        let lock = client.lock("a").with_lease(Duration::from_millis(100));
        let caller = scope.spawn(move || lock.lock().map(drop));
        // Ten times the lease: the caller's thread may begin late on a busy machine.
        pause(SECOND);
        server.resume();
        assert_eq!(caller.join().unwrap(), lost_error("a", LostReason::Expired));
    });
    client.shutdown(SOON);
    assert_eq!(told.len(), 1);
}

// The thread of the callbacks.

/// Takes a lock and loses it at once.
fn lose(client: &Client, name: &str) {
    let guard = client.lock(name).lock().unwrap();
    client.lock(name).force_unlock().unwrap();
    assert!(!guard.is_held());
}

#[test]
fn callbacks_run_on_a_thread_of_their_own_with_a_name() {
    let (tell, told) = unbounded();
    let client = built(Client::builder().in_memory(&Memory::new()).on_lost(move |_| {
        tell.send(thread::current().name().map(str::to_owned)).unwrap();
    }));
    lose(&client, "a");
    assert_eq!(told.recv_timeout(SOON), Ok(Some("lock-callbacks".to_owned())));
}

#[test]
fn callback_panic_is_counted_and_next_report_is_delivered() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose, again");
        }
    }
    let (tell, told) = unbounded();
    let client =
        built(Client::builder().in_memory(&Memory::new()).on_lost(move |lost| match lost.name() {
            "panics" => panic!("on purpose"),
            "bomb" => std::panic::panic_any(Bomb),
            name => tell.send(name.to_owned()).unwrap(),
        }));
    for name in ["panics", "bomb", "fine"] {
        lose(&client, name);
    }
    assert_eq!(told.recv_timeout(SOON).as_deref(), Ok("fine"));
    assert_eq!((client.stats().callback_panics, client.stats().panics), (2, 0));
}

#[test]
fn hanging_callback_delays_no_call_and_lost_reports_are_counted() {
    const QUEUE: usize = 65_536;
    const TOO_MANY: usize = 7;
    let (go_on, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let client = built(Client::builder().in_memory(&Memory::new()).on_lost(move |_| {
        tell.send(()).unwrap();
        // Until the sender is dropped.
        let _ended = gate.recv();
    }));
    lose(&client, "the one that hangs");
    told.recv_timeout(SOON).unwrap();
    for _ in 0..QUEUE + TOO_MANY {
        lose(&client, "a");
    }
    let lost = u64::try_from(QUEUE + TOO_MANY + 1).unwrap();
    assert_eq!(client.stats().lost, lost);
    assert_eq!(client.stats().unreported, u64::try_from(TOO_MANY).unwrap());
    drop(go_on);
    client.shutdown(SOON);
    assert_eq!(told.len(), QUEUE);
    assert_eq!(client.stats().unreported, u64::try_from(TOO_MANY).unwrap());
}

#[test]
fn when_a_client_is_dropped_what_is_queued_has_been_delivered() {
    let (tell, told) = unbounded();
    let (go_on, gate) = bounded::<()>(1);
    let client = built(Client::builder().in_memory(&Memory::new()).on_lost(move |_| {
        // The first waits for a message, the others for the end of the channel.
        let _ended = gate.recv();
        tell.send(()).unwrap();
    }));
    for _ in 0..100 {
        lose(&client, "a");
    }
    assert!(told.is_empty());
    thread::scope(|scope| {
        scope.spawn(move || {
            // The drop comes first.
            pause(TIMEOUT);
            drop(go_on);
        });
        drop(client);
        assert_eq!(told.len(), 100);
    });
}

#[test]
fn dropping_a_client_waits_only_briefly_for_a_hanging_callback() {
    let (go_on, gate) = bounded::<()>(0);
    let (tell, told) = unbounded();
    let builder = Client::builder().in_memory(&Memory::new()).command_timeout(TIMEOUT);
    let client = built(builder.on_lost(move |_| {
        tell.send(()).unwrap();
        let _ended = gate.recv();
    }));
    lose(&client, "a");
    told.recv_timeout(SOON).unwrap();
    let ((), took) = timed(|| drop(client.shutdown(TIMEOUT)));
    assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
    let ((), took) = timed(|| drop(client));
    assert!(took >= TIMEOUT && took < TIMEOUT + SLACK, "{took:?}");
    drop(go_on);
}

#[test]
fn second_shutdown_returns_at_once_and_clock_still_advances() {
    let setup = InMemory::new();
    let (client, told) = reporting(&setup);
    lose(&client, "a");
    client.shutdown(SECOND * 3600);
    assert_eq!(told.len(), 1);
    // The callbacks' thread has ended. A clock that still waited for it would panic.
    setup.clock.advance(SECOND * 3600);
    let (_, took) = timed(|| client.shutdown(SECOND * 3600));
    assert!(took < SLACK, "{took:?}");
}

#[test]
fn a_callback_may_use_the_client_and_shut_it_down() {
    let memory = Memory::new();
    let handle: Arc<Mutex<Option<Client>>> = Arc::default();
    let (tell, told) = unbounded();
    let own = Arc::clone(&handle);
    let client = built(Client::builder().in_memory(&memory).on_lost(move |lost| {
        let Some(client) = own.lock().take() else { return };
        // A nested hold, the same lock, a shutdown, the last handle.
        let guard = client.lock(lost.name()).lock().unwrap();
        guard.unlock().unwrap();
        let held = client.lock("held").lock().unwrap();
        let (report, took) = timed(|| client.shutdown(SOON));
        assert_eq!(report.released, 1);
        // It does not wait for itself.
        assert!(took < SECOND, "{took:?}");
        drop(held);
        drop(client);
        tell.send(()).unwrap();
    }));
    // The last handle but this guard's and the callback's.
    let guard = client.lock("a").lock().unwrap();
    let lock = client.lock("a");
    *handle.lock() = Some(client);
    lock.force_unlock().unwrap();
    drop((guard, lock));
    told.recv_timeout(SOON).unwrap();
    assert!(memory.fields("held").is_empty());
    // The callbacks' thread ends and drops its closure, and with it the sender.
    assert!(told.recv_timeout(SOON).is_err());
    wait_until("the closure is dropped", SOON, || Arc::strong_count(&handle) == 1);
}

#[test]
fn a_callback_may_wait_for_a_time_of_the_manual_clock() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let shared: Arc<Mutex<Option<Client>>> = Arc::default();
    let of_callback = Arc::clone(&shared);
    let client = built(setup.builder().on_lost(move |_| {
        let client = of_callback.lock().clone().unwrap();
        let waited = client.lock("busy").try_lock_for(SECOND * 20).map(|got| got.is_some());
        tell.send(waited).unwrap();
    }));
    *shared.lock() = Some(client.clone());
    let _busy = client.lock("busy").lock().unwrap();
    let _gone = client.lock("gone").lock().unwrap();
    lose(&client, "gone");
    setup.clock.advance(SECOND * 19);
    assert!(told.try_recv().is_err(), "it waits");
    setup.clock.advance(SECOND * 2);
    assert_eq!(told.try_recv(), Ok(Ok(false)));
    drop(shared.lock().take());
}

#[test]
fn a_callback_may_drop_the_last_handle_without_a_shutdown() {
    let handle: Arc<Mutex<Option<Client>>> = Arc::default();
    let own = Arc::clone(&handle);
    let (tell, told) = unbounded();
    let client = built(Client::builder().in_memory(&Memory::new()).on_lost(move |_| {
        drop(own.lock().take());
        tell.send(()).unwrap();
    }));
    let (go_on, gate) = bounded::<()>(0);
    *handle.lock() = Some(client.clone());
    thread::scope(|scope| {
        scope.spawn(move || {
            lose(&client, "a");
            drop(client);
            drop(go_on);
        });
        let _ended = gate.recv();
    });
    told.recv_timeout(SOON).unwrap();
    wait_until("the closure is dropped", SOON, || Arc::strong_count(&handle) == 1);
}

// The longest hold.

#[test]
fn hold_is_not_renewed_beyond_max_hold_and_expires() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let longest = SECOND * 100;
    let builder = setup.builder().max_hold(longest);
    let client = built(builder.on_lost(move |lost| tell.send(lost.clone()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    let steps = u32::try_from(longest.as_millis() / TICK.as_millis()).unwrap();
    for step in 1..=steps {
        setup.clock.advance(TICK);
        let valid_until = TICK * step + guard.remaining();
        assert!(valid_until <= longest, "{valid_until:?}");
    }
    assert!(!guard.is_held());
    setup.clock.advance(TICK * 2);
    let lost = told.try_recv().unwrap();
    assert_eq!(lost.reason(), LostReason::Expired);
    // At most an interval sooner.
    assert!(lost.held_for() >= SECOND * 90, "{:?}", lost.held_for());
    assert_eq!(guard.check(), lost_error("a", LostReason::Expired));
    // The server is not left with the rest of the lease.
    setup.clock.advance(SECOND);
    assert!(setup.memory.fields("a").is_empty());
}

#[test]
fn max_hold_does_not_limit_hold_with_own_lease() {
    let setup = InMemory::new();
    let client = built(setup.builder().max_hold(SECOND * 30));
    let leased = client.lock("a").with_lease(SECOND * 100).lock().unwrap();
    let watched = client.lock("b").lock().unwrap();
    setup.clock.advance(SECOND * 30);
    assert!(!watched.is_held());
    assert_eq!(client.stats().renewed, 0);
    setup.clock.advance(SECOND * 68);
    assert!(leased.is_held());
}

#[test]
fn max_hold_below_lease_and_zero_long_hold_are_refused() {
    let refused = |builder: ClientBuilder| match builder.build().unwrap_err() {
        Error::InvalidSetting { setting, .. } => setting,
        other => panic!("{other}"),
    };
    let memory = Memory::new();
    let builder = || Client::builder().in_memory(&memory).watchdog_lease(SECOND * 20);
    assert_eq!(refused(builder().max_hold(Duration::ZERO)), "max_hold");
    assert_eq!(refused(builder().max_hold(SECOND * 19)), "max_hold");
    // Whichever is said first.
    assert_eq!(
        refused(
            Client::builder().in_memory(&memory).max_hold(SECOND * 10).watchdog_lease(SECOND * 20)
        ),
        "max_hold"
    );
    assert_eq!(refused(builder().on_long_hold(Duration::ZERO, |_| ())), "on_long_hold");
    drop(built(builder().max_hold(SECOND * 20)));
    let longest = built(builder().max_hold(Duration::MAX).on_long_hold(Duration::MAX, |_| ()));
    longest.lock("a").lock().unwrap().unlock().unwrap();
}

// Long holds.

#[test]
fn a_long_hold_is_reported_once_within_a_third_of_the_lease() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let builder = setup.builder().on_long_hold(SECOND * 45, move |held| {
        tell.send((held.name().to_owned(), held.owner().to_owned(), held.held_for())).unwrap();
    });
    let client = built(builder);
    let guard = client.lock("a").lock().unwrap();
    drop(client.lock("short").lock().unwrap());
    setup.clock.advance(SECOND * 44);
    assert!(told.is_empty());
    setup.clock.advance(SECOND * 11);
    let (name, owner, held_for) = told.try_recv().unwrap();
    assert_eq!((name, owner.as_str()), ("a".to_owned(), guard.owner()));
    assert!(held_for >= SECOND * 45 && held_for <= SECOND * 55, "{held_for:?}");
    setup.clock.advance(SECOND * 1000);
    assert!(told.is_empty());
    assert!(guard.is_held());
    // The next hold of the same lock is another.
    guard.unlock().unwrap();
    let _guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 55);
    assert_eq!(told.len(), 1);
}

#[test]
fn a_long_leased_hold_is_reported_within_a_tick() {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let builder = setup.builder().max_hold(SECOND * 60).on_long_hold(SECOND * 50, move |held| {
        tell.send((held.name().to_owned(), held.held_for())).unwrap();
    });
    let client = built(builder);
    let leased = client.lock("leased").with_lease(SECOND * 100).lock().unwrap();
    let watched = client.lock("watched").lock().unwrap();
    setup.clock.advance(SECOND * 50 + TICK * 2);
    let mut names: Vec<String> = told
        .try_iter()
        .map(|(name, held_for)| {
            assert!(held_for >= SECOND * 50 && held_for <= SECOND * 50 + TICK * 2, "{held_for:?}");
            name
        })
        .collect();
    names.sort();
    assert_eq!(names, ["leased", "watched"]);
    setup.clock.advance(SECOND * 40);
    // It goes on to its own end.
    assert!(leased.is_held() && !watched.is_held());
    setup.clock.advance(SECOND * 10);
    assert_eq!(leased.lost().try_recv(), Ok(LostReason::Expired));
    assert!(told.is_empty());
}

// A server that endangers locks.

fn evicting() -> Server {
    Server::builder().argument("--maxmemory-policy", "volatile-lru").start()
}

fn eviction() -> Expected {
    Expected::Eviction("volatile-lru".to_owned())
}

#[test]
fn a_server_that_may_evict_locks_is_a_warning() {
    let server = evicting();
    let (tell, told) = unbounded();
    let builder = Client::builder().url(&server.url());
    let client = built(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    assert_eq!(told.recv_timeout(SOON).unwrap(), eviction());
    assert_eq!(client.warnings(), [eviction()]);
    assert_eq!(Client::connect(&server.url()).unwrap().warnings(), [eviction()]);
    client.shutdown(SOON);
    assert!(told.is_empty());
}

#[test]
fn evicting_server_is_an_error_with_refuse_eviction() {
    let server = evicting();
    let error = Client::builder().url(&server.url()).refuse_eviction().build().unwrap_err();
    assert_eq!(error, Expected::Eviction("volatile-lru".to_owned()));
    assert!(!error.is_retryable() && !error.is_outcome_unknown());
    assert!(error.to_string().contains("volatile-lru"), "{error}");
    drop(server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]));
    let client = built(Client::builder().url(&server.url()).refuse_eviction());
    assert!(client.warnings().is_empty());
}

#[test]
fn a_denied_subscribe_is_one_warning_and_waiters_poll() {
    let server = Server::start();
    let (tell, told) = unbounded();
    let builder = Client::builder().url(&limited_user(&server, &["-subscribe"]));
    let client = built(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    for name in ["a", "b"] {
        server.command(&["HSET", name, "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:1", "1"]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.lock(name).try_lock_for(SOON).unwrap().is_some());
            crate::common::wait_for_a_waiter(&client);
            server.command(&["DEL", name]);
            let (got, took) = timed(|| waiter.join().unwrap());
            assert!(got && took < SECOND + SLACK, "{took:?}");
        });
    }
    let refusal = told.recv_timeout(SOON).unwrap();
    assert!(
        matches!(&refusal, Warning::ChannelsRefused { refusal, .. } if refusal.starts_with("NOPERM")),
        "{refusal:?}"
    );
    assert_eq!(client.warnings(), [refusal]);
    client.shutdown(SOON);
    assert!(told.is_empty());
}

#[test]
fn an_unknown_policy_is_neither_an_error_nor_a_warning() {
    let server = evicting();
    let url = limited_user(&server, &["-info"]);
    let client = built(Client::builder().url(&url).refuse_eviction());
    assert!(client.warnings().is_empty());
    client.lock("a").lock().unwrap().unlock().unwrap();
}

#[test]
fn an_unanswered_policy_query_costs_one_timeout_and_no_lock() {
    // The late one would be taken for the answer to the next command.
    let late = Fault::DelayReply(TIMEOUT * 3 / 2);
    for fault in [Fault::SwallowReply, Fault::CutReplyAfter(9), Fault::ResetBeforeReply, late] {
        let setup =
            ProxiedServer::of(Server::builder().argument("--maxmemory-policy", "volatile-lru"));
        setup.proxy.on(|request| request.name() == "INFO", fault);
        let (client, took) = timed(|| setup.client());
        assert!(took < TIMEOUT + SLACK, "{took:?}");
        assert!(client.warnings().is_empty());
        client.lock("a").lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn changed_eviction_policy_warns_once_at_renewal_connection() {
    let server = Server::start();
    let clock = ManualClock::new();
    let (tell, told) = unbounded();
    let builder = Client::builder().url(&server.url()).clock(Arc::new(clock.clone()));
    let client = built(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    // A third of the lease, and the pause before a second attempt.
    let renew = || clock.advance(SECOND * 14);
    let set = |policy: &str| {
        assert!(!server.command(&["CONFIG", "SET", "maxmemory-policy", policy]).is_error());
    };
    let reconnect = || {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        renew();
    };
    // The two clocks do not go together, and that is told too.
    let of_eviction = |warning: &Warning| matches!(warning, Warning::Eviction { .. });
    let all = || told.try_iter().filter(of_eviction).collect::<Vec<_>>();
    let evicts = |policy: &str| Expected::Eviction(policy.to_owned());

    renew();
    assert!(all().is_empty());
    set("allkeys-lru");
    renew();
    assert!(all().is_empty(), "a server that goes on is not asked again");
    reconnect();
    assert_eq!(all(), [evicts("allkeys-lru")]);
    reconnect();
    assert!(all().is_empty());
    set("volatile-ttl");
    reconnect();
    assert_eq!(all(), [evicts("volatile-ttl")]);
    let kept: Vec<_> = client.warnings().into_iter().filter(of_eviction).collect();
    assert_eq!(kept, [evicts("allkeys-lru"), evicts("volatile-ttl")]);
    assert!(guard.is_held());
}

#[test]
fn unanswered_policy_query_is_not_repeated_after_few_attempts() {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    let asked = setup.proxy.on(|request| request.name() == "INFO", Fault::SwallowReply).always();
    // Where time stands still, a call that loses an attempt waits for ever.
    let builder = setup.builder().command_timeout(SECOND);
    let client = built(builder.clock(Arc::new(clock.clone())));
    let guard = client.lock("a").lock().unwrap();
    for _ in 0..5 {
        setup.server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        clock.advance(SECOND * 14);
    }
    assert!(guard.is_held() && client.stats().renewed >= 5);
    assert_eq!(asked.hits(), 4, "once by the client that was built, three times by its renewals");
}

#[test]
fn a_policy_query_that_failed_is_sent_again() {
    let setup = ProxiedServer::new();
    let clock = ManualClock::new();
    let (tell, told) = unbounded();
    let builder = setup.builder().command_timeout(SOON).clock(Arc::new(clock.clone()));
    let client = built(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    let set = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    assert!(!setup.server.command(&set).is_error());
    // The renewals' connection, and the one after it, which is made once that one is seen to have
    // ended.
    let broken = setup.proxy.on(|request| request.name() == "INFO", Fault::ResetBeforeReply);
    clock.advance(SECOND * 14);
    assert_eq!(broken.hits(), 1);
    let of_eviction = |warning: &Warning| matches!(warning, Warning::Eviction { .. });
    let told: Vec<_> = told.try_iter().filter(of_eviction).collect();
    assert_eq!(told, [Expected::Eviction("allkeys-lru".to_owned())]);
    assert!(guard.is_held());
}

/// The next renewal finds that the server's clock was set.
fn on_renewal(set: wheellock::Fault) -> impl FnOnce(&Memory) {
    move |memory| memory.set_faults(Faults::new().on_renewal(0, set))
}

/// What is warned of when `set` sets the server's clock between two renewals.
fn warned(set: impl FnOnce(&Memory)) -> Vec<Warning> {
    let setup = InMemory::new();
    let (tell, told) = unbounded();
    let client = built(setup.builder().on_warning(move |warning| {
        tell.send(warning.clone()).unwrap();
    }));
    let guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 10);
    set(&setup.memory);
    setup.clock.advance(SECOND * 100);
    assert!(guard.is_held());
    let told: Vec<Warning> = told.try_iter().collect();
    assert_eq!(client.warnings(), told);
    told
}

#[test]
fn a_server_clock_jump_is_one_warning_with_its_direction() {
    let by = SECOND * 5;
    let forward = warned(on_renewal(ClockForward(by)));
    assert_eq!(forward, [Expected::ServerClockJumped { by, forward: true }]);
    let back = warned(on_renewal(ClockBack(by)));
    assert_eq!(back, [Expected::ServerClockJumped { by, forward: false }]);
    // A twentieth of the lease.
    let small = Duration::from_millis(1500);
    assert!(warned(on_renewal(ClockForward(small))).is_empty());
    assert!(warned(on_renewal(ClockBack(small))).is_empty());
}

#[test]
fn other_clock_after_a_failover_is_no_jump_of_the_server_clock() {
    let told = warned(|memory| {
        let other = built(Client::builder().in_memory(memory));
        for fault in [ClockForward(SECOND * 5), wheellock::Fault::FailOver { lost_writes: 0 }] {
            memory.fail_next(fault);
            assert!(other.lock("a").is_locked().unwrap());
        }
    });
    assert!(told.is_empty(), "{told:?}");
}

#[test]
fn a_pause_of_this_process_is_no_jump_of_the_server_clock() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 10);
    for _ in 0..5 {
        setup.clock.jump(SECOND * 15);
        setup.clock.advance(SECOND);
    }
    assert!(guard.is_held());
    drop(guard);
    setup.clock.jump(SECOND * 3600);
    let _guard = client.lock("b").lock().unwrap();
    setup.clock.advance(SECOND * 20);
    assert!(client.stats().renewed > 5);
    assert!(client.warnings().is_empty());
}

#[test]
fn the_client_keeps_the_last_64_warnings() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let _guard = client.lock("a").lock().unwrap();
    setup.clock.advance(SECOND * 10);
    let set_back = |millis| {
        let set = ClockBack(Duration::from_millis(millis));
        setup.memory.set_faults(Faults::new().on_renewal(0, set));
        setup.clock.advance(SECOND * 10);
    };
    for _ in 0..3 {
        set_back(5000);
    }
    assert_eq!(client.warnings().len(), 1);
    for more in 1..=80 {
        set_back(5000 + more);
    }
    let by =
        |millis| Expected::ServerClockJumped { by: Duration::from_millis(millis), forward: false };
    let last: Vec<_> = (17..=80).map(|more| by(5000 + more)).collect();
    assert_eq!(client.warnings(), last);
}

#[test]
fn renewals_at_a_real_server_measure_its_clock() {
    let setup = ProxiedServer::new();
    let (tell, told) = unbounded();
    let builder = setup.builder().watchdog_lease(Duration::from_millis(1500));
    let client = built(builder.on_warning(move |warning| tell.send(warning.clone()).unwrap()));
    let guard = client.lock("a").lock().unwrap();
    wait_until("it is renewed", SOON, || client.stats().renewed >= 3);
    assert!(client.warnings().is_empty());
    let later = setup.now() + 60_000;
    let reply = format!("*2\r\n:{later}\r\n:1\r\n");
    setup.on(Script::Renew, "a", Fault::AnswerInstead(reply.into_bytes())).wait_for_hit(SOON);
    let jumped = told.recv_timeout(SOON).unwrap();
    let Warning::ServerClockJumped { by, forward: true, .. } = jumped else { panic!("{jumped}") };
    assert!(by > SECOND * 58 && by <= SECOND * 60, "{by:?}");
    // And back, with the next true answer.
    let jumped = told.recv_timeout(SOON).unwrap();
    assert!(matches!(jumped, Warning::ServerClockJumped { forward: false, .. }), "{jumped}");
    drop(guard);
}
