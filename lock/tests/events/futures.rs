//! Losses as futures: what they give, who wakes them, and what is left of them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::built;
use crate::common::in_memory::InMemory;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use wheellock::{Client, Guard, LostReason, MultiGuard, OwnedGuard, Permit};
use wheellock_fixture::wait_until;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A task that does something on the thread that wakes it.
struct Task<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Task<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A waker, and the names of the threads that call it.
fn waker() -> (Waker, Receiver<String>) {
    let (tell, told) = unbounded();
    let wake = move || tell.send(thread::current().name().unwrap().to_owned()).unwrap();
    (Waker::from(Arc::new(Task(wake))), told)
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Awaits it on this thread.
fn awaited<F: Future>(future: F) -> F::Output {
    let (waker, woken) = waker();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut(), &waker) {
            return output;
        }
        woken.recv_timeout(LIMIT).unwrap();
    }
}

fn sendable(client: &Client, name: &str) -> OwnedGuard {
    client.lock(name).sendable().lock().unwrap()
}

#[test]
fn a_loss_wakes_its_task_on_the_wakers_thread_with_the_reason() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    let guards = ["deleted", "kept"].map(|name| sendable(&client, name));
    let expired = client.lock("leased").with_lease(SECOND).sendable().lock().unwrap();
    let [mut deleted, mut kept] = guards.each_ref().map(|guard| guard.lost_future().unwrap());
    let mut leased = expired.lost_future().unwrap();
    let wakers = [(); 3].map(|()| waker());
    for (future, (waker, _)) in [&mut deleted, &mut kept, &mut leased].into_iter().zip(&wakers) {
        assert!(poll(Pin::new(future), waker).is_pending());
    }
    setup.memory.delete("deleted");
    setup.clock.advance(SECOND * 11);
    for (future, reason, (waker, woken)) in [
        (&mut deleted, LostReason::Deleted, &wakers[0]),
        (&mut leased, LostReason::Expired, &wakers[2]),
    ] {
        assert_eq!(woken.recv_timeout(LIMIT).unwrap(), "lock-wakers");
        for _ in 0..2 {
            assert_eq!(poll(Pin::new(future), waker), Poll::Ready(Some(reason)), "it stays so");
        }
    }
    assert!(poll(Pin::new(&mut kept), &wakers[1].0).is_pending() && wakers[1].1.is_empty());
    // One that is asked for afterwards is ready at once.
    let late = pin!(guards[0].lost_future().unwrap());
    assert_eq!(poll(late, Waker::noop()), Poll::Ready(Some(LostReason::Deleted)));
}

#[test]
fn a_guard_that_goes_ends_its_future_without_a_reason() {
    let client = Client::in_memory();
    let futures = || {
        let guards = [sendable(&client, "a"), sendable(&client, "b")];
        let futures = guards.each_ref().map(|guard| guard.lost_future().unwrap());
        (guards, futures)
    };
    let ([dropped, unlocked], ends) = futures();
    drop(dropped);
    unlocked.unlock().unwrap();
    assert_eq!(ends.map(awaited), [None, None]);

    // A waiting task is woken.
    let (guards, ends) = futures();
    thread::scope(|scope| {
        let waiting = ends.map(|end| scope.spawn(|| awaited(end)));
        drop(guards);
        assert_eq!(waiting.map(|task| task.join().unwrap()), [None, None]);
    });
}

#[test]
fn a_future_belongs_to_its_guard_and_not_to_the_hold() {
    let setup = InMemory::new();
    let client = built(setup.builder());
    // Nested: the hold goes on.
    let outer = client.fenced_lock("nested").lock().unwrap();
    let inner = client.lock("nested").lock().unwrap();
    let [of_outer, of_inner] = [outer.lost_future(), Guard::lost_future(&inner)];
    drop(inner);
    assert_eq!(awaited(of_inner.unwrap()), None);
    // Handed over: the hold goes on too.
    let first = sendable(&client, "handed");
    let of_first = first.lost_future().unwrap();
    let second = thread::scope(|scope| {
        let waiting = scope.spawn(|| sendable(&client, "handed"));
        wait_until("it waits", LIMIT, || client.stats().waiters == 1);
        drop(first);
        waiting.join().unwrap()
    });
    assert_eq!((awaited(of_first), client.stats().hand_overs), (None, 1));

    setup.memory.delete("nested");
    client.lock("handed").force_unlock().unwrap();
    assert_eq!(awaited(second.lost_future().unwrap()), Some(LostReason::Deleted));
    setup.clock.advance(SECOND * 11);
    assert_eq!(awaited(of_outer.unwrap()), Some(LostReason::Deleted));
}

#[test]
fn multi_lock_future_completes_on_first_loss_and_on_release() {
    let setup = InMemory::new();
    // Whichever client's thread wakes it, that one may be shut down.
    for lost in [0, 1] {
        let clients = [setup.client(), setup.client()];
        let guard =
            clients[0].multi_lock(&[&clients[0].lock("a"), &clients[1].lock("b")]).lock().unwrap();
        let mut future = guard.lost_future().unwrap();
        let (waker, woken) = waker();
        assert!(poll(Pin::new(&mut future), &waker).is_pending());
        clients[lost].shutdown(LIMIT);
        assert_eq!(woken.recv_timeout(LIMIT).unwrap(), "lock-wakers");
        for future in [future, guard.lost_future().unwrap()] {
            assert_eq!(awaited(future), Some(LostReason::Shutdown));
        }
    }
    let client = setup.client();
    let both = client.multi_lock(&[&client.lock("a"), &client.lock("b")]);
    for release in [drop, |guard: MultiGuard| guard.unlock().unwrap()] {
        let guard = both.lock().unwrap();
        let future = guard.lost_future().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| awaited(future));
            release(guard);
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}

