//! With the feature `metrics`, the program's recorder is foreign code: it may call the client,
//! block, and shut it down, without an effect on locks.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::forked::Child;
use crate::common::{SOON, built, timed};
use crate::ran_in_a_child;
use crossbeam_channel::bounded;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;
use wheellock::{Client, ClientBuilder, Memory, SystemClock};
use wheellock_fixture::wait_until;

/// Renewed every second, and not lost while a busy machine does something else.
const LEASE: Duration = Duration::from_secs(3);

type Action = Arc<dyn Fn() + Send + Sync>;

/// Does whatever it is told whenever it is told a number.
#[derive(Clone, Default)]
struct Does {
    action: Arc<Mutex<Option<Action>>>,
    /// Whether there is one: a fork may have copied a lock that a thread has.
    acts: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
}

impl Does {
    fn act(&self) {
        if self.acts.load(Ordering::SeqCst) {
            let action = self.action.lock().clone();
            if let Some(action) = action {
                action();
            }
        }
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    fn set(&self, action: impl Fn() + Send + Sync + 'static) {
        self.done.store(0, Ordering::SeqCst);
        *self.action.lock() = Some(Arc::new(action));
        self.acts.store(true, Ordering::SeqCst);
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }
}

impl CounterFn for Does {
    fn increment(&self, _: u64) {
        self.act();
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Does {
    fn increment(&self, _: f64) {
        self.act();
    }

    fn decrement(&self, _: f64) {
        self.act();
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Does {
    fn record(&self, _: f64) {
        self.act();
    }
}

impl Recorder for Does {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(self.clone()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(self.clone()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(self.clone()))
    }
}

fn builder(memory: &Memory) -> ClientBuilder {
    let timeout = Duration::from_millis(100);
    Client::builder().in_memory(memory).clock(Arc::new(SystemClock)).command_timeout(timeout)
}

/// Does something on a thread of its own, and fails if it does not come back.
fn comes_back<T: Send + 'static>(what: &str, action: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = bounded(1);
    let act = move || drop(tell.send(action()));
    thread::Builder::new().name(what.to_owned()).spawn(act).unwrap();
    told.recv_timeout(SOON).unwrap_or_else(|_| panic!("{what} hangs"))
}

/// One test, as a program has one recorder.
#[test]
fn a_recorder_may_call_the_client_block_and_shut_it_down() {
    if ran_in_a_child(a_recorder_may_call_the_client_block_and_shut_it_down) {
        return;
    }
    let does = Does::default();
    assert!(metrics::set_global_recorder(does.clone()).is_ok());
    a_client_of_a_forked_child_publishes_too(&does);
    it_may_call_the_client(&does);
    it_may_block(&does);
    it_may_end_the_client(&does);
}

fn a_client_of_a_forked_child_publishes_too(does: &Does) {
    let client = built(builder(&Memory::new()));
    let guard = client.lock("a").lock().unwrap();
    wait_until("the recorder is told", SOON, || does.done() > 0);
    let child = Child::doing(SOON, || {
        assert!(!guard.is_held());
        let before = does.done();
        let own = built(builder(&Memory::new()));
        let guard = own.lock("a").lock().unwrap();
        wait_until("the child's recorder is told", SOON, || does.done() > before);
        guard.unlock().unwrap();
        own.shutdown(SOON);
    });
    child.wait();
    assert!(guard.is_held());
}

fn it_may_call_the_client(does: &Does) {
    let client = built(builder(&Memory::new()).watchdog_lease(LEASE));
    let of_recorder = client.clone();
    does.set(move || {
        let lock = of_recorder.lock("a");
        assert!(!lock.is_held_by_current_thread());
        assert!(of_recorder.stats().held < 10);
        drop(of_recorder.lock("of the recorder").try_lock());
    });
    let (used, renewed) = (client.clone(), client.clone());
    comes_back("a lock", move || {
        let guard = used.lock("a").lock().unwrap();
        wait_until("it is renewed", SOON, || renewed.stats().renewed > 1);
        guard.unlock().unwrap();
    });
    wait_until("the recorder is told", SOON, || does.done() > 3);
    assert_eq!(client.stats().callback_panics, 0);
    does.set(|| ());
}

fn it_may_block(does: &Does) {
    let client = built(builder(&Memory::new()).watchdog_lease(LEASE));
    let (block, blocked) = bounded::<()>(0);
    let (tell, told) = bounded(1);
    does.set(move || {
        let _first = tell.try_send(());
        let _ended = blocked.recv();
    });
    let used = client.clone();
    comes_back("a watched hold", move || {
        let guard = used.lock("a").lock().unwrap();
        told.recv_timeout(SOON).unwrap();
        let before = used.stats().renewed;
        wait_until("it is renewed", SOON, || used.stats().renewed >= before + 4);
        assert!(guard.is_held());
        guard.unlock().unwrap();
        assert!(used.lock("a").try_lock().unwrap().is_some());
    });
    let ((), took) = comes_back("the end of a client", move || timed(|| drop(client)));
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(block);
    does.set(|| ());
}

fn it_may_end_the_client(does: &Does) {
    // It is renewed all the time, so there is something to publish.
    let client = built(builder(&Memory::new()).watchdog_lease(LEASE));
    let guard = client.lock("a").lock().unwrap();
    let last = Mutex::new(Some(client.clone()));
    let (tell, told) = bounded(1);
    does.set(move || {
        let Some(client) = last.lock().take() else { return };
        let report = client.shutdown(Duration::from_secs(1));
        drop(client);
        tell.send(report.released).unwrap();
    });
    assert!(told.recv_timeout(SOON).is_ok_and(|released| released <= 1));
    assert!(!guard.is_held());
    drop(guard);
    comes_back("the last handle", move || drop(client));
    does.set(|| ());
}
