//! A timer as one writes it by hand: a binary heap behind a lock, and a thread that sleeps until
//! the first deadline.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::harness::clock::now;
use crate::timer::bench_timer::{BenchTimer, PERIOD};
use crate::timer::record::fired;

/// A heap of deadlines and a map of what is pending. A cancelled timeout leaves the map at once,
/// and the heap when it is due.
#[derive(Clone, Debug)]
pub(crate) struct Heap(&'static Shared);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    pending: HashMap<u64, u64>,
    next: u64,
}

/// The number of a timeout that re-arms itself.
const AGAIN: u64 = u64::MAX;

impl Shared {
    fn insert(&self, deadline: Instant, number: u64) -> u64 {
        let mut state = self.state.lock();
        let name = state.next;
        state.next += 1;
        let first = state.heap.peek().is_none_or(|Reverse((first, _))| deadline < *first);
        state.heap.push(Reverse((deadline, name)));
        state.pending.insert(name, number);
        drop(state);
        if first {
            self.changed.notify_one();
        }
        name
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            match state.heap.peek().copied() {
                None => self.changed.wait(&mut state),
                Some(Reverse((deadline, name))) if deadline <= now() => {
                    state.heap.pop();
                    let Some(number) = state.pending.remove(&name) else { continue };
                    drop(state);
                    if number == AGAIN {
                        self.insert(deadline + PERIOD, number);
                    } else {
                        fired(number);
                    }
                    state = self.state.lock();
                }
                Some(Reverse((deadline, _))) => {
                    self.changed.wait_until(&mut state, deadline);
                }
            }
        }
    }
}

impl BenchTimer for Heap {
    type Handle = u64;

    fn start(_buckets: usize) -> Self {
        let shared: &Shared = Box::leak(Box::default());
        let thread = thread::Builder::new().name("heap".to_owned()).spawn(|| shared.run());
        drop(thread.expect("the system gives a thread"));
        Self(shared)
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> u64 {
        self.schedule_at(now() + delay, number)
    }

    fn schedule_at(&mut self, deadline: Instant, number: u64) -> u64 {
        self.0.insert(deadline, number)
    }

    fn cancel(&mut self, handle: u64) {
        self.0.state.lock().pending.remove(&handle);
    }

    fn arm(&mut self, deadline: Instant) {
        self.0.insert(deadline, AGAIN);
    }
}