#[test]
fn watched_permits_future_completes_on_first_loss_and_release() {
    let setup = InMemory::new();
    let client = setup.client();
    let seats = client.expirable_semaphore("seats").watched();
    seats.set_permits(3).unwrap();
    let permits = seats.acquire_many(2).unwrap();
    let mut future = permits.lost_future().unwrap().unwrap();
    let (waker, woken) = waker();
    assert!(poll(Pin::new(&mut future), &waker).is_pending());
    client.expirable_semaphore("seats").release(&permits.ids()[1]).unwrap();
    setup.clock.advance(SECOND * 11);
    assert_eq!(woken.recv_timeout(LIMIT).unwrap(), "lock-wakers");
    for future in [future, permits.lost_future().unwrap().unwrap()] {
        assert_eq!(awaited(future), Some(LostReason::Deleted));
    }
    let ends: [fn(Permit); 3] = [
        drop,
        |permit| permit.release().unwrap(),
        |permit| {
            let _taken = permit.into_id();
        },
    ];
    for end in ends {
        let permit = seats.acquire().unwrap();
        let future = permit.lost_future().unwrap().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| awaited(future));
            end(permit);
            assert_eq!(waiting.join().unwrap(), None);
        });
        seats.set_permits(3).unwrap();
    }
    let leased = seats.with_lease(SECOND).acquire().unwrap();
    assert!(leased.lost_future().unwrap().is_none());
}

#[test]
fn a_shutdown_and_a_forced_release_are_losses() {
    let client = Client::in_memory();
    let (forced, shut) = (sendable(&client, "forced"), sendable(&client, "shut"));
    let [of_forced, of_shut] = [&forced, &shut].map(|guard| guard.lost_future().unwrap());
    client.lock("forced").force_unlock().unwrap();
    assert_eq!(awaited(of_forced), Some(LostReason::Deleted));
    client.shutdown(LIMIT);
    assert_eq!(awaited(of_shut), Some(LostReason::Shutdown));
}

#[test]
fn only_last_waker_is_called_and_dropped_future_leaves_no_waker() {
    let client = Client::in_memory();
    let guard = sendable(&client, "a");
    let (old, woken_old) = waker();
    let (new, woken_new) = waker();
    let mut moved = pin!(guard.lost_future().unwrap());
    assert!(poll(moved.as_mut(), &old).is_pending() && poll(moved.as_mut(), &new).is_pending());
    let (counted, count) = counted_waker();
    for _ in 0..1000 {
        let mut dropped = pin!(guard.lost_future().unwrap());
        assert!(poll(dropped.as_mut(), &counted).is_pending());
    }
    assert_eq!(Arc::strong_count(&count), 2, "the test's own, and the waker");
    client.lock("a").force_unlock().unwrap();
    assert_eq!(awaited(moved), Some(LostReason::Deleted));
    drop(guard);
    drop(client);
    assert!(woken_old.is_empty() && woken_new.len() <= 1 && Arc::strong_count(&count) == 2);
}

/// A waker, and something of which it keeps a copy.
fn counted_waker() -> (Waker, Arc<()>) {
    let count = Arc::new(());
    let kept = Arc::clone(&count);
    (Waker::from(Arc::new(Task(move || drop(Arc::clone(&kept))))), count)
}

#[test]
fn a_callback_that_blocks_delays_no_future() {
    let (go_on, told) = bounded::<()>(0);
    let setup = InMemory::new();
    let builder = setup.builder().on_lost(move |_| {
        let _ended = told.recv();
    });
    let client = built(builder);
    for name in ["a", "b"] {
        let guard = sendable(&client, name);
        let mut lost = pin!(guard.lost_future().unwrap());
        let (waker, woken) = waker();
        assert!(poll(lost.as_mut(), &waker).is_pending());
        client.lock(name).force_unlock().unwrap();
        assert_eq!(woken.recv_timeout(LIMIT).unwrap(), "lock-wakers");
        assert_eq!(poll(lost, &waker), Poll::Ready(Some(LostReason::Deleted)));
    }
    drop(go_on);
}

#[test]
fn waker_may_panic_block_or_drop_last_client_handle() {
    let client = Client::in_memory();
    let guards = ["a", "b", "c"].map(|name| sendable(&client, name));
    let mut futures = guards.each_ref().map(|guard| guard.lost_future().unwrap());
    let (tell, told) = bounded(1);
    let (go_on, may) = bounded::<()>(0);
    let last = Arc::new(Mutex::new(Some(client.clone())));
    let panics = Waker::from(Arc::new(Task(|| panic!("on purpose"))));
    let blocks = Waker::from(Arc::new(Task(move || {
        let _ended = may.recv();
    })));
    let ends = Waker::from(Arc::new(Task(end_of(last, tell))));
    for (future, waker) in futures.iter_mut().zip([panics, blocks, ends]) {
        assert!(poll(Pin::new(future), &waker).is_pending());
    }
    for name in ["a", "b", "c"] {
        client.lock(name).force_unlock().unwrap();
    }
    wait_until("the panic is counted", LIMIT, || client.stats().callback_panics == 1);
    // While one blocks, the client goes on.
    assert!(client.lock("d").try_lock().unwrap().is_some());
    drop(guards);
    drop(client);
    drop(go_on);
    told.recv_timeout(LIMIT).unwrap();
    for future in futures {
        assert_eq!(awaited(future), Some(LostReason::Deleted));
    }
}

/// Drops the client and tells.
fn end_of(last: Arc<Mutex<Option<Client>>>, tell: Sender<()>) -> impl Fn() + Send + Sync + 'static {
    move || {
        drop(last.lock().take());
        tell.send(()).unwrap();
    }
}
