//! tokio's timer as an entry, as a task and as a queue, each in a runtime with one worker thread.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep, sleep_until};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::harness::clock::{now, sleep as sleep_thread};
use crate::timer::bench_timer::{BenchTimer, PERIOD, again, due_again};
use crate::timer::record::fired;

fn runtime() -> &'static Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build();
    Box::leak(Box::new(runtime.expect("the system gives a thread")))
}

/// A boxed `Sleep` that is polled once, outside of a task: the entry in the driver alone. It cannot
/// fire anything.
#[derive(Clone, Debug)]
pub(crate) struct TokioEntry(&'static Runtime);

impl BenchTimer for TokioEntry {
    type Handle = Pin<Box<Sleep>>;

    fn start(_buckets: usize) -> Self {
        Self(runtime())
    }

    fn schedule(&mut self, delay: Duration, _number: u64) -> Pin<Box<Sleep>> {
        let mut entry = Box::pin(sleep(delay));
        let polled = entry.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        debug_assert!(polled.is_pending(), "delays are not zero");
        entry
    }

    fn cancel(&mut self, handle: Pin<Box<Sleep>>) {
        drop(handle);
    }

    fn leave(handle: Pin<Box<Sleep>>) {
        mem::forget(handle);
    }

    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        let _entered = self.0.enter();
        work()
    }
}

/// The number of tasks that have been polled.
static POLLED: AtomicU64 = AtomicU64::new(0);

/// A task for each timeout.
#[derive(Clone, Debug)]
pub(crate) struct TokioTask(&'static Runtime);

impl BenchTimer for TokioTask {
    type Handle = JoinHandle<()>;

    fn start(_buckets: usize) -> Self {
        Self(runtime())
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> JoinHandle<()> {
        self.schedule_at(now() + delay, number)
    }

    fn schedule_at(&mut self, deadline: Instant, number: u64) -> JoinHandle<()> {
        self.0.spawn(async move {
            POLLED.fetch_add(1, Ordering::Relaxed);
            sleep_until(deadline.into()).await;
            fired(number);
        })
    }

    fn cancel(&mut self, handle: JoinHandle<()>) {
        handle.abort();
    }

    fn absorb(&mut self, timeouts: u64) {
        while POLLED.load(Ordering::Relaxed) < timeouts {
            sleep_thread(Duration::from_millis(1));
        }
    }

    fn arm(&mut self, mut deadline: Instant) {
        self.0.spawn(async move {
            loop {
                sleep_until(deadline.into()).await;
                deadline += PERIOD;
            }
        });
    }
}

/// tokio-util's queue behind a lock, and a task that removes what is due.
#[derive(Clone, Debug)]
pub(crate) struct Queue(&'static QueueShared);

#[derive(Debug)]
struct QueueShared {
    runtime: &'static Runtime,
    queue: Mutex<DelayQueue<u64>>,
    origin: Instant,
}

impl BenchTimer for Queue {
    type Handle = Key;

    fn start(_buckets: usize) -> Self {
        let runtime = runtime();
        let queue = Mutex::new(DelayQueue::new());
        let shared: &QueueShared =
            Box::leak(Box::new(QueueShared { runtime, queue, origin: now() }));
        runtime.spawn(async {
            loop {
                let due = poll_fn(|context| match shared.queue.lock().poll_expired(context) {
                    // The queue is empty: an insertion wakes the task.
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                    Poll::Ready(Some(due)) => Poll::Ready(due.into_inner()),
                });
                let number = due.await;
                if let Some(since_origin) = due_again(number) {
                    let deadline = shared.origin + since_origin;
                    shared.queue.lock().insert_at(again(since_origin), deadline.into());
                } else {
                    fired(number);
                }
            }
        });
        Self(shared)
    }

    fn schedule(&mut self, delay: Duration, number: u64) -> Key {
        self.0.queue.lock().insert(number, delay)
    }

    fn schedule_at(&mut self, deadline: Instant, number: u64) -> Key {
        self.0.queue.lock().insert_at(number, deadline.into())
    }

    fn cancel(&mut self, handle: Key) {
        self.0.queue.lock().try_remove(&handle);
    }

    fn arm(&mut self, deadline: Instant) {
        let number = again(deadline - self.0.origin);
        self.0.queue.lock().insert_at(number, deadline.into());
    }

    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        let _entered = self.0.runtime.enter();
        work()
    }
}
